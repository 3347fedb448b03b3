package file

import (
	"errors"
	"io"
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// mostOfAFile is more than the files have that are read as a whole.
const mostOfAFile = 64 << 10

func readFile(fs vfs.FS, name string) ([]byte, error) {
	f, err := fs.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, mostOfAFile))
}

// writeFile writes and flushes a file of this package.
func writeFile(fs vfs.FS, name, text string) error {
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	makePrivate(fs, name)
	_, err = f.Write([]byte(text))
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// makeDirectory makes a directory and those above it that are missing, so that they are
// still there after a crash of the machine.
func makeDirectory(path string, fs vfs.FS) error {
	var made []string
	for at := path; ; at = fs.PathDir(at) {
		if _, err := fs.Stat(at); err == nil || !errors.Is(err, os.ErrNotExist) || fs.PathDir(at) == at {
			break
		}
		made = append(made, at)
	}
	if len(made) == 0 {
		return nil
	}
	if err := fs.MkdirAll(path, 0o700); err != nil {
		return err
	}
	for _, at := range made {
		syncDirectory(fs.PathDir(at), fs)
	}
	return nil
}

// syncDirectory flushes the names in a directory. Not every system can do that, so an
// error is ignored.
func syncDirectory(dir string, fs vfs.FS) {
	if d, err := fs.OpenDir(dir); err == nil {
		_ = d.Sync()
		_ = d.Close()
	}
}

// makePrivate makes a file one that only its owner can read, also where its directory is
// open to others.
func makePrivate(fs vfs.FS, name string) {
	if fs == vfs.Default {
		_ = os.Chmod(name, 0o600) // not every system has such modes
	}
}
