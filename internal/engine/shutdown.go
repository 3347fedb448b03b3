package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// tally counts work in progress. Unlike a sync.WaitGroup, it can be read, and waited for with a
// context.
type tally struct {
	mu   sync.Mutex
	n    int
	zero chan struct{} // closed when n falls to 0; nil without a waiter
}

func (t *tally) add(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n += n; t.n == 0 && t.zero != nil {
		close(t.zero)
		t.zero = nil
	}
}

func (t *tally) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n
}

// wait waits until the count is 0. Its error is that of ctx; left is then the count.
func (t *tally) wait(ctx context.Context) (left int, err error) {
	for {
		t.mu.Lock()
		if t.n > 0 && t.zero == nil {
			t.zero = make(chan struct{})
		}
		n, zero := t.n, t.zero
		t.mu.Unlock()
		if n == 0 {
			return 0, nil
		}
		select {
		case <-zero:
		case <-ctx.Done():
			return n, ctx.Err()
		}
	}
}

// Drain waits until every run has ended and is settled, for a process that is about to exit. Then
// it waits until the claims in doubt are withdrawn, but no longer than that takes with a
// store that answers: after the exit they lapse. If something is left when that time or the
// context ends, the error describes it, and wraps that of the context.
//
// With an inProcess store, Drain stops the retries of settlements for which the store has no
// room: the process loses them anyway.
func (e *Engine) Drain(ctx context.Context) error {
	if e.inProcess {
		e.stopRetries(errExiting)
	}
	if err := e.awaitSettled(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, idempotency.ClaimTimeout+withdrawInterval+e.Timeout())
	defer cancel()
	return e.withdrawals.wait(ctx)
}

// Finish waits until every run is settled and no claim is in doubt. If something is left when the
// context ends, the error describes it, and wraps that of the context.
func (e *Engine) Finish(ctx context.Context) error {
	if err := e.awaitSettled(ctx); err != nil {
		return err
	}
	return e.withdrawals.wait(ctx)
}

func (e *Engine) awaitSettled(ctx context.Context) error {
	for _, t := range []*tally{&e.unsettled, &e.observed, &e.inner} {
		if n, err := t.wait(ctx); err != nil {
			return fmt.Errorf("%d runs are not settled: %w", n, err)
		}
	}
	return nil
}

// Idle reports whether every run is settled and no claim is in doubt. It is final once no new
// request can call [Engine.Claim]: a settlement that leaves a claim in doubt counts it first.
func (e *Engine) Idle() bool {
	return e.unsettled.count() == 0 && e.observed.count() == 0 && e.inner.count() == 0 && e.withdrawals.inDoubt.count() == 0
}

// failing records since when every settlement has failed.
type failing struct {
	since atomic.Pointer[time.Time] // nil after a success
}

func (f *failing) note(failed bool) {
	switch since := f.since.Load(); {
	case !failed && since != nil:
		f.since.Store(nil)
	case failed && since == nil:
		now := time.Now()
		f.since.CompareAndSwap(nil, &now)
	}
}

// FailingSince returns since when every settlement has failed; ok is false if the last one has not.
// Renewals do not count, because a full store still renews leases.
func (e *Engine) FailingSince() (since time.Time, ok bool) {
	if since := e.failing.since.Load(); since != nil {
		return *since, true
	}
	return time.Time{}, false
}

// retries is a context that ends with a reason.
type retries struct {
	context.Context
	stop context.CancelCauseFunc
}

func (e *Engine) startRetries() (before *retries) {
	next := new(retries)
	next.Context, next.stop = context.WithCancelCause(e.ctx)
	return e.retries.Swap(next)
}

func (e *Engine) stopRetries(why error) { e.retries.Load().stop(why) }

// GiveUp gives up the settlements that could not be stored, and the claims in doubt, for a reason. It
// returns how many there were. Runs that end later are tried again.
func (e *Engine) GiveUp(why error) (n int) {
	n = int(e.retrying.Load()) + e.withdrawals.giveUp()
	e.startRetries().stop(why)
	return n
}

// Abandon settles all runs in flight as unknown, for a process that exits before they end, and
// refuses new ones. It drains for the time of one operation; after that, it gives up and logs
// the settlements that are not stored.
func (e *Engine) Abandon() error {
	e.flights.mu.Lock()
	e.flights.exiting = true
	for _, f := range e.flights.byKey {
		if f.run != nil {
			e.goBackground(f.run.abandon)
		}
	}
	e.flights.mu.Unlock()
	ctx, cancel := e.withTimeout(context.Background(), e.Timeout())
	defer cancel()
	err := e.Drain(ctx)
	if err != nil {
		e.stopRetries(errExiting)
		ctx, cancel := e.withTimeout(context.Background(), e.Timeout())
		defer cancel()
		_ = e.awaitSettled(ctx)
	}
	return err
}

// abandon settles the run as unknown, if it has not ended.
func (r *Run) abandon() {
	_, _ = r.Settle(idempotency.End{How: idempotency.Unknown}, nil, zap.NamedError("error", errExited)) // Settle logs it
}

// errExiting is why settlements are given up.
var errExiting = errors.New("the process stops")

var errExited = errors.New("the process exited before the run had ended")
