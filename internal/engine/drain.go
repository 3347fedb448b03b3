package engine

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// tally counts work in progress, and tells when none is left. The lock of the engine
// guards it.
type tally struct {
	n    int
	zero chan struct{} // closed when n falls to 0; nil while nobody waits for that
}

func (t *tally) add(n int) {
	if t.n += n; t.n == 0 && t.zero != nil {
		close(t.zero)
		t.zero = nil
	}
}

// addUnsettled changes the count of runs in flight and of ends that are not stored yet.
func (e *Engine) addUnsettled(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unsettled.add(n)
}

// Drain waits until no run is in flight and every end is stored. Then it waits until
// the claims in doubt are withdrawn, but only as long as that takes with a store
// that answers: the process is about to end, and then these claims lapse by
// themselves. If something is left when the time or the context is over, the error
// says what, and wraps that of the context.
//
// What a store in this process keeps ends with the process. So it waits for the runs only,
// and not until there is room for what they have ended with: that is given up.
func (e *Engine) Drain(ctx context.Context) error {
	if e.inProcess {
		e.giveUp()
	}
	if err := e.awaitSettled(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, idempotency.ClaimPatience+withdrawPause+e.storeTimeout())
	defer cancel()
	return e.awaitWithdrawn(ctx)
}

// Abandon ends all runs in flight as unknown, for a process that exits before they have
// ended, and lets no more runs begin. It waits for the store as [Engine.Drain] does, for the
// time of one operation; what the store has not taken by then is given up, and logged.
func (e *Engine) Abandon() error {
	e.mu.Lock()
	e.abandoned = true
	for _, f := range e.flights {
		if f.own != nil {
			e.goBackground(f.own.abandon)
		}
	}
	e.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), e.storeTimeout())
	defer cancel()
	err := e.Drain(ctx)
	if err != nil {
		e.giveUp()
		ctx, cancel := context.WithTimeout(context.Background(), e.storeTimeout())
		defer cancel()
		_ = e.awaitSettled(ctx)
	}
	return err
}

// abandon ends the run as unknown, if it has not ended.
func (r *Run) abandon() {
	if !r.lease.end() {
		return
	}
	// The caller may still set facts and holder of its own run.
	own := &Run{
		engine: r.engine, flight: r.flight, claim: r.claim, policy: r.policy, record: r.record,
		facts: []zap.Field{zap.NamedError("error", errExited)},
	}
	own.wasLost.Store(r.wasLost.Load())
	_, _ = own.end(idempotency.End{How: idempotency.Unknown}) // it is logged
}

var errExited = errors.New("the process exited before the run had ended")

// Finish waits until nothing is left to do: no run, no end to be stored, no claim in
// doubt. If something is left when the context ends, the error says what, and wraps
// that of the context.
func (e *Engine) Finish(ctx context.Context) error {
	if err := e.awaitSettled(ctx); err != nil {
		return err
	}
	return e.awaitWithdrawn(ctx)
}

// Idle reports whether nothing at all is left to do. Only where no new request can
// begin does it stay so.
func (e *Engine) Idle() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.unsettled.n == 0 && e.inDoubt.n == 0
}

func (e *Engine) awaitSettled(ctx context.Context) error {
	if n, err := e.await(ctx, &e.unsettled); err != nil {
		return fmt.Errorf("%d runs or their responses are unsettled: %w", n, err)
	}
	return nil
}

func (e *Engine) awaitWithdrawn(ctx context.Context) error {
	if n, err := e.await(ctx, &e.inDoubt); err != nil {
		return fmt.Errorf("%d claims in doubt are not withdrawn: %w", n, err)
	}
	return nil
}

// await waits until a tally is 0. With an error, n is what was left.
func (e *Engine) await(ctx context.Context, t *tally) (n int, err error) {
	for {
		n, zero := e.left(t)
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

// left returns what a tally counts now, and what is closed when that is 0.
func (e *Engine) left(t *tally) (n int, zero <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t.n > 0 && t.zero == nil {
		t.zero = make(chan struct{})
	}
	return t.n, t.zero
}
