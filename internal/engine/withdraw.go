package engine

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"go.uber.org/zap"
)

// maxWithdrawals is how many claims may be in doubt. When there are so many, no more
// runs begin until some of the claims are withdrawn.
const maxWithdrawals = 100_000

// withdrawPause is the pause between two rounds over the claims in doubt.
const withdrawPause = 500 * time.Millisecond

// withdrawAtOnce is how many claims are withdrawn at the same time. One reply that is lost
// can leave some hundred claims in doubt, for which a store that is far away would need
// many seconds, one after the other. All that time they keep their keys from others.
const withdrawAtOnce = 32

// withdrawal is a claim in doubt: its reply was lost, and the store may have written it.
// Its request was refused, so nobody will settle the claim. It must not stay in the
// store: under `unknown hold` nobody could use the key any more once the lease has
// lapsed.
type withdrawal struct {
	claim  idempotency.Claim
	record *idempotency.Record
	since  time.Time
	// Only the goroutine that withdraws it uses these, one in each round. claimed says that the claim was
	// found in the store, done that it need not be withdrawn again.
	claimed, done bool
}

// withdraw releases a claim in doubt, in the background. Its token makes sure that no
// other claim is released.
func (e *Engine) withdraw(c idempotency.Claim, record *idempotency.Record) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.inDoubt.add(1)
	e.withdrawals = append(e.withdrawals, &withdrawal{claim: c, record: record, since: time.Now()})
	if len(e.withdrawals) == 1 {
		e.goBackground(e.withdrawAll)
	}
}

// withdrawAll tries to withdraw the claims in doubt, round after round, until none is
// left.
func (e *Engine) withdrawAll() {
	for {
		e.mu.Lock()
		round := slices.Clone(e.withdrawals)
		e.mu.Unlock()
		failed := e.withdrawRound(round)
		if e.withdrawn(failed) || !pause(e.ctx, withdrawPause) {
			return
		}
	}
}

// withdrawRound tries to withdraw each claim once. If the store cannot be asked, it
// ends early, and returns the first claim at which that happened.
func (e *Engine) withdrawRound(round []*withdrawal) (failed *withdrawal) {
	inDoubt := len(round)
	var mu sync.Mutex
	var workers sync.WaitGroup
	next := func(err error, last *withdrawal) *withdrawal {
		mu.Lock()
		defer mu.Unlock()
		if err != nil && failed == nil {
			failed = last
			e.log.Warn("a claim in doubt could not be withdrawn yet",
				zap.Stringer("key", last.claim.Key), e.loggedID(last.claim.DeliveryID, last.claim.SealedBy), zap.Int("in_doubt", inDoubt), zap.Error(err))
		}
		if failed != nil || len(round) == 0 {
			return nil
		}
		w := round[0]
		round = round[1:]
		return w
	}
	for range min(withdrawAtOnce, len(round)) {
		workers.Go(func() {
			var err error
			for w := next(nil, nil); w != nil; w = next(err, w) {
				err = e.withdrawAgain(w)
			}
		})
	}
	workers.Wait()
	return failed
}

// withdrawAgain tries to withdraw a claim, and notes whether that was final.
func (e *Engine) withdrawAgain(w *withdrawal) error {
	// Within ClaimPatience nothing is final: a claim that is not in the store may still
	// be executed, and one that was released may be executed again, if the client of
	// the store has sent it twice.
	last := time.Since(w.since) > idempotency.ClaimPatience
	gone, err := e.withdrawOnce(w)
	if err != nil {
		return err
	}
	w.claimed = w.claimed || !gone
	if w.done = last; last {
		e.log.Info("withdrew a claim whose reply was lost",
			zap.Stringer("key", w.claim.Key), e.loggedID(w.claim.DeliveryID, w.claim.SealedBy), zap.String("execution_id", w.claim.ExecutionID), zap.Bool("was_claimed", w.claimed))
	}
	return nil
}

// withdrawn takes the claims that are done off the list, and reports whether the list
// is empty. The claim that failed comes last in the next round: perhaps only its key
// cannot be reached, and the others must not wait for it.
func (e *Engine) withdrawn(failed *withdrawal) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	before := len(e.withdrawals)
	e.withdrawals = slices.DeleteFunc(e.withdrawals, func(w *withdrawal) bool { return w.done || w == failed })
	if failed != nil {
		e.withdrawals = append(e.withdrawals, failed)
	}
	e.inDoubt.add(len(e.withdrawals) - before)
	return len(e.withdrawals) == 0
}

// withdrawOnce releases the claim. gone reports that there was nothing to release: the
// claim was not executed, or not yet, or the record is damaged.
func (e *Engine) withdrawOnce(w *withdrawal) (gone bool, err error) {
	err = e.settleOnce(w.claim.Key, w.record, idempotency.Settlement{
		State:     idempotency.Released,
		Retention: w.claim.Retention,
		AnswerFor: w.claim.Lease,
		Withdraws: true,
	})
	var unreadable *idempotency.UnreadableError
	if errors.Is(err, idempotency.ErrGone) || errors.Is(err, idempotency.ErrFenced) || errors.As(err, &unreadable) {
		return true, nil
	}
	return false, err
}
