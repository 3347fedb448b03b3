package file

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/record"
	"github.com/cockroachdb/pebble/v2/vfs"
)

const manifestPrefix = "MANIFEST-"

// manifestNumber returns the number of a MANIFEST by its name.
func manifestNumber(base string) (number uint64, ok bool) {
	digits, ok := strings.CutPrefix(base, manifestPrefix)
	number, err := strconv.ParseUint(digits, 10, 64)
	return number, ok && err == nil
}

// manifestFile is a MANIFEST that pebble writes. It is only ever appended to.
type manifestFile struct {
	*diskFile
	number, written uint64
	sum             *xxhash.Digest // of what was written
	marked          bool
}

// Write implements [vfs.File], which may change the bytes that it was given.
func (f *manifestFile) Write(p []byte) (int, error) {
	given := bytes.Clone(p)
	n, err := f.diskFile.Write(p)
	f.written += uint64(n) //nolint:gosec // it is not negative
	_, _ = f.sum.Write(given[:n])
	return n, err
}

// Sync implements [vfs.File].
func (f *manifestFile) Sync() error { return f.flush(f.diskFile.Sync) }

// SyncData implements [vfs.File].
func (f *manifestFile) SyncData() error { return f.flush(f.diskFile.SyncData) }

// flush flushes, and marks that. Before a new MANIFEST takes the place of the one before,
// its mark is on the disk: there may be a mark of one with the same number whose name was
// lost in a crash.
func (f *manifestFile) flush(flush func() error) error {
	if err := flush(); err != nil {
		return err
	}
	mark := func() error { return f.disk.mark.setManifest(f.number, f.written, f.sum.Sum64()) }
	if f.marked {
		_ = mark()
		return nil
	}
	f.marked = true
	if err := f.disk.write(mark); err != nil {
		return err
	}
	return f.disk.flush(f.disk.mark.flush)
}

// errNoMarker says what a directory lacks in which pebble finds no database.
var errNoMarker = errors.New("its file marker.manifest.*, which names the MANIFEST that counts, is missing")

// checkFlushed says what is damaged of what was flushed, by the mark.
func checkFlushed(path string, fs vfs.FS) error {
	mark, err := readMark(fs, fs.PathJoin(path, markName))
	if err != nil {
		return err
	}
	database, err := pebble.Peek(path, fs)
	if err != nil {
		return err
	}
	if !database.Exists {
		return errNoMarker
	}
	if err := checkManifest(fs, database.ManifestFilename, mark); err != nil {
		return err
	}
	needed, err := firstLog(fs, database.ManifestFilename)
	if err != nil {
		return err
	}
	return checkLogs(path, fs, mark, needed)
}

// checkManifest says whether a MANIFEST is what was flushed of it. What follows may be torn: it
// was being written when the machine crashed. Nothing is known of one that the mark does not
// name: the mark is of the next one, which a crash has kept from taking its place.
func checkManifest(fs vfs.FS, name string, mark flushes) error {
	base := fs.PathBase(name)
	if number, ok := manifestNumber(base); !ok || number != mark.manifest {
		return nil
	}
	f, err := fs.Open(name)
	if err != nil {
		return fmt.Errorf("its file %s: %w", base, err)
	}
	defer f.Close()
	sum := xxhash.New()
	read, err := io.Copy(sum, io.LimitReader(f, int64(mark.manifestBytes))) //nolint:gosec // no file is so large
	switch {
	case err != nil:
		return fmt.Errorf("its file %s: %w", base, err)
	case uint64(read) < mark.manifestBytes: //nolint:gosec // it is not negative
		return fmt.Errorf("its file %s has %d bytes only, and was flushed up to byte %d", base, read, mark.manifestBytes)
	case sum.Sum64() != mark.manifestSum:
		return fmt.Errorf("its file %s is not what was written up to byte %d", base, mark.manifestBytes)
	}
	return nil
}

// firstLog returns the number of the first log whose changes are not all in tables, as the
// MANIFEST has it. Logs before it may be gone.
func firstLog(fs vfs.FS, name string) (number uint64, err error) {
	f, err := fs.Open(name)
	if err != nil {
		return 0, fmt.Errorf("its file %s: %w", fs.PathBase(name), err)
	}
	defer f.Close()
	edits := newLogReader(record.NewReader, f, 0)
	for {
		one, err := edits.Next()
		if err != nil {
			return number, nil // where pebble stops, too
		}
		edit, err := io.ReadAll(one)
		if err != nil {
			return number, nil // and here
		}
		if of, err := logOfEdit(edit); err == nil && of != 0 {
			number = of
		}
	}
}

// The tags with which pebble's edits begin.
const (
	editComparer = 1 // and its name
	editFirstLog = 2 // and its number
)

var errEdit = errors.New("it is not an edit of a MANIFEST")

// logOfEdit returns the number of the first log that is needed after an edit, 0 if the edit
// does not change that. pebble's own decoder is internal to it. The number comes first, or
// after the name of the comparer, which only the first edit has.
func logOfEdit(edit []byte) (number uint64, err error) {
	r := bytes.NewReader(edit)
	tag, err := binary.ReadUvarint(r)
	if err == nil && tag == editComparer {
		var length uint64
		if length, err = binary.ReadUvarint(r); err == nil {
			if length > uint64(r.Len()) { //nolint:gosec // it is not negative
				return 0, errEdit
			}
			_, _ = r.Seek(int64(length), io.SeekCurrent) //nolint:gosec // it is not longer than the edit
			tag, err = binary.ReadUvarint(r)
		}
	}
	if err != nil || tag != editFirstLog {
		return 0, err
	}
	return binary.ReadUvarint(r)
}
