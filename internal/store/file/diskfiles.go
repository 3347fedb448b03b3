package file

import (
	"errors"
	"io"
	"os"
	"strings"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// The methods by which pebble changes the disk. What only reads goes to the file system
// below: a file that cannot be read is an error that pebble handles.

// Create implements [vfs.FS]. The name of a marker says which other file counts, and
// pebble flushes the names of both together: after a crash there could be a marker
// without its file. So the names that are there already are flushed before.
func (d *disk) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasPrefix(d.PathBase(name), "marker.") {
		dir, err := d.OpenDir(d.PathDir(name))
		if err != nil {
			return nil, err
		}
		if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
			return nil, err
		}
	}
	return d.file(name, func() (vfs.File, error) { return d.FS.Create(name, category) })
}

// ReuseForWrite implements [vfs.FS].
func (d *disk) ReuseForWrite(old, name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if number, ok := logNumber(d.PathBase(old)); ok {
		d.mark.logRemoved(number)
	}
	return d.file(name, func() (vfs.File, error) {
		file, err := d.FS.ReuseForWrite(old, name, category)
		if errors.Is(err, os.ErrNotExist) { // somebody has removed it, and nothing in it was needed
			return d.FS.Create(name, category)
		}
		return file, err
	})
}

// OpenReadWrite implements [vfs.FS].
func (d *disk) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return d.file(name, func() (vfs.File, error) { return d.FS.OpenReadWrite(name, category, opts...) })
}

// OpenDir implements [vfs.FS]. A directory is opened to be flushed.
func (d *disk) OpenDir(name string) (vfs.File, error) {
	var dir vfs.File
	open := func() (err error) {
		dir, err = d.FS.OpenDir(name)
		return err
	}
	if d.readOnly {
		if err := open(); err != nil {
			return nil, err
		}
		return d.files.add(dir), nil
	}
	if err := d.write(open); err != nil {
		return nil, err
	}
	return &diskFile{File: d.files.add(dir), disk: d}, nil
}

func (d *disk) file(name string, open func() (vfs.File, error)) (file vfs.File, err error) {
	err = d.write(d.inPlace(func() (err error) {
		file, err = open()
		return err
	}))
	if err != nil {
		return nil, err
	}
	makePrivate(d.FS, name)
	written := &diskFile{File: d.files.add(file), disk: d}
	if number, ok := logNumber(d.PathBase(name)); ok {
		return &logFile{diskFile: written, number: number}, nil
	}
	if number, ok := manifestNumber(d.PathBase(name)); ok {
		return &manifestFile{diskFile: written, number: number, sum: xxhash.New()}, nil
	}
	return written, nil
}

// Link implements [vfs.FS].
func (d *disk) Link(old, name string) error {
	return d.write(d.inPlace(func() error { return d.FS.Link(old, name) }))
}

// Rename implements [vfs.FS].
func (d *disk) Rename(old, name string) error {
	return d.write(d.inPlace(func() error { return d.FS.Rename(old, name) }))
}

// MkdirAll implements [vfs.FS].
func (d *disk) MkdirAll(dir string, perm os.FileMode) error {
	return d.write(d.inPlace(func() error { return d.FS.MkdirAll(dir, perm) }))
}

// Remove implements [vfs.FS]. Its errors are told: what was not removed is in nobody's
// way.
func (d *disk) Remove(name string) error {
	if d.readOnly {
		return errReadOnly
	}
	if number, ok := logNumber(d.PathBase(name)); ok {
		d.mark.logRemoved(number)
	}
	return d.try(d.inPlace(func() error { return d.FS.Remove(name) }))
}

// RemoveAll implements [vfs.FS], as Remove.
func (d *disk) RemoveAll(name string) error {
	if d.readOnly {
		return errReadOnly
	}
	return d.try(d.inPlace(func() error { return d.FS.RemoveAll(name) }))
}

// Lock implements [vfs.FS]. The store has locked the directory itself, for as long as it
// is open, also while one database is given up for another.
func (d *disk) Lock(string) (io.Closer, error) { return unlocked{}, nil }

type unlocked struct{}

// Close implements [io.Closer].
func (unlocked) Close() error { return nil }

// Unwrap implements [vfs.FS]. It hides the file system below: nothing is to be written
// past this one.
func (d *disk) Unwrap() vfs.FS { return nil }

// diskFile is a file that is written.
type diskFile struct {
	vfs.File
	disk *disk
}

// Write implements [vfs.File]. After a part was written, it goes on with the rest.
func (f *diskFile) Write(p []byte) (n int, err error) {
	err = f.disk.write(func() error {
		m, err := f.File.Write(p[n:])
		n += m
		return err
	})
	return n, err
}

// WriteAt implements [vfs.File].
func (f *diskFile) WriteAt(p []byte, at int64) (n int, err error) {
	err = f.disk.write(func() error {
		n, err = f.File.WriteAt(p, at)
		return err
	})
	return n, err
}

// Preallocate implements [vfs.File]. It goes by the number of the file, which may be that of
// another one as soon as the file was closed.
func (f *diskFile) Preallocate(at, length int64) error {
	return f.disk.try(func() error { return f.File.Preallocate(at, length) })
}

// Sync implements [vfs.File].
func (f *diskFile) Sync() error { return f.disk.flush(f.File.Sync) }

// SyncData implements [vfs.File].
func (f *diskFile) SyncData() error { return f.disk.flush(f.File.SyncData) }

// SyncTo implements [vfs.File].
func (f *diskFile) SyncTo(length int64) (full bool, err error) {
	err = f.disk.flush(func() error {
		full, err = f.File.SyncTo(length)
		return err
	})
	return full, err
}

// Close implements [vfs.File]. A file cannot be closed twice, and it was flushed
// before where that matters.
func (f *diskFile) Close() error { return f.disk.flush(f.File.Close) }
