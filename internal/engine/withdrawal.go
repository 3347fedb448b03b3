package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// maxWithdrawals is how many claims may be in doubt. At this number the engine refuses runs until
// some of the claims are withdrawn.
const maxWithdrawals = 100_000

// withdrawInterval is the pause between two rounds over the claims in doubt, withdrawLogInterval
// the shortest between two warnings that a round failed.
const (
	withdrawInterval    = 500 * time.Millisecond
	withdrawLogInterval = 5 * time.Minute
)

// maxConcurrentWithdrawals is how many claims are withdrawn at the same time. One lost connection
// can leave hundreds of claims in doubt. One by one, a distant store would take many seconds
// for them, and until then other requests cannot use the keys.
const maxConcurrentWithdrawals = 32

// withdrawals are the claims in doubt: their replies were lost, and the store may have written
// them. Their requests were refused, so no run will settle them. They must not stay in the
// store: with `on_unknown hold` the keys would be held once the leases have lapsed.
type withdrawals struct {
	engine  *Engine
	inDoubt tally
	warned  time.Time

	mu      sync.Mutex
	pending []*withdrawal
}

// withdrawal is one claim in doubt.
type withdrawal struct {
	claim  idempotency.Claim
	record *idempotency.Record
	since  time.Time
	// claimed reports whether the store had written the claim, done whether the withdrawal is
	// final. Only the one goroutine uses them that withdraws the claim in a round.
	claimed, done bool
}

// add starts to withdraw a claim in the background. The token makes sure that no other claim is
// released.
func (ws *withdrawals) add(c idempotency.Claim, record *idempotency.Record) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.inDoubt.add(1)
	ws.pending = append(ws.pending, &withdrawal{claim: c, record: record, since: time.Now()})
	if len(ws.pending) == 1 {
		ws.engine.goBackground(ws.run)
	}
}

// wait waits until no claim is in doubt.
func (ws *withdrawals) wait(ctx context.Context) error {
	if n, err := ws.inDoubt.wait(ctx); err != nil {
		return fmt.Errorf("%d claims in doubt are not withdrawn: %w", n, err)
	}
	return nil
}

// giveUp gives up the claims in doubt, and returns how many there were.
func (ws *withdrawals) giveUp() (n int) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	n = len(ws.pending)
	ws.inDoubt.add(-n)
	ws.pending = nil
	return n
}

// hasLapsed reports whether the claim has no effect any more, and the store cannot execute it any more.
func (w *withdrawal) hasLapsed() bool {
	effect := max(w.claim.Lease, idempotency.ClaimTimeout)
	if w.claim.Hold || w.claim.MaxAttempts > 0 {
		effect = w.claim.Life()
	}
	return time.Since(w.since) > effect
}

// run tries to withdraw the claims in doubt, in rounds, until none is left.
func (ws *withdrawals) run() {
	for {
		ws.mu.Lock()
		round := slices.Clone(ws.pending)
		ws.mu.Unlock()
		failed := ws.round(round)
		if ws.removeDone(failed) || !pause(ws.engine.ctx, withdrawInterval) {
			return
		}
	}
}

// round tries to withdraw each claim once. If the store fails, round stops early and returns the
// claim at which it failed first.
func (ws *withdrawals) round(round []*withdrawal) (failed *withdrawal) {
	group, ctx := errgroup.WithContext(ws.engine.ctx)
	group.SetLimit(maxConcurrentWithdrawals)
	var once sync.Once
	var why error
	for _, w := range round {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error {
			err := ws.try(w)
			if err != nil {
				once.Do(func() { failed, why = w, err })
			}
			return err
		})
	}
	if group.Wait() != nil && time.Since(ws.warned) >= withdrawLogInterval {
		ws.warned = time.Now()
		ws.engine.log.Warn("a claim in doubt could not be withdrawn yet",
			ws.engine.keyFields(failed.claim.Key, failed.claim.Origin, failed.claim.SealedBy),
			zap.Int("in_doubt", len(round)), zap.Error(why))
	}
	return failed
}

// try tries to withdraw a claim, and sets whether that was final.
func (ws *withdrawals) try(w *withdrawal) error {
	// Within ClaimTimeout nothing is final: the store may still execute the claim, or execute it
	// again if the store's client has sent it twice.
	last := time.Since(w.since) > idempotency.ClaimTimeout
	released, err := ws.release(w)
	if err != nil {
		return err
	}
	w.claimed = w.claimed || released
	if w.done = last; last {
		ws.engine.log.Info("withdrew a claim whose reply was lost",
			ws.engine.keyFields(w.claim.Key, w.claim.Origin, w.claim.SealedBy),
			zap.String("execution_id", w.claim.ExecutionID), zap.Bool("was_claimed", w.claimed))
	}
	return nil
}

// release releases the claim. It returns false if there was nothing to release: the store has not
// executed the claim, at least not yet, or the record is damaged.
func (ws *withdrawals) release(w *withdrawal) (released bool, err error) {
	err = ws.engine.settle(ws.engine.ctx, w.claim.Key, w.record, idempotency.Settlement{
		State:           idempotency.Released,
		Retention:       w.claim.Retention,
		AnswerRetention: w.claim.Lease,
		Withdraws:       true,
	})
	var unreadable *idempotency.UnreadableError
	if errors.Is(err, idempotency.ErrGone) || errors.Is(err, idempotency.ErrFenced) || errors.As(err, &unreadable) {
		return false, nil
	}
	return err == nil, err
}

// removeDone removes the claims that are done or have lapsed. It reports whether none is left. The claim
// that failed is last in the next round: perhaps only its key cannot be reached, and the others must
// not wait for it.
func (ws *withdrawals) removeDone(failed *withdrawal) (empty bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	before := len(ws.pending)
	ws.pending = slices.DeleteFunc(ws.pending, func(w *withdrawal) bool {
		return w.done || w.hasLapsed()
	})
	if at := slices.Index(ws.pending, failed); at >= 0 {
		ws.pending = append(slices.Delete(ws.pending, at, at+1), failed)
	}
	ws.inDoubt.add(len(ws.pending) - before)
	return len(ws.pending) == 0
}
