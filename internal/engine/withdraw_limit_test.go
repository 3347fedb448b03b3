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
		flights:     make(map[idempotency.Key]*flight),
		withdrawals: make([]*withdrawal, maxWithdrawals),
	}
	d, err := e.Begin(context.Background(), Request{})
	if err != nil {
		t.Fatal(err)
	}
	if refused, ok := d.(Refusal); !ok || refused.Reason != ReasonUnavailable {
		t.Errorf("decided %+v, want a refusal with %q", d, ReasonUnavailable)
	}
	e.withdrawals = e.withdrawals[1:]
	if _, err := e.countClaim(false); err != nil {
		t.Errorf("no claim may be made with one in doubt fewer: %v", err)
	}
}
