package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// tally counts work in progress. Unlike a sync.WaitGroup it can be read, and waited for with
// a context.
type tally struct {
	mu   sync.Mutex
	n    int
	zero chan struct{} // closed when n falls to 0; nil while nothing waits for that
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

// wait waits until the count is 0. With an error, left is what it was at last.
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

// Drain waits until no run is in flight and every end is stored. Then it waits until
// the claims in doubt are withdrawn, but only as long as that takes with a store
// that answers: the process is about to end, and then these claims lapse by
// themselves. If something is left when the time or the context is over, the error
// says what, and wraps that of the context.
//
// What a store in this process keeps ends with the process. So Drain waits for the runs only,
// and not until there is room for what they have ended with: that is given up.
func (e *Engine) Drain(ctx context.Context) error {
	if e.inProcess {
		e.stopRetries()
	}
	if err := e.awaitSettled(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, idempotency.ClaimTimeout+withdrawInterval+e.Timeout())
	defer cancel()
	return e.withdrawals.wait(ctx)
}

// Finish waits until nothing is left to do: no run, no end to be stored, no claim in
// doubt. If something is left when the context ends, the error says what, and wraps
// that of the context.
func (e *Engine) Finish(ctx context.Context) error {
	if err := e.awaitSettled(ctx); err != nil {
		return err
	}
	return e.withdrawals.wait(ctx)
}

func (e *Engine) awaitSettled(ctx context.Context) error {
	for _, t := range []*tally{&e.unsettled, &e.observed} {
		if n, err := t.wait(ctx); err != nil {
			return fmt.Errorf("%d runs or their responses are unsettled: %w", n, err)
		}
	}
	return nil
}

// Idle reports whether nothing at all is left to do. It stays so only while no new request
// can begin. What is settled leaves no claim in doubt behind that it does not count.
func (e *Engine) Idle() bool {
	return e.unsettled.count() == 0 && e.observed.count() == 0 && e.withdrawals.inDoubt.count() == 0
}

// Abandon ends all runs in flight as unknown, for a process that exits before they have
// ended, and lets no more runs begin. It waits for the store as [Engine.Drain] does, for the
// time of one operation; what the store has not taken by then is given up, and logged.
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
		e.stopRetries()
		ctx, cancel := e.withTimeout(context.Background(), e.Timeout())
		defer cancel()
		_ = e.awaitSettled(ctx)
	}
	return err
}

// abandon ends the run as unknown, if it has not ended.
func (r *Run) abandon() {
	_, _ = r.Settle(idempotency.End{How: idempotency.Unknown}, nil, zap.NamedError("error", errExited)) // Settle logs it
}

var errExited = errors.New("the process exited before the run had ended")
