package engine

import (
	"cmp"
	"context"
	"strings"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Lookup returns the effective record of a key, opened for operators, nil if there is none, and the
// time by the clock of the store.
func (e *Engine) Lookup(ctx context.Context, key idempotency.Key) (*idempotency.Record, time.Time, error) {
	found, now, err := e.lookup(ctx, key)
	if err != nil {
		return nil, time.Time{}, err
	}
	found, err = e.store.Opened(key, found)
	return found, now, err
}

// Ready reports whether requests can claim keys in the store: see [idempotency.Store].
func (e *Engine) Ready(ctx context.Context) error {
	call := e.startCall(ctx, OperationLookup, e.Timeout())
	return call.done(e.store.Ready(call.ctx))
}

// Response returns the response of the run that wrote this record, nil if none is kept (any more).
// If the store still has the complete record without its response, the error is an
// [*idempotency.UnreadableError].
func (e *Engine) Response(ctx context.Context, key idempotency.Key, record *idempotency.Record) (*idempotency.Response, error) {
	response, err := e.response(ctx, key, record.Token)
	if response != nil || err != nil || record.State != idempotency.Complete {
		return response, err
	}
	now, _, err := e.lookup(ctx, key)
	if err == nil && now != nil && now.State == idempotency.Complete && now.Token == record.Token {
		err = &idempotency.UnreadableError{Where: "record of the key " + key.String(), Err: idempotency.ErrResponseMissing}
	}
	return nil, err
}

// response asks the store for the response of a run, which takes as long as its bytes move.
func (e *Engine) response(ctx context.Context, key idempotency.Key, token string) (*idempotency.Response, error) {
	call := e.startMove(ctx, OperationResponse)
	response, err := e.store.Response(call.ctx, key, token)
	return response, call.done(err)
}

// KeptResponse is Response for a replay: it also uses a local copy of this run, of any age, and
// makes one.
func (e *Engine) KeptResponse(ctx context.Context, key idempotency.Key, record *idempotency.Record) (*idempotency.Response, error) {
	if found, _ := e.copies.find(key); found.Record != nil && found.Record.Token == record.Token {
		return found.Response, nil
	}
	read := e.copies.snapshot()
	response, err := e.Response(ctx, key, record)
	if response != nil && !e.inProcess && int64(len(response.Body)) < e.copies.all.limit.Load() {
		if now, at, err := e.lookup(ctx, key); err == nil && now != nil && now.Token == record.Token {
			e.copies.keepFound(key, read, idempotency.Claimed{Record: now, Response: response, Now: at})
		}
	}
	return response, err
}

// List returns one page of records: see [idempotency.Store].
func (e *Engine) List(ctx context.Context, cursor string, limit int) ([]idempotency.Listed, string, error) {
	call := e.startCall(ctx, OperationList, e.Timeout())
	page, next, err := e.store.List(call.ctx, cursor, limit)
	return page, next, call.done(err)
}

// Find returns one page of the records whose key has one of these prefixes: see
// [idempotency.Store].
func (e *Engine) Find(ctx context.Context, prefixes []idempotency.KeyPrefix, cursor string, limit int) ([]idempotency.Listed, string, error) {
	call := e.startCall(ctx, OperationList, e.Timeout())
	page, next, err := e.store.Find(call.ctx, prefixes, cursor, limit)
	return page, next, call.done(err)
}

// Operator is the person or program that acts on a key, for the log.
type Operator struct {
	// Remote is the address of the client, User the name of the user; "" if unknown.
	Remote, User string
}

// String returns the user, or the address without its port, for [idempotency.Record.Reason].
func (o Operator) String() string {
	host := o.Remote
	if colon := strings.LastIndexByte(host, ':'); colon >= 0 {
		host = strings.Trim(host[:colon], "[]")
	}
	return cmp.Or(o.User, host, "an operator")
}

type operatorKey struct{}

// ByOperator returns a context for the calls of an operator.
func ByOperator(ctx context.Context, operator Operator) context.Context {
	return context.WithValue(ctx, operatorKey{}, operator)
}

// operatorFields returns the operator, as fields of a log line.
func operatorFields(ctx context.Context) zap.Field {
	operator, _ := ctx.Value(operatorKey{}).(Operator)
	return zap.Inline(zapcore.ObjectMarshalerFunc(func(to zapcore.ObjectEncoder) error {
		to.AddString("remote", operator.Remote)
		if operator.User != "" {
			to.AddString("user", operator.User)
		}
		return nil
	}))
}

// Release releases a key for an operator, so that the next request runs even if the key was held or
// complete, or all its attempts were used. The record keeps its history, and stays encrypted.
// The store does it in one step: after it, a late owner can change nothing, and a run
// under a live lease is not touched. Errors: [idempotency.ErrGone] if there is no record,
// [idempotency.ErrInFlight] if a run is in flight and its lease has not lapsed, an
// [idempotency.ChangedError] if the record does not meet the precondition. Every record meets
// the zero Precondition.
func (e *Engine) Release(ctx context.Context, key idempotency.Key, pre idempotency.Precondition) error {
	return e.change(ctx, OperationRelease, "released", key, idempotency.Change{State: idempotency.Released, Precondition: pre})
}

// Complete completes a key for an operator who knows that its work is done: duplicates get this
// response from now on. Errors are those of [Engine.Release], [idempotency.ErrComplete] if the key has a
// response already, and an [*idempotency.UnreadableError].
func (e *Engine) Complete(ctx context.Context, key idempotency.Key, response *idempotency.Response, pre idempotency.Precondition) error {
	return e.change(ctx, OperationComplete, "completed", key, idempotency.Change{State: idempotency.Complete, Response: response, Precondition: pre})
}

func (e *Engine) change(ctx context.Context, as Operation, done string, key idempotency.Key, c idempotency.Change) error {
	defer e.copies.invalidate(key) // even after an error: the store may have changed the key
	operator, _ := ctx.Value(operatorKey{}).(Operator)
	c.Token, c.Reason = e.options.NewToken(), idempotency.CutReason(done+" by "+operator.String())
	call := e.startMove(ctx, as)
	found, err := e.store.Change(call.ctx, key, c)
	if call.done(err) != nil {
		return err
	}
	// The store changes a record in flight only if its lease has lapsed.
	e.log.Warn("an operator "+done+" a key", e.recordFields(key, found, found.LeaseUntil), operatorFields(ctx))
	return nil
}

// recordFields returns a record that was changed or forgotten, as fields of a log line: as
// operators saw it at that time.
func (e *Engine) recordFields(key idempotency.Key, r *idempotency.Record, now time.Time) zap.Field {
	return zap.Inline(zapcore.ObjectMarshalerFunc(func(to zapcore.ObjectEncoder) error {
		e.keyFields(key, r.Origin, r.SealedBy).AddTo(to)
		to.AddString("execution_id", r.ExecutionID)
		to.AddString("state", string(r.StateAt(now)))
		to.AddInt("attempt", r.Attempt)
		if r.SealedBy == "" && e.store.Sealer() == nil {
			addText(to, "reason", r.Reason)
		}
		return nil
	}))
}

// Forget removes the record of a key and its responses, for an operator, even if they
// cannot be read. Errors as with [Engine.Release].
func (e *Engine) Forget(ctx context.Context, key idempotency.Key, pre idempotency.Precondition) error {
	defer e.copies.invalidate(key) // even after an error: the store may have removed the key
	what := zap.Stringer("key", key)
	if found, now, err := e.lookup(ctx, key); err == nil && found != nil {
		what = e.recordFields(key, found, now)
	}
	call := e.startCall(ctx, OperationForget, e.Timeout())
	err := call.done(e.store.Forget(call.ctx, key, pre))
	if err == nil {
		e.log.Warn("an operator forgot a key", what, operatorFields(ctx))
	}
	return err
}
