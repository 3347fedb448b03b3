package engine

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// renew prolongs the lease until the run ends or has lost its claim. With the
// claim it gives up those who wait here: the key is another's, or will be.
func (r *Run) renew(ctx context.Context) {
	ticker := time.NewTicker(r.claim.Lease / 3)
	defer ticker.Stop()
	var limit <-chan time.Time
	if r.timeout > 0 {
		limit = time.After(r.timeout + r.claim.Lease)
	}
	for {
		select {
		case <-ticker.C:
		case <-limit:
			r.logger().Warn("the run has not ended at its time limit; its lease is renewed no more",
				zap.Duration("timeout", r.timeout))
			r.engine.end(r.flight, over, idempotency.Claimed{}, nil)
			return
		case <-ctx.Done():
			return
		}
		err := r.engine.renewOnce(r.claim)
		if errors.Is(err, idempotency.ErrGone) {
			// Noted before we look whether the run has ended: its end looks in the
			// other order, so that one of the two sees the other.
			r.reclaimed.Store(true)
			if ctx.Err() != nil {
				return
			}
			err = r.engine.reclaim(r.claim)
		}
		switch {
		case errors.Is(err, idempotency.ErrFenced):
			r.logger().Warn("the claim was lost while its run is in flight: another owner took the key over")
			r.engine.end(r.flight, over, idempotency.Claimed{}, nil)
			return
		case err != nil && ctx.Err() == nil:
			r.logger().Warn("the lease could not be renewed", zap.Error(err))
		}
	}
}

func (e *Engine) renewOnce(c idempotency.Claim) error {
	ctx, cancel := e.operation(context.Background())
	defer cancel()
	return e.store.Renew(ctx, c)
}

// reclaim writes a claim again that the store has lost. If somebody else has
// claimed meanwhile, it is [idempotency.ErrFenced].
func (e *Engine) reclaim(c idempotency.Claim) error {
	ctx, cancel := e.operation(context.Background())
	defer cancel()
	c.Waits = false
	got, err := e.store.Claim(ctx, c)
	if err == nil && got.Verdict != idempotency.Proceed {
		return idempotency.ErrFenced
	}
	return err
}
