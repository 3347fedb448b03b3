package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"go.uber.org/zap"
)

// ErrInFlight says that a run that is alive holds the key, which an operator cannot take.
var ErrInFlight = errors.New("a run is in flight under the key; wait until it has ended, or its lease has lapsed")

// freeLease bounds how long an operator's claim stands if the process dies
// between its two steps.
const freeLease = 10 * time.Second

// Lookup returns a key's record as it counts now, and the time of the store's
// clock; the record is nil if there is none.
func (e *Engine) Lookup(ctx context.Context, key idempotency.Key) (*idempotency.Record, time.Time, error) {
	return e.lookup(ctx, e.Store(), key)
}

func (e *Engine) lookup(ctx context.Context, store idempotency.Store, key idempotency.Key) (*idempotency.Record, time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, e.options.Timeout)
	defer cancel()
	return store.Lookup(ctx, key)
}

// Response returns what is kept of the run whose record this is, nil if nothing
// is.
func (e *Engine) Response(ctx context.Context, key idempotency.Key, record *idempotency.Record) (*idempotency.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, e.options.Timeout)
	defer cancel()
	return e.Store().Response(ctx, key, record.Token)
}

// Free lets the key's next request run, on an operator's behalf: a held, a
// complete or an exhausted one. The record keeps its history. It is a claim and
// its release, so that it is fenced like any other: the late owner of a lapsed
// claim can change nothing any more. Errors: [ErrGone] without a record,
// [ErrInFlight] beside a run that is alive.
// What is encrypted stays as it is: no key is needed.
func (e *Engine) Free(ctx context.Context, key idempotency.Key) error {
	found, now, err := e.lookup(ctx, e.store, key)
	if err != nil {
		return err
	}
	if found == nil {
		return idempotency.ErrGone
	}
	c := idempotency.Claim{
		Key:         key,
		Token:       e.options.NewToken(),
		ExecutionID: found.ExecutionID,
		Fingerprint: found.Fingerprint,
		Provider:    found.Provider,
		DeliveryID:  found.DeliveryID,
		SealedBy:    found.SealedBy,
		Hold:        found.Hold,
		Lease:       freeLease,
		Retention:   max(found.Expires.Sub(now), freeLease),
		Operator:    true,
	}
	got, err := e.ask(ctx, c, Limits{})
	if err != nil {
		return err
	}
	if got.Verdict != idempotency.Proceed {
		return ErrInFlight
	}
	err = e.settleOnce(c, got.Record, idempotency.Settlement{State: idempotency.Released, Retention: c.Retention})
	if err != nil {
		return fmt.Errorf("the key is taken but not freed yet, which it will be in %s at the latest: %w", freeLease, err)
	}
	e.log.Warn("an operator freed a key", zap.Stringer("key", key), zap.String("execution_id", found.ExecutionID),
		zap.String("state", string(found.State)), zap.Int("attempt", found.Attempt))
	return nil
}

// Forget removes a key's record and responses, on an operator's behalf. It
// reports whether there was a record; beside a run that is alive it is
// [ErrInFlight]. A record that cannot be read is removed, too.
func (e *Engine) Forget(ctx context.Context, key idempotency.Key) (bool, error) {
	found, now, err := e.lookup(ctx, e.store, key)
	var unreadable *idempotency.UnreadableError
	switch {
	case err != nil && !errors.As(err, &unreadable):
		return false, err
	case found != nil && found.State == idempotency.InFlight && !found.Lapsed(now):
		return false, ErrInFlight
	}
	ctx, cancel := context.WithTimeout(ctx, e.options.Timeout)
	defer cancel()
	forgotten, err := e.store.Forget(ctx, key)
	if err == nil && forgotten {
		e.log.Warn("an operator removed a key", zap.Stringer("key", key))
	}
	return forgotten, err
}
