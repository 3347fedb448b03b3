package engine

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Lookup returns a key's record as it counts now, and the time of the store's
// clock; the record is nil if there is none.
func (e *Engine) Lookup(ctx context.Context, key idempotency.Key) (*idempotency.Record, time.Time, error) {
	ctx, cancel := e.operation(ctx)
	defer cancel()
	return e.store.Lookup(ctx, key)
}

// Response returns what is kept of the run whose record this is, nil if nothing
// is.
func (e *Engine) Response(ctx context.Context, key idempotency.Key, record *idempotency.Record) (*idempotency.Response, error) {
	ctx, cancel := e.operation(ctx)
	defer cancel()
	return e.store.Response(ctx, key, record.Token)
}

// List returns one page of records, as [idempotency.Store] has it.
func (e *Engine) List(ctx context.Context, cursor string, limit int) ([]idempotency.Listed, string, error) {
	ctx, cancel := e.operation(ctx)
	defer cancel()
	return e.store.List(ctx, cursor, limit)
}

// Free lets the key's next request run, on an operator's behalf: a held, a
// complete or an exhausted one. The record keeps its history, and what is
// encrypted of it stays as it is. It is one step: the owner of a lapsed claim can
// change nothing any more, and a run that is alive loses nothing. Errors:
// [idempotency.ErrGone] without a record, [idempotency.ErrInFlight] beside a run
// that is alive.
func (e *Engine) Free(ctx context.Context, key idempotency.Key) error {
	ctx, cancel := e.operation(ctx)
	defer cancel()
	found, err := e.store.Free(ctx, key, e.options.NewToken())
	if err != nil {
		return err
	}
	e.log.Warn("an operator freed a key", zap.Stringer("key", key), zap.String("execution_id", found.ExecutionID),
		zap.String("state", string(found.State)), zap.Int("attempt", found.Attempt))
	return nil
}

// Forget removes a key's record and responses, on an operator's behalf, also one
// that cannot be read. Errors as with [Engine.Free].
func (e *Engine) Forget(ctx context.Context, key idempotency.Key) error {
	ctx, cancel := e.operation(ctx)
	defer cancel()
	err := e.store.Forget(ctx, key)
	if err == nil {
		e.log.Warn("an operator removed a key", zap.Stringer("key", key))
	}
	return err
}
