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
	newVolume  = "lost+found" // the only entry of a new ext4 file system

	format = "caddy-dedup store, format 2\n"
	// formatNew is the content of the format file until the database has been created.
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

// lockDirectory locks a directory for this process, and creates it if it is missing. It does not change
// a directory that another process uses or that belongs to another program.
func lockDirectory(fs vfs.FS, path string) (*directory, error) {
	d := &directory{fs: fs, path: path}
	if err := d.readFormat(); err != nil {
		return nil, err
	}
	if err := fs.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	for at := path; d.isNew && at != fs.PathDir(at); at = fs.PathDir(at) {
		_ = syncDir(fs, fs.PathDir(at)) // this process may not be allowed to open every parent
	}
	var err error
	if d.lock, err = fs.Lock(d.file(lockName)); err != nil {
		if _, noFile := errors.AsType[*os.PathError](err); noFile {
			return nil, err
		}
		holder, _ := readFile(fs, d.file(holderName))
		pid, host, _ := strings.Cut(strings.TrimSpace(holder), " ")
		return nil, fmt.Errorf("it is in use by process %s on host %s: %w; only one process can use a directory: stop the other one, set another directory, or use `store redis`", pid, host, err)
	}
	makePrivate(d.file(lockName))
	if err := d.prepare(); err != nil {
		return nil, errors.Join(err, d.lock.Close())
	}
	return d, nil
}

func (d *directory) file(name string) string { return d.fs.PathJoin(d.path, name) }

// prepare writes the files that a locked directory needs before its database is opened.
func (d *directory) prepare() error {
	if err := d.readFormat(); err != nil { // again: it may have changed before the directory was locked
		return err
	}
	host, _ := os.Hostname()
	_ = d.writeFile(holderName, fmt.Sprintf("%d %s\n", os.Getpid(), host)) // needed only for an error message
	if d.isNew {
		return d.writeFile(formatName, formatNew)
	}
	return nil
}

// setCreated records in the format file that the database has been created.
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

// readFormat returns an error unless the directory has a store in this version's format or is new. It
// sets isNew.
func (d *directory) readFormat() error {
	if info, err := d.fs.Stat(d.path); err == nil && !info.IsDir() {
		return errors.New("it is a file; a store needs a directory")
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
		return fmt.Errorf("%s has format %q, and this version reads format %q: use the version that wrote it, or set another directory",
			formatName, strings.TrimSpace(number), strings.TrimSpace(format[len(formatPrefix):]))
	default:
		return fmt.Errorf("its %s is damaged: restore the directory from a backup, or move it to start with an empty one", formatName)
	}
}

// refuseForeign returns an error for a directory that has no format file but other files.
func (d *directory) refuseForeign() error {
	names, err := d.fs.List(d.path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, name := range names {
		if name != lockName && name != newVolume && !strings.HasPrefix(name, ownPrefix) {
			return fmt.Errorf("it is not a store: it has %s and no %s; set another directory", name, formatName)
		}
	}
	return nil
}

// probe returns an error if the disk does not accept writes, or the directory is no longer a store.
func (d *directory) probe() error {
	if _, err := d.fs.Stat(d.file(formatName)); err != nil {
		return err
	}
	if err := d.writeFile(probeName, "?"); err != nil {
		return err
	}
	return d.fs.Remove(d.file(probeName))
}

// writeFile replaces a file of the directory atomically and durably.
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
