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

// bbolt has a group commit of its own, DB.Batch. It is not used, for these reasons:
//
//   - It waits for more operations before it begins: 10 ms, by default. With a
//     shorter wait, operations that come one by one get a transaction each, because
//     the next group does not gather while the one before is flushed. The committer
//     waits for nothing, and what comes during a flush is the next group.
//   - It takes no context. A caller that gives up could not say whether its change
//     will be made, and the claim would always be in doubt.
//   - If one function returns an error, such as [idempotency.ErrFenced], DB.Batch
//     rolls back, and begins again for all the others.
const (
	// queued is how many operations fit into the queue. With more of them, callers
	// wait for room.
	queued = 1024
	// groupBytes is how many bytes of responses go into one transaction. Beyond
	// that, to share the flush saves little time, but costs memory.
	groupBytes = 8 << 20
)

// operation is one write, applied in a transaction that it shares with others.
type operation struct {
	// apply makes the change. An error goes to the caller, and apply must then have
	// changed nothing, because the other operations are still committed. Only an
	// [abortError] ends the whole transaction. apply may be called again: if one
	// operation meets damage, the others are repeated without it.
	apply func(t *tables) error
	// applied, if it is set, is called after the commit.
	applied func()
	// size is about how many bytes of responses it writes.
	size int

	ctx   context.Context
	state atomic.Int32
	err   error
	done  chan result // has room for the one result that the committer sends
}

// result is what the committer tells the caller of an operation.
type result struct {
	err error
	// mayBeApplied says that the change may be on the disk although there is an
	// error. When a flush fails, nobody knows how much of it was written.
	mayBeApplied bool
}

// The states of an operation. From waiting, either the committer begins it or its
// caller gives it up, never both.
const (
	waiting int32 = iota
	begun
	givenUp
)

// commit passes an operation to the committer, and returns when the change is on the
// disk. With an error, mayBeApplied says whether the change may have been made all
// the same, or may still be made.
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
		// The committer has carried it out just before it ended, or it was queued
		// after that.
		select {
		case out := <-op.done:
			return out.mayBeApplied, out.err
		default:
			return false, idempotency.ErrClosed
		}
	}
}

// commitQueued is the committer. It waits for the first operation of a group, and for
// nothing else: while one group is flushed, the next one gathers in the queue.
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

// gather takes operations from the queue until it is empty or the group is large
// enough. It leaves out those whose callers have given up.
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

// commitGroup carries out a group in one transaction and tells the callers. If one
// operation meets damage in the file, every operation is carried out again in a
// transaction of its own, so that the others can succeed.
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

// abortError says that a change of the tables failed. The transaction may be half
// changed, so it must not be committed.
type abortError struct{ error }

// Unwrap returns the failure.
func (e *abortError) Unwrap() error { return e.error }

// ErrNoSpace says that the file cannot grow, because there is no room. What is in the
// file can still be read.
var ErrNoSpace = errors.New("there is no space left for the store file")

// spaceErrors are the errors of a full disk, of a quota, and of the limit of a process
// for the size of its files.
var spaceErrors = []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG}

// failure turns the error of a transaction into the error for the caller.
func (s *Store) failure(err error) error {
	for _, full := range spaceErrors {
		// If the file cannot grow, bbolt keeps only the text of the error.
		if errors.Is(err, full) || strings.Contains(err.Error(), full.Error()) {
			return fmt.Errorf("%w: %s: %w", ErrNoSpace, s.path, err)
		}
	}
	return fmt.Errorf("store file %s: %w", s.path, err)
}
