package engine

import (
	"context"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/seal"
)

// storeWithoutClaims fails the test if it is asked for a claim. It has no other methods.
type storeWithoutClaims struct {
	idempotency.Store
	t *testing.T
}

func (s storeWithoutClaims) Claim(context.Context, idempotency.Claim) (idempotency.Claimed, error) {
	s.t.Error("the store was asked for a claim")
	return idempotency.Claimed{}, idempotency.ErrFull
}

func TestTooManyClaimsInDoubt(t *testing.T) {
	e := &Engine{
		store:       seal.Around(storeWithoutClaims{t: t}, nil),
		options:     Options{Timeout: time.Second},
		withdrawals: make([]*withdrawal, maxWithdrawals),
	}
	_, err := e.ask(context.Background(), idempotency.Claim{})
	if err == nil {
		t.Fatal("a claim was made with as many in doubt as there may be")
	}
	if refused := refusalFor(err); refused.Reason != ReasonUnavailable {
		t.Errorf("refused with %q, want %q", refused.Reason, ReasonUnavailable)
	}
	e.withdrawals = e.withdrawals[1:]
	if err := e.beginClaim(); err != nil {
		t.Errorf("no claim may be made with one in doubt fewer: %v", err)
	}
}
