package engine

import (
	"context"
	"fmt"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// tally counts work in progress and tells when there is none. It is used under
// the engine's lock.
type tally struct {
	n    int
	zero chan struct{} // closed when n falls to 0; nil while it is 0
}

// add changes the count, and reports whether it left or reached 0.
func (t *tally) add(n int) (changed bool) {
	before := t.n
	t.n += n
	switch {
	case before == 0 && t.n > 0:
		t.zero = make(chan struct{})
	case before > 0 && t.n == 0:
		close(t.zero)
		t.zero = nil
	default:
		return false
	}
	return true
}

// addUnsettled counts runs, and responses still to be stored.
func (e *Engine) addUnsettled(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unsettled.add(n)
	e.addBusyLocked(n)
}

// addBusyLocked counts all work that must outlive the requests.
func (e *Engine) addBusyLocked(n int) {
	switch {
	case !e.busy.add(n):
	case n > 0 && e.options.OnBusy != nil:
		e.options.OnBusy()
	case n < 0 && e.options.OnIdle != nil:
		go e.options.OnIdle() // it may close the engine, which waits for its callers
	}
}

// Drain waits until no run is in flight and no response is left to be stored, or
// until the context ends, whose error it then returns. Claims in doubt it gives
// the time in which a store that answers lets them be withdrawn: without their
// process they lapse with their lease.
func (e *Engine) Drain(ctx context.Context) error {
	if n, err := e.wait(ctx, &e.unsettled); err != nil {
		return fmt.Errorf("%d runs or their responses are unsettled: %w", n, err)
	}
	ctx, cancel := context.WithTimeout(ctx, idempotency.ClaimPatience+withdrawPause+e.options.Timeout)
	defer cancel()
	if n, err := e.wait(ctx, &e.busy); err != nil {
		return fmt.Errorf("%d claims in doubt are not withdrawn: %w", n, err)
	}
	return nil
}

func (e *Engine) wait(ctx context.Context, t *tally) (n int, err error) {
	for {
		e.mu.Lock()
		n, zero := t.n, t.zero
		e.mu.Unlock()
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
