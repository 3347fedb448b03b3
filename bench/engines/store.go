package main

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/file"
)

// store is caddy-dedup's own, with all its rules.
type store struct{ *file.Store }

func openStore(dir string) (engine, error) {
	s, err := file.Open(filepath.Join(dir, "keys"), zap.NewNop())
	if err != nil {
		return nil, err
	}
	return store{s}, nil
}

var body = bytes.Repeat([]byte("x"), 512)

func identityOf(n uint64) idempotency.Key {
	return idempotency.Identity{ID: strconv.FormatUint(n, 10)}.Key()
}

func (s store) keep(n uint64) error {
	ctx, key, name := context.Background(), identityOf(n), strconv.FormatUint(n, 10)
	claimed, err := s.Claim(ctx, idempotency.Claim{
		Key: key, Token: "token " + name, ExecutionID: "execution " + name,
		Terms: idempotency.Terms{Lease: 30 * time.Second, Retention: time.Hour},
	})
	if err != nil {
		return err
	}
	if claimed.Verdict != idempotency.Proceed {
		return fmt.Errorf("the claim of key %s says %v", name, claimed.Verdict)
	}
	return s.Settle(ctx, key, claimed.Record, idempotency.Settlement{
		State: idempotency.Complete, Counted: true, Retention: time.Hour,
		Response: &idempotency.Response{Status: 201, Header: map[string][]string{"Content-Type": {"application/json"}}, Body: body},
	})
}

func (s store) has(n uint64) (bool, error) {
	record, _, err := s.Lookup(context.Background(), identityOf(n))
	return record != nil && record.State == idempotency.Complete, err
}

func (s store) close() error { return s.Close() }
