package file

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2/record"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// A log that has lost its end, or is damaged there, looks to pebble like one that was
// being written when the machine crashed: it begins again with what is before, and so
// forgets what was acknowledged. The same is so of its MANIFEST, the log of which tables
// there are, and of a log that is missing as a whole: pebble knows which is the first that
// it needs, and not which come after that. The mark tells damage from a crash. It says what
// was flushed, and is written after each flush, mostly without a flush of its own: after a
// crash there may be an earlier one, which is true as well.
const (
	markName = "caddy-dedup.flushed"
	// markHead is how long the mark is without the logs: the fields of flushes before them,
	// and how many there are. A checksum of it all comes last.
	markHead = 5 * 8
	// mostMarked bounds the logs, so that the mark lies within one sector of a disk. There
	// are never nearly as many.
	mostMarked = 28
)

// flushes are what is known to be on the disk, its name included.
type flushes struct {
	log uint64 // the newest log
	// the MANIFEST, up to where it was flushed, and the checksum of what is before that
	manifest, manifestBytes, manifestSum uint64
	logs                                 []flushedLog // that nobody has removed
}

// flushedLog is a log, and up to where it was flushed. Pebble reads one that is not the newest
// to its end, wherever that is: one that has lost a part there would be forgotten in silence.
type flushedLog struct{ number, bytes uint64 }

// flushMark writes the mark. One that cannot be written is no failure, save where a MANIFEST
// begins: the one before stays true.
type flushMark struct {
	file vfs.File // nil if it could not be opened

	mu sync.Mutex
	of flushes
}

// openMark goes on with the mark that is there.
func openMark(fs vfs.FS, path string) *flushMark {
	m := new(flushMark)
	name := fs.PathJoin(path, markName)
	m.of, _ = readMark(fs, name) // none is no failure either
	m.of.logs = slices.DeleteFunc(m.of.logs, func(log flushedLog) bool {
		_, err := fs.Stat(fs.PathJoin(path, logName(log.number)))
		return err != nil
	})
	file, err := fs.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return m
	}
	makePrivate(fs, name)
	m.file = file
	return m
}

// setLog says up to where a log was flushed.
func (m *flushMark) setLog(number, flushed uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of.log = number
	if at := slices.IndexFunc(m.of.logs, isLog(number)); at >= 0 {
		m.of.logs[at].bytes = flushed
	} else {
		m.of.logs = append(m.of.logs, flushedLog{number, flushed})
		m.of.logs = m.of.logs[max(0, len(m.of.logs)-mostMarked):]
	}
	_ = m.write()
}

func isLog(number uint64) func(flushedLog) bool {
	return func(log flushedLog) bool { return log.number == number }
}

// logRemoved says that pebble does not need a log any more. That need not be written: by what
// its MANIFEST says, a log of before is not needed either.
func (m *flushMark) logRemoved(number uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of.logs = slices.DeleteFunc(m.of.logs, isLog(number))
}

// lostLog returns the name of a log that is not there, though nobody has said that it is not
// needed any more; "" for none.
func (m *flushMark) lostLog(path string, fs vfs.FS) string {
	m.mu.Lock()
	logs := slices.Clone(m.of.logs)
	m.mu.Unlock()
	for _, log := range logs {
		name := logName(log.number)
		if _, err := fs.Stat(fs.PathJoin(path, name)); errors.Is(err, os.ErrNotExist) && m.has(log.number) {
			return name
		}
	}
	return ""
}

func (m *flushMark) has(number uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.ContainsFunc(m.of.logs, isLog(number))
}

// setManifest says up to where a MANIFEST was flushed.
func (m *flushMark) setManifest(number, flushed, sum uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of.manifest, m.of.manifestBytes, m.of.manifestSum = number, flushed, sum
	return m.write()
}

func (m *flushMark) flush() error {
	if m.file == nil {
		return nil
	}
	return m.file.Sync()
}

func (m *flushMark) write() error {
	if m.file == nil {
		return nil
	}
	mark := make([]byte, 0, markHead+(2*mostMarked+1)*8)
	for _, field := range []uint64{m.of.log, m.of.manifest, m.of.manifestBytes, m.of.manifestSum, uint64(len(m.of.logs))} {
		mark = binary.BigEndian.AppendUint64(mark, field)
	}
	for _, log := range m.of.logs {
		mark = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(mark, log.number), log.bytes)
	}
	mark = binary.BigEndian.AppendUint64(mark, xxhash.Sum64(mark))
	_, err := m.file.WriteAt(mark, 0)
	return err
}

func (m *flushMark) close() {
	if m.file != nil {
		_ = m.file.Close()
	}
}

// readMark returns what the mark says, nothing if there is none.
func readMark(fs vfs.FS, name string) (of flushes, err error) {
	mark, err := readFile(fs, name)
	if errors.Is(err, os.ErrNotExist) {
		return flushes{}, nil
	}
	if err != nil || len(mark) < markHead {
		return flushes{}, err
	}
	field := func(i int) uint64 { return binary.BigEndian.Uint64(mark[i*8:]) }
	logs := field(4)
	end := markHead/8 + 2*int(min(logs, mostMarked)) //nolint:gosec // it is not more than that
	if len(mark) < (end+1)*8 || field(end) != xxhash.Sum64(mark[:end*8]) {
		return flushes{}, nil // a crash came between, or it is of an earlier version
	}
	of = flushes{log: field(0), manifest: field(1), manifestBytes: field(2), manifestSum: field(3)}
	for i := markHead / 8; i < end; i += 2 {
		of.logs = append(of.logs, flushedLog{field(i), field(i + 1)})
	}
	return of, nil
}

func logName(number uint64) string { return fmt.Sprintf("%06d.log", number) }

// logNumber returns the number of a log by its name.
func logNumber(base string) (number uint64, ok bool) {
	digits, ok := strings.CutSuffix(base, ".log")
	number, err := strconv.ParseUint(digits, 10, 64)
	return number, ok && err == nil
}

// checkLogs says what is damaged in the logs, from the first one on that the database needs:
// one that is missing, or that has lost a part of what was flushed.
func checkLogs(path string, fs vfs.FS, mark flushes, needed uint64) error {
	names, err := fs.List(path)
	if err != nil {
		return err
	}
	there := make(map[uint64]string)
	newest := uint64(0)
	for _, found := range names {
		if number, ok := logNumber(fs.PathBase(found)); ok {
			there[number] = fs.PathJoin(path, found)
			newest = max(newest, number)
		}
	}
	logs := slices.DeleteFunc(slices.Clone(mark.logs), func(log flushedLog) bool { return log.number < needed })
	if newest < mark.log {
		logs = append(logs, flushedLog{number: mark.log})
	}
	slices.SortFunc(logs, func(a, b flushedLog) int { return cmp.Compare(a.number, b.number) })
	for _, log := range logs {
		name := there[log.number]
		if name == "" {
			return fmt.Errorf("its log %s is missing", logName(log.number))
		}
		sound, err := soundLog(fs, name, log.number)
		if err != nil {
			return fmt.Errorf("its log %s: %w", logName(log.number), err)
		}
		if sound+betweenChunks < log.bytes {
			return fmt.Errorf("its log %s is sound up to byte %d only, and was flushed up to byte %d", logName(log.number), sound, log.bytes)
		}
	}
	return nil
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
