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

// errUnchanged makes bbolt roll back a write transaction in which nothing has
// changed: a commit would flush the disk for nothing.
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

// transact runs f in a transaction of bbolt. bbolt reads pages through a memory map,
// and the pages have no checksums. If the file is damaged, bbolt panics; if the
// file has become shorter, the processor reports a fault. Both become an error here.
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
		// After a panic bbolt rolls back, and a transaction that is rolled back has
		// no database any more. If the rollback has panicked too, or the panic came
		// before the transaction began, some locks of bbolt are still locked. The
		// next call would wait for them for ever.
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

// panicError is a panic of bbolt, or a fault of the processor, as an error.
type panicError struct {
	reason any
	stack  []byte
}

// Error implements error.
func (e *panicError) Error() string {
	return fmt.Sprintf("it is damaged: %v", e.reason)
}

// guard runs f. If f panics, or reads mapped memory that the file does not have any
// more, guard returns a [panicError].
func guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if reason := recover(); reason != nil {
			err = &panicError{reason: reason, stack: debug.Stack()}
		}
	}()
	return f()
}
