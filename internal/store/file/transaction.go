package file

import (
	"errors"
	"fmt"
	"runtime/debug"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// errUnchanged ends a write transaction in which nothing was written, so that
// nothing is flushed.
var errUnchanged = errors.New("nothing was changed")

// read runs f in a read transaction.
func (s *Store) read(f func(t *tables) error) error {
	return s.transact(false, func(tx *bolt.Tx) error {
		t, err := s.tables(tx)
		if err != nil {
			return err
		}
		return f(t)
	})
}

// write runs f in a write transaction and returns when it is on the disk.
func (s *Store) write(f func(t *tables) error) error {
	err := s.transact(true, func(tx *bolt.Tx) error {
		t, err := s.tables(tx)
		if err != nil {
			return err
		}
		if err := f(t); err != nil {
			return err
		}
		if !t.changed {
			return errUnchanged
		}
		return nil
	})
	if err == nil || errors.Is(err, errUnchanged) {
		return nil
	}
	if _, damaged := errors.AsType[*idempotency.UnreadableError](err); damaged || errors.Is(err, idempotency.ErrClosed) {
		return err
	}
	return s.failure(err)
}

// transact runs f in a transaction of bbolt. Pages are read through a memory
// map without checksums: on a damaged or shortened file bbolt panics, or the
// processor faults. Both become an error here.
func (s *Store) transact(write bool, f func(*bolt.Tx) error) error {
	run := s.db.View
	if write {
		run = s.db.Update
		if broken := s.brokenWrites.Load(); broken != nil {
			return broken
		}
	}
	if broken := s.broken.Load(); broken != nil {
		return broken
	}
	var entered *bolt.Tx
	err := guard(func() error {
		return run(func(tx *bolt.Tx) error {
			entered = tx
			return f(tx)
		})
	})
	if panicked, ok := errors.AsType[*panicError](err); ok {
		unreadable := &idempotency.UnreadableError{Where: "store file " + s.path, Err: panicked}
		s.logger.Error("the store file is damaged", zap.String("path", s.path), zap.Error(panicked), zap.ByteString("stack", panicked.stack))
		// bbolt rolls back on a panic. Where that failed too, or the panic was
		// before all that, it still holds locks that the next call would wait
		// for: that of the writers at least.
		switch {
		case entered != nil && entered.DB() == nil:
		case entered != nil && write:
			s.brokenWrites.Store(unreadable)
		default:
			s.broken.Store(unreadable)
		}
		return unreadable
	}
	if errors.Is(err, bolterrors.ErrDatabaseNotOpen) {
		return idempotency.ErrClosed
	}
	return err
}

// panicError is what a damaged file made bbolt, or the processor, say.
type panicError struct {
	reason any
	stack  []byte
}

// Error implements error.
func (e *panicError) Error() string {
	return fmt.Sprintf("it is damaged: %v", e.reason)
}

// guard runs f and returns its panic, or its fault in mapped memory, as a
// [panicError].
func guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if reason := recover(); reason != nil {
			err = &panicError{reason: reason, stack: debug.Stack()}
		}
	}()
	return f()
}
