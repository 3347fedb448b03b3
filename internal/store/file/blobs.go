package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/sstable/blob"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// pebble puts responses of some size into files of their own beside its tables. It looks
// for its tables when it opens, and for these files when it reads from one. If one is
// missing then, or has lost its end, pebble panics, also in the background, where nobody
// could catch that. So both are looked at here.
const blobSuffix = ".blob"

// checkBlobs says which file with responses is not there as the database knows it.
func checkBlobs(path string, fs vfs.FS, db *pebble.DB) error {
	version := db.DebugCurrentVersion()
	for of := range version.BlobFiles.All() {
		name := fmt.Sprintf("%06d%s", uint64(of.Physical.FileNum), blobSuffix)
		info, err := fs.Stat(fs.PathJoin(path, name))
		switch {
		case errors.Is(err, os.ErrNotExist):
			return fmt.Errorf("its file %s is missing", name)
		case err != nil:
			return err
		case uint64(max(info.Size(), 0)) != of.Physical.Size: //nolint:gosec // it is not negative
			return fmt.Errorf("its file %s has %d bytes, not %d", name, info.Size(), of.Physical.Size)
		}
	}
	return nil
}

// Open implements [vfs.FS]. A file with responses that is missing, or whose end cannot be
// read, is an error that pebble passes on instead of one that it panics over.
func (d *disk) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := d.FS.Open(name, opts...)
	if !strings.HasSuffix(name, blobSuffix) {
		if err != nil {
			return nil, err
		}
		return d.files.add(f), nil
	}
	if errors.Is(err, os.ErrNotExist) {
		if _, gone := d.Stat(d.PathDir(name)); gone != nil {
			return nil, fmt.Errorf("the directory of the store: %v", gone) //nolint:errorlint // pebble is not to see what is missing
		}
		return nil, &lostFileError{d.PathBase(name), "it is missing"}
	}
	if err != nil {
		return nil, err
	}
	if err := readBlobEnd(f); pebble.IsCorruptionError(err) {
		_ = f.Close() // the first error is the one to report
		return nil, &lostFileError{d.PathBase(name), err.Error()}
	} else if err != nil {
		_ = f.Close()
		return nil, err
	}
	return d.files.add(f), nil
}

// readBlobEnd reads the end of a file with responses, which describes the rest, as pebble
// does after it.
func readBlobEnd(f vfs.File) error {
	content, err := sstable.NewSimpleReadable(keptOpen{f})
	if err != nil {
		return err
	}
	_, err = blob.NewFileReader(context.Background(), content, blob.FileReaderOptions{})
	return err
}

// keptOpen is a file that its reader must not close.
type keptOpen struct{ vfs.File }

// Close implements [io.Closer].
func (keptOpen) Close() error { return nil }
