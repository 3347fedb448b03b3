package file

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// The files in the directory that are not pebble's.
const (
	ownPrefix  = "caddy-dedup."
	formatName = ownPrefix + "format"
	holderName = ownPrefix + "pid" // for the error of a second process
	probeName  = ownPrefix + "probe"
	newSuffix  = ".new"
	lockName   = "LOCK"
	newVolume  = "lost+found" // is all that a new ext4 file system has

	format = "caddy-dedup store, format 2\n"
	// formatNew is in the format file until the database has been created.
	formatNew    = "caddy-dedup store, format 2, being created\n"
	formatPrefix = "caddy-dedup store, format "
)

// directory is the directory of a store, locked by this process.
type directory struct {
	fs   vfs.FS
	path string
	lock io.Closer
	// isNew is set until the database has been created.
	isNew bool
}

// lockDirectory locks a directory for this process, and creates it if it is missing. It changes
// nothing in a directory of another process or another program.
func lockDirectory(fs vfs.FS, path string) (*directory, error) {
	d := &directory{fs: fs, path: path}
	if err := d.readFormat(); err != nil {
		return nil, err
	}
	if err := fs.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	for at := path; d.isNew && at != fs.PathDir(at); at = fs.PathDir(at) {
		_ = syncDir(fs, fs.PathDir(at)) // not every directory above may be read
	}
	var err error
	if d.lock, err = fs.Lock(d.file(lockName)); err != nil {
		if _, noFile := errors.AsType[*os.PathError](err); noFile {
			return nil, err
		}
		holder, _ := readFile(fs, d.file(holderName))
		pid, host, _ := strings.Cut(strings.TrimSpace(holder), " ")
		return nil, fmt.Errorf("it is in use by process %s on host %s: %w; a directory is for one process: stop that one, or name another directory, or use `store redis`", pid, host, err)
	}
	makePrivate(d.file(lockName))
	if err := d.prepare(); err != nil {
		return nil, errors.Join(err, d.lock.Close())
	}
	return d, nil
}

func (d *directory) file(name string) string { return d.fs.PathJoin(d.path, name) }

// prepare writes what has to be in a locked directory before its database is opened.
func (d *directory) prepare() error {
	if err := d.readFormat(); err != nil { // which may have changed before the directory was locked
		return err
	}
	host, _ := os.Hostname()
	_ = d.writeFile(holderName, fmt.Sprintf("%d %s\n", os.Getpid(), host)) // only an error message needs it
	if d.isNew {
		return d.writeFile(formatName, formatNew)
	}
	return nil
}

// setCreated writes that the database has been created.
func (d *directory) setCreated() error {
	if !d.isNew {
		return nil
	}
	if err := d.writeFile(formatName, format); err != nil {
		return err
	}
	d.isNew = false
	return nil
}

// readFormat finds out whether the directory is that of a store in the format of this version, or
// a new one.
func (d *directory) readFormat() error {
	if info, err := d.fs.Stat(d.path); err == nil && !info.IsDir() {
		return errors.New("it is a file, and a store is a directory")
	}
	found, err := readFile(d.fs, d.file(formatName))
	number, isStore := strings.CutPrefix(found, formatPrefix)
	switch {
	case errors.Is(err, os.ErrNotExist):
		d.isNew = true
		return d.refuseForeign()
	case err != nil:
		return err
	case found == format, found == formatNew:
		d.isNew = found == formatNew
		return nil
	case isStore:
		return fmt.Errorf("%s says format %q, and this version reads format %q: use the version that wrote it, or name another directory",
			formatName, strings.TrimSpace(number), strings.TrimSpace(format[len(formatPrefix):]))
	default:
		return fmt.Errorf("its %s is damaged: restore the directory from a backup, or move it to begin with an empty one", formatName)
	}
}

// refuseForeign returns an error for a directory without a format that has files of its own.
func (d *directory) refuseForeign() error {
	names, err := d.fs.List(d.path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, name := range names {
		if name != lockName && name != newVolume && !strings.HasPrefix(name, ownPrefix) {
			return fmt.Errorf("it is not a store: it has %s and no %s; name another directory", name, formatName)
		}
	}
	return nil
}

// probe returns an error if the disk does not take writes, or the directory is no longer the
// store's.
func (d *directory) probe() error {
	if _, err := d.fs.Stat(d.file(formatName)); err != nil {
		return err
	}
	if err := d.writeFile(probeName, "?"); err != nil {
		return err
	}
	return d.fs.Remove(d.file(probeName))
}

// writeFile replaces a file of the directory by one with this content, in one step and for good.
func (d *directory) writeFile(name, content string) error {
	f, err := d.fs.Create(d.file(name+newSuffix), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	makePrivate(d.file(name + newSuffix))
	_, err = f.Write([]byte(content))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return errors.Join(d.fs.Rename(d.file(name+newSuffix), d.file(name)), syncDir(d.fs, d.path))
}

func readFile(fs vfs.FS, name string) (string, error) {
	f, err := fs.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	const maxSize = 1 << 10 // of the files that are read like this
	content, err := io.ReadAll(io.LimitReader(f, maxSize))
	return string(content), err
}

// syncDir makes the names in a directory durable.
func syncDir(fs vfs.FS, name string) error {
	dir, err := fs.OpenDir(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
