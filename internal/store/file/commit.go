package file

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

const (
	// queued is how many operations wait without their callers being held up.
	queued = 1024
	// groupBytes is how much of responses goes into one transaction: beyond it
	// a shared flush saves little, and memory would grow with the queue.
	groupBytes = 8 << 20
)

// operation is one write, applied in a transaction that it shares with others.
type operation struct {
	// apply makes the change. Its error is the caller's and must leave the
	// tables as they were; an error of the tables themselves ([abortError])
	// ends the whole transaction. It is called again where a transaction is
	// repeated for other operations' sake.
	apply func(t *tables) error
	// applied, if set, is called after the commit.
	applied func()
	// size is about how many bytes it writes.
	size int

	ctx   context.Context
	state atomic.Int32
	err   error
	done  chan result // takes one, from the committer
}

// result is what the committer says of an operation.
type result struct {
	err error
	// mayBeApplied says of an error that the change may be on the disk all the
	// same: a flush failed, which does not say what of it was written.
	mayBeApplied bool
}

// The states of an operation: either the committer begins it or its caller
// gives it up, never both.
const (
	waiting int32 = iota
	begun
	givenUp
)

// commit has the committer carry out an operation and returns when it is on the
// disk. With an error, mayBeApplied says whether the change may be made, or be
// about to be made, all the same.
func (s *Store) commit(ctx context.Context, op *operation) (mayBeApplied bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	op.ctx, op.done = ctx, make(chan result, 1)
	select {
	case <-s.closing:
		return false, idempotency.ErrClosed
	default:
	}
	select {
	case s.queue <- op:
	case <-s.closing:
		return false, idempotency.ErrClosed
	case <-ctx.Done():
		return false, ctx.Err()
	}
	select {
	case out := <-op.done:
		return out.mayBeApplied, out.err
	case <-ctx.Done():
		return !op.state.CompareAndSwap(waiting, givenUp), ctx.Err()
	case <-s.committed:
		// It was carried out just before, or it was queued too late.
		select {
		case out := <-op.done:
			return out.mayBeApplied, out.err
		default:
			return false, idempotency.ErrClosed
		}
	}
}

// commitQueued is the committer. It waits for nothing but the first operation:
// while one group is flushed, the next one gathers in the queue.
func (s *Store) commitQueued() {
	defer close(s.committed)
	for {
		select {
		case op := <-s.queue:
			s.commitGroup(s.gather(op))
		case <-s.closing:
			for {
				select {
				case op := <-s.queue:
					s.commitGroup(s.gather(op))
				default:
					return
				}
			}
		}
	}
}

// gather takes what is queued, up to the bounds of one group, without those
// whose callers have given up.
func (s *Store) gather(first *operation) []*operation {
	var group []*operation
	size := 0
	for op := first; ; {
		if op.ctx.Err() == nil && op.state.CompareAndSwap(waiting, begun) {
			group = append(group, op)
			size += op.size
		} else {
			op.done <- result{err: op.ctx.Err()}
		}
		if size >= groupBytes || len(group) == queued {
			return group
		}
		select {
		case op = <-s.queue:
		default:
			return group
		}
	}
}

// commitGroup carries out a group in one transaction and tells its callers.
// Where one operation of it runs into damage, the others are carried out
// without it.
func (s *Store) commitGroup(group []*operation) {
	if len(group) == 0 {
		return
	}
	err := s.write(func(t *tables) error {
		for _, op := range group {
			op.err = op.apply(t)
			if abort, ok := errors.AsType[*abortError](op.err); ok {
				return abort
			}
		}
		return nil
	})
	if _, damaged := errors.AsType[*idempotency.UnreadableError](err); damaged && len(group) > 1 {
		for i := range group {
			s.commitGroup(group[i : i+1])
		}
		return
	}
	for _, op := range group {
		if err != nil {
			op.done <- result{err, true}
			continue
		}
		if op.err == nil && op.applied != nil {
			op.applied()
		}
		op.done <- result{err: op.err}
	}
}

// abortError is a failure of the tables themselves: the transaction that it
// happened in may be half changed and is not committed.
type abortError struct{ error }

// Unwrap returns the failure.
func (e *abortError) Unwrap() error { return e.error }

// ErrNoSpace says that there is no room for the file to grow. What is in it can still be
// read.
var ErrNoSpace = errors.New("there is no space left for the store file")

// spaceErrors are what a disk, a quota and a limit of the process say when
// there is no room.
var spaceErrors = []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG}

// failure is the caller's form of a transaction's error.
func (s *Store) failure(err error) error {
	for _, full := range spaceErrors {
		// bbolt passes the error of a failed growth on as text.
		if errors.Is(err, full) || strings.Contains(err.Error(), full.Error()) {
			return fmt.Errorf("%w: %s: %w", ErrNoSpace, s.path, err)
		}
	}
	return fmt.Errorf("store file %s: %w", s.path, err)
}
