package file

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
)

// Open opens the store in the directory with this path. It creates the directory if it
// is missing. It reads no records, so that it is fast however many there are. If another
// process has the store open, if the directory or a file in its place belongs to another
// program, or if the store is damaged, the error names it and all is left as it is. An
// existing store whose disk is full is unavailable until there is room, as one whose disk
// fills up later.
func Open(path string, logger *zap.Logger) (*Store, error) {
	return openIn(vfs.Default, path, logger)
}

func openIn(fs vfs.FS, path string, logger *zap.Logger) (*Store, error) {
	place, err := takePlace(path, fs, logger)
	if err != nil {
		return nil, err
	}
	s := &Store{path: path, fs: fs, place: place, logger: logger}
	if s.database, err = s.openDatabase(); isSpace(err) && !place.fresh {
		s.database = notOpened(path, fs, fmt.Errorf("%w: %w", ErrNoSpace, err))
	} else if err != nil {
		place.leave()
		return nil, err
	}
	if err := place.finish(); err != nil {
		s.database.run()
		_ = s.database.close() // the first error is the one to report
		place.leave()
		return nil, err
	}
	return start(s), nil
}

// openDatabase opens the database in the store's directory. It looks at an existing one
// first, so that one which is refused has certainly not changed.
func (s *Store) openDatabase() (*database, error) {
	if !s.place.fresh {
		if err := inspect(s.path, s.fs, s.logger); err != nil {
			return nil, s.explain(err)
		}
	}
	d, err := openDatabase(s.path, s.fs, s.place.fresh, s.logger)
	if err != nil {
		return nil, s.explain(err)
	}
	d.bodies.check = s.place.check
	return d, nil
}

// explain tells a store that is damaged from one that could not be opened this time: that
// is what the system says by its own errors, but for a file that is missing.
func (s *Store) explain(err error) error {
	_, system := errors.AsType[syscall.Errno](err)
	if system && !errors.Is(err, fs.ErrNotExist) || errors.Is(err, errReadOnly) {
		return fmt.Errorf("store directory %s: %w", s.path, err)
	}
	return damaged(s.path, err)
}
