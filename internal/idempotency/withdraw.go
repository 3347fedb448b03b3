package idempotency

import (
	"errors"
	"time"

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
	claim  Claim
	record *Record
	since  time.Time
}

func (e *Engine) mayClaim() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.withdrawals) < maxWithdrawals
}

// withdraw takes a claim back, in the background, by its token.
func (e *Engine) withdraw(c Claim, record *Record) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.addBusyLocked(1)
	e.withdrawals = append(e.withdrawals, withdrawal{claim: c, record: record, since: time.Now()})
	if len(e.withdrawals) == 1 {
		e.goBackground(e.withdrawAll)
	}
}

// withdrawAll goes round the claims in doubt until none is left.
func (e *Engine) withdrawAll() {
	for {
		e.mu.Lock()
		round := append([]withdrawal(nil), e.withdrawals...)
		e.mu.Unlock()
		done := e.withdrawRound(round)
		e.mu.Lock()
		left := e.withdrawals[:0]
		for _, w := range e.withdrawals {
			if !done[w.claim.Token] {
				left = append(left, w)
			}
		}
		clear(e.withdrawals[len(left):])
		e.withdrawals = left
		e.addBusyLocked(-len(done))
		empty := len(left) == 0
		if empty {
			e.withdrawals = nil
		}
		e.mu.Unlock()
		if empty {
			return
		}
		if !e.pause(withdrawPause) {
			return
		}
	}
}

// withdrawRound tries each claim once and returns the tokens of those that are
// settled. It ends early when the store cannot be asked.
func (e *Engine) withdrawRound(round []withdrawal) map[string]bool {
	done := make(map[string]bool)
	for _, w := range round {
		gone, err := e.withdrawOnce(w)
		switch {
		case err != nil:
			e.log.Warn("a claim in doubt could not be withdrawn yet",
				zap.Stringer("key", w.claim.Key), zap.Int("in_doubt", len(round)), zap.Error(err))
			return done
		// A lost claim that is not there may still come: not after its patience.
		case !gone || time.Since(w.since) > ClaimPatience+withdrawPause:
			done[w.claim.Token] = true
			e.log.Info("withdrew a claim whose reply was lost",
				zap.Stringer("key", w.claim.Key), zap.String("execution_id", w.claim.ExecutionID), zap.Bool("was_claimed", !gone))
		}
	}
	return done
}

// withdrawOnce releases the claim. It reports whether there was nothing to
// release: the claim was not executed, or not yet.
func (e *Engine) withdrawOnce(w withdrawal) (gone bool, err error) {
	err = e.settleOnce(w.claim.Key, w.record, Settlement{
		State:     Released,
		Retention: w.claim.Retention,
		AnswerFor: w.claim.Lease,
	})
	if errors.Is(err, ErrGone) || errors.Is(err, ErrFenced) {
		return true, nil
	}
	return false, err
}
