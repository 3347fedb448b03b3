package file

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"go.uber.org/zap"
)

// lockPatience is how long Open waits until another process has closed the file.
// During a restart, the old process may end a little after the new one begins.
const lockPatience = time.Second

// Open opens the store in the file with this path. It creates the file and its
// directories if they are missing. It reads no records, so that it is fast however
// many there are. If another process has the file open, if the file belongs to
// another program, or if it is damaged, the error names it and the file is left as
// it is.
func Open(path string, logger *zap.Logger) (*Store, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("directory of store file %s: %w", path, err)
	}
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Size() > 0 {
		if err := inspect(path, info.Size(), logger); err != nil {
			return nil, err
		}
	}
	db, file, err := openDatabase(path, false)
	if err != nil {
		return nil, explain(path, err)
	}
	if err := initialise(db); err != nil {
		_ = closeDatabase(db, file) // the first error is the one to report
		return nil, fmt.Errorf("store file %s: %w", path, err)
	}
	syncDirectory(dir)
	if err := writeHolder(path); err != nil {
		// Without it, the error of a second process does not name this one. That is
		// no reason to fail.
		logger.Warn("the process is not noted beside its store file", zap.String("path", path), zap.Error(err))
	}
	return start(path, db, file, logger), nil
}

// openDatabase lets bbolt open and lock the file. It also returns the file, to be
// closed if bbolt panics and cannot do that itself.
func openDatabase(path string, readOnly bool) (db *bolt.DB, file *os.File, err error) {
	err = guard(func() (err error) {
		db, err = bolt.Open(path, 0o600, &bolt.Options{
			Timeout:      lockPatience,
			ReadOnly:     readOnly,
			FreelistType: bolt.FreelistMapType, // the default is slow when many pages are free
			OpenFile: func(name string, flag int, mode os.FileMode) (*os.File, error) {
				f, err := os.OpenFile(name, flag, mode)
				file = f
				return f, err
			},
		})
		return err
	})
	if _, panicked := errors.AsType[*panicError](err); panicked {
		letGo(file)
	}
	return db, file, err
}

// closeDatabase closes the file, even if the file is damaged and bbolt panics.
func closeDatabase(db *bolt.DB, file *os.File) error {
	err := guard(db.Close)
	if _, panicked := errors.AsType[*panicError](err); panicked {
		letGo(file)
	}
	return err
}

// letGo unlocks and closes a file that bbolt cannot close any more. The memory map
// of the file stays.
func letGo(file *os.File) {
	unlock(file)
	_ = file.Close()
}

// explain says why bbolt did not open a file, and what the user can do.
func explain(path string, err error) error {
	const advice = "it was left as it is: name another path, or move it away"
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return fmt.Errorf("store file %s is in use by %s: a file serves one process; stop that one, give this one a path of its own, or use `store redis`", path, holder(path))
	case errors.Is(err, bolterrors.ErrInvalid):
		return fmt.Errorf("file %s is no store of caddy-dedup; %s", path, advice)
	case errors.Is(err, bolterrors.ErrVersionMismatch):
		return fmt.Errorf("file %s is a bbolt database of another version; %s", path, advice)
	case errors.Is(err, bolterrors.ErrChecksum):
		return damaged(path, "neither of its two meta pages is whole")
	default:
		return fmt.Errorf("store file %s: %w", path, err)
	}
}

func damaged(path, reason string) error {
	return fmt.Errorf("store file %s is damaged: %s; it was left as it is: restore it from a backup, or move it away to begin with an empty one", path, reason)
}

// minimalSize is the size of the two pages with which every database begins.
const minimalSize = 2 * 4096

// inspect checks an existing file: whether its structure is sound, and whether this
// version knows its layout. It opens the file for reading only, so that a file which
// is refused has certainly not changed.
func inspect(path string, size int64, logger *zap.Logger) error {
	if size < minimalSize {
		return fmt.Errorf("file %s has %d bytes, too few for a store of caddy-dedup: it is damaged or no store; it was left as it is: name another path, or move it away", path, size)
	}
	db, file, err := openDatabase(path, true)
	if err != nil {
		return explain(path, err)
	}
	defer func() { _ = closeDatabase(db, file) }() // nothing was written, so nothing can be lost
	var lostMeta bool
	if err := guard(func() (err error) {
		lostMeta, err = checkStructure(file, int64(db.Info().PageSize))
		return err
	}); err != nil {
		return damaged(path, err.Error())
	}
	if lostMeta {
		logger.Warn("one of the store file's two meta pages is damaged: what was written last may be lost", zap.String("path", path))
	}
	found, err := layout(db)
	switch {
	case err != nil:
		return damaged(path, err.Error())
	case found == layoutForeign:
		return fmt.Errorf("file %s is a bbolt database of another program; it was left as it is: name another path", path)
	case found == layoutIncomplete:
		return damaged(path, "one of its tables is missing")
	case found != format && found != layoutNone:
		return fmt.Errorf("store file %s has format %q, and this version reads format %q; it was left as it is: use the version that wrote it, or name another path", path, found, format)
	}
	return nil
}

// What layout returns if the file has no label of a format.
const (
	layoutNone       = "none"
	layoutForeign    = "foreign"
	layoutIncomplete = "incomplete"
)

// layout returns the label of the format of the file.
func layout(db *bolt.DB) (found string, err error) {
	err = guard(func() error {
		return db.View(func(tx *bolt.Tx) error {
			first, _ := tx.Cursor().First()
			meta := tx.Bucket(metaBucket)
			switch {
			case first == nil:
				found = layoutNone
			case meta == nil:
				found = layoutForeign
			case string(meta.Get(formatKey)) != format:
				found = string(meta.Get(formatKey))
			case tx.Bucket(recordsBucket) == nil || tx.Bucket(responsesBucket) == nil || tx.Bucket(expiriesBucket) == nil:
				found = layoutIncomplete
			default:
				found = format
			}
			return nil
		})
	})
	return found, err
}

// initialise gives an empty database the layout of this version.
func initialise(db *bolt.DB) error {
	found, err := layout(db)
	if err != nil || found != layoutNone {
		return err
	}
	return guard(func() error {
		return db.Update(func(tx *bolt.Tx) error {
			for _, name := range [][]byte{recordsBucket, responsesBucket, expiriesBucket} {
				if _, err := tx.CreateBucket(name); err != nil {
					return err
				}
			}
			meta, err := tx.CreateBucket(metaBucket)
			if err != nil {
				return err
			}
			return meta.Put(formatKey, []byte(format))
		})
	})
}

// syncDirectory flushes the directory, so that a new file is still there after a crash
// of the machine. Not every system can do that, so an error is ignored.
func syncDirectory(dir string) {
	if d, err := os.Open(dir); err == nil {
		_ = d.Sync()
		_ = d.Close()
	}
}

// shut ends the sweeper, lets the committer carry out what is queued, and closes the
// file.
func (s *Store) shut() error {
	close(s.closing)
	<-s.swept
	<-s.committed
	removeHolder(s.path)
	if s.broken.Load() != nil || s.brokenWrites.Load() != nil {
		letGo(s.file) // bbolt would wait for its own locks for ever
		return nil    //nolint:nilerr // the callers that met the damage have its error
	}
	return closeDatabase(s.db, s.file)
}
