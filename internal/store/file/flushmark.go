package file

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2/record"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// A log that has lost its end, or is damaged there, looks to pebble like one that was
// being written when the machine crashed: it begins again with what is before, and so
// forgets what was acknowledged. The mark tells the two apart. It says up to where the
// newest log was flushed, and is written after each flush, without a flush of its own:
// after a crash there may be an earlier one, which is true as well.
const (
	markName = "caddy-dedup.flushed"
	markSize = 3 * 8 // number of the log, bytes that were flushed, checksum of both
)

// flushMark writes the mark. One that cannot be written is no failure: the one before
// stays true.
type flushMark struct{ file vfs.File }

func openMark(fs vfs.FS, name string) flushMark {
	file, err := fs.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return flushMark{}
	}
	makePrivate(fs, name)
	return flushMark{file}
}

func (m flushMark) set(log, flushed uint64) {
	if m.file == nil {
		return
	}
	mark := make([]byte, 0, markSize)
	mark = binary.BigEndian.AppendUint64(mark, log)
	mark = binary.BigEndian.AppendUint64(mark, flushed)
	mark = binary.BigEndian.AppendUint64(mark, xxhash.Sum64(mark))
	_, _ = m.file.WriteAt(mark, 0)
}

func (m flushMark) close() {
	if m.file != nil {
		_ = m.file.Close()
	}
}

// readMark returns the mark, zeros if there is none.
func readMark(fs vfs.FS, name string) (log, flushed uint64, err error) {
	mark, err := readFile(fs, name)
	if errors.Is(err, os.ErrNotExist) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, err
	}
	if len(mark) != markSize || binary.BigEndian.Uint64(mark[16:]) != xxhash.Sum64(mark[:16]) {
		return 0, 0, nil // a crash came between
	}
	return binary.BigEndian.Uint64(mark), binary.BigEndian.Uint64(mark[8:]), nil
}

// logNumber returns the number of a log by its name.
func logNumber(base string) (number uint64, ok bool) {
	digits, ok := strings.CutSuffix(base, ".log")
	number, err := strconv.ParseUint(digits, 10, 64)
	return number, ok && err == nil
}

// checkLog says what is damaged in the log that was flushed last.
func checkLog(path string, fs vfs.FS) error {
	log, flushed, err := readMark(fs, fs.PathJoin(path, markName))
	if err != nil || log == 0 {
		return err
	}
	names, err := fs.List(path)
	if err != nil {
		return err
	}
	name, newest := "", uint64(0)
	for _, found := range names {
		number, ok := logNumber(fs.PathBase(found))
		if !ok {
			continue
		}
		if newest = max(newest, number); number == log {
			name = fs.PathJoin(path, found)
		}
	}
	switch {
	case newest < log:
		return fmt.Errorf("its log %06d.log is missing", log)
	case name == "":
		return nil // what was in it is in tables now
	}
	sound, err := soundLog(fs, name, log)
	if err == nil && sound+betweenChunks < flushed {
		err = fmt.Errorf("its log %s is sound up to byte %d only, and was flushed up to byte %d", fs.PathBase(name), sound, flushed)
	}
	return err
}

// soundLog returns up to where the chunks of a log can be read. The last record need not be
// whole: a flush takes with it what there is of one that is just being written.
func soundLog(fs vfs.FS, name string, number uint64) (sound uint64, err error) {
	f, err := fs.Open(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	r := newLogReader(record.NewReader, f, number)
	chunk := make([]byte, 32<<10)
	for {
		one, err := r.Next()
		if err != nil {
			return sound, nil // that it ends here is what was asked
		}
		for err == nil {
			sound = uint64(r.Offset())
			_, err = one.Read(chunk)
		}
		if !errors.Is(err, io.EOF) {
			return sound, nil
		}
	}
}

// newLogReader calls record.NewReader, the type of whose second argument has no name
// outside of pebble.
func newLogReader[N ~uint64](of func(io.Reader, N) *record.Reader, log io.Reader, number uint64) *record.Reader {
	return of(log, N(number))
}

// betweenChunks is how many bytes that belong to no chunk can be at the end of a log: what
// fills a block, and the trailer of a log that was closed. No record is so short.
const betweenChunks = 40
