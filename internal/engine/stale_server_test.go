package engine_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// servers are a master and a stale replica, to which operations go after the failover.
type servers struct {
	idempotency.Store // the master
	behind            idempotency.Store
	failedOver        atomic.Bool
}

func newServers(t *testing.T) *servers { return &servers{Store: newShared(t), behind: newShared(t)} }

// now returns the server to which operations go.
func (s *servers) now() idempotency.Store {
	if s.failedOver.Load() {
		return s.behind
	}
	return s.Store
}

func (s *servers) Claim(ctx context.Context, c idempotency.Claim) (idempotency.Claimed, error) {
	return s.now().Claim(ctx, c)
}

func (s *servers) Renew(ctx context.Context, c idempotency.Claim) error { return s.now().Renew(ctx, c) }

func (s *servers) Settle(ctx context.Context, key idempotency.Key, claimed *idempotency.Record, settlement idempotency.Settlement) error {
	return s.now().Settle(ctx, key, claimed, settlement)
}

func (s *servers) Lookup(ctx context.Context, key idempotency.Key) (*idempotency.Record, time.Time, error) {
	return s.now().Lookup(ctx, key)
}

func (s *servers) Response(ctx context.Context, key idempotency.Key, token string) (*idempotency.Response, error) {
	return s.now().Response(ctx, key, token)
}

// replicate copies the record of the key, which must be released, to the replica.
func (s *servers) replicate(t *testing.T, req engine.Request) {
	t.Helper()
	record, _, err := s.Store.Lookup(t.Context(), req.Key)
	if err != nil || record == nil || record.State != idempotency.Released {
		t.Fatalf("the master has %+v, %v", record, err)
	}
	claimed, err := s.behind.Claim(t.Context(), idempotency.Claim{Key: req.Key, Token: record.Token, ExecutionID: record.ExecutionID, Terms: req.Policy.Terms})
	if err == nil {
		err = s.behind.Settle(t.Context(), req.Key, claimed.Record, idempotency.Settlement{
			State: idempotency.Released, Counted: true, Retention: time.Hour,
		})
	}
	must(t, err)
}
