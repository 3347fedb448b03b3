package engine

import (
	"errors"
	"slices"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"go.uber.org/zap"
)

// maxWithdrawals bounds the claims in doubt. With more of them no new claim is
// made until the store has said what became of the old ones.
const maxWithdrawals = 100_000

// withdrawPause lies between two rounds over the claims in doubt.
const withdrawPause = 500 * time.Millisecond

// withdrawal is a claim whose reply was lost. Its request was refused, so the
// claim must not stand: under hold it would lock the key for ever.
type withdrawal struct {
	claim  idempotency.Claim
	record *idempotency.Record
	since  time.Time
	// The background's own: whether the claim was found, and is done with.
	claimed, done bool
}

// withdraw takes a claim back, in the background, by its token.
func (e *Engine) withdraw(c idempotency.Claim, record *idempotency.Record) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.inDoubt.add(1)
	e.withdrawals = append(e.withdrawals, &withdrawal{claim: c, record: record, since: time.Now()})
	if len(e.withdrawals) == 1 {
		e.goBackground(e.withdrawAll)
	}
}

// withdrawAll goes round the claims in doubt until none is left.
func (e *Engine) withdrawAll() {
	for {
		e.mu.Lock()
		round := slices.Clone(e.withdrawals)
		e.mu.Unlock()
		failed := e.withdrawRound(round)
		if e.withdrawn(failed) || !e.pause(withdrawPause) {
			return
		}
	}
}

// withdrawRound tries each claim once. It ends early, with the claim at which
// the store could not be asked.
func (e *Engine) withdrawRound(round []*withdrawal) (failed *withdrawal) {
	for _, w := range round {
		// A claim that is not there may still come, and one that was released may
		// come again, sent twice by its store: not after its patience.
		last := time.Since(w.since) > idempotency.ClaimPatience
		gone, err := e.withdrawOnce(w)
		if err != nil {
			e.log.Warn("a claim in doubt could not be withdrawn yet",
				zap.Stringer("key", w.claim.Key), zap.Int("in_doubt", len(round)), zap.Error(err))
			return w
		}
		w.claimed = w.claimed || !gone
		if w.done = last; last {
			e.log.Info("withdrew a claim whose reply was lost",
				zap.Stringer("key", w.claim.Key), zap.String("execution_id", w.claim.ExecutionID), zap.Bool("was_claimed", w.claimed))
		}
	}
	return nil
}

// withdrawn takes those off the list that are done with, and reports whether it is
// empty. The one that failed comes last in the next round: the store may be out
// of reach for its key alone.
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

// withdrawOnce releases the claim. It reports whether there was nothing to
// release: the claim was not executed, or not yet, or its record is damaged.
func (e *Engine) withdrawOnce(w *withdrawal) (gone bool, err error) {
	err = e.settleOnce(w.claim.Key, w.record, idempotency.Settlement{
		State:     idempotency.Released,
		Retention: w.claim.Retention,
		AnswerFor: w.claim.Lease,
	})
	var unreadable *idempotency.UnreadableError
	if errors.Is(err, idempotency.ErrGone) || errors.Is(err, idempotency.ErrFenced) || errors.As(err, &unreadable) {
		return true, nil
	}
	return false, err
}
