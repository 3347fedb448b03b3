package engine

import (
	"context"
	"errors"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Observer is notified of what an engine does, for metrics. Its methods may be called
// concurrently. They must not block, and must not call the engine.
type Observer interface {
	// RunEnded is called once for each run that is not [Request.Observed], with [Request.Label],
	// when its claim is settled or lost: if the store fails, long after the run itself.
	RunEnded(label string, result Result)
	// TookOver is called when a run takes over a claim whose lease was not renewed.
	TookOver()
	// Overloaded is called when a limit refuses something.
	Overloaded(limit Limit)
	// Asked is called when an operation of the store has ended. failed reports
	// whether the store could not be asked, or could not do it.
	Asked(operation Operation, took time.Duration, failed bool)
}

// Result is what has become of the claim of a run.
type Result string

// The results of runs.
const (
	// ResultKept: its response is kept.
	ResultKept Result = "kept"
	// ResultReleased: the key was released for a retry; the request may have been executed.
	ResultReleased Result = "released"
	// ResultNotSent: the key was released, because the request was not sent.
	ResultNotSent Result = "not_sent"
	// ResultHeld: whether it was executed is unknown, and an operator has to decide.
	ResultHeld Result = "held"
	// ResultFenced: another owner had taken the key over; nothing was stored.
	ResultFenced Result = "fenced"
	// ResultLost: the store had lost the claim, or its end was never stored.
	ResultLost Result = "lost"
)

// Results are all results.
var Results = []Result{ResultKept, ResultReleased, ResultHeld, ResultNotSent, ResultFenced, ResultLost}

// Limit is the name of a limit, as it is configured.
type Limit string

// The limits that refuse.
const (
	LimitBuffered      Limit = "buffered"
	LimitWaiters       Limit = "waiters"
	LimitWaitersPerKey Limit = "waiters_per_key"
	LimitInFlight      Limit = "in_flight"
	LimitMemoryStore   Limit = "memory_store"
)

// AllLimits are all limits.
var AllLimits = []Limit{LimitBuffered, LimitWaiters, LimitWaitersPerKey, LimitInFlight, LimitMemoryStore}

// Operation is the name of an operation of a store.
type Operation string

// The operations of stores.
const (
	OperationClaim    Operation = "claim"
	OperationRenew    Operation = "renew"
	OperationSettle   Operation = "settle"
	OperationLookup   Operation = "lookup"
	OperationResponse Operation = "response"
	OperationRelease  Operation = "release"
	OperationForget   Operation = "forget"
	OperationList     Operation = "list" // List and Find
)

// Operations are all operations.
var Operations = []Operation{
	OperationClaim, OperationRenew, OperationSettle, OperationLookup,
	OperationResponse, OperationRelease, OperationForget, OperationList,
}

type noopObserver struct{}

func (noopObserver) RunEnded(string, Result)              {}
func (noopObserver) TookOver()                            {}
func (noopObserver) Overloaded(Limit)                     {}
func (noopObserver) Asked(Operation, time.Duration, bool) {}

// resultOf returns the result of a run from its settlement, which was stored or not.
func resultOf(s idempotency.Settlement, err error) Result {
	switch {
	case errors.Is(err, idempotency.ErrFenced):
		return ResultFenced
	case err != nil:
		return ResultLost
	case s.State == idempotency.Complete:
		return ResultKept
	case s.State == idempotency.Held:
		return ResultHeld
	case s.Counted:
		return ResultReleased
	default:
		return ResultNotSent
	}
}

// observedStore notifies an observer of the operations of a store.
type observedStore struct {
	idempotency.Store
	observer Observer
}

var _ idempotency.Store = observedStore{}

// asked notifies the observer of an operation that has ended. A cancelled request is no failure
// of the store.
func (s observedStore) asked(ctx context.Context, operation Operation, began time.Time, err error) {
	s.observer.Asked(operation, time.Since(began), storeFailed(ctx, err))
}

// storeFailed reports whether an error means that the store could not be asked. The others
// are answers ([idempotency.Store]), and a store that is full refuses a claim as a limit
// does. What was to be stored in it all the same is a failure.
func storeFailed(ctx context.Context, err error) bool {
	if err == nil || errors.Is(ctx.Err(), context.Canceled) {
		return false
	}
	if _, changed := errors.AsType[idempotency.ChangedError](err); changed {
		return false
	}
	var unreadable *idempotency.UnreadableError
	for _, answer := range []error{idempotency.ErrFenced, idempotency.ErrGone, idempotency.ErrInFlight, idempotency.ErrCursor, idempotency.ErrTooLarge} {
		if errors.Is(err, answer) {
			return false
		}
	}
	return !errors.As(err, &unreadable)
}

// Claim implements [idempotency.Store].
func (s observedStore) Claim(ctx context.Context, c idempotency.Claim) (idempotency.Claimed, error) {
	began := time.Now()
	got, err := s.Store.Claim(ctx, c)
	if errors.Is(err, idempotency.ErrFull) {
		s.observer.Asked(OperationClaim, time.Since(began), false)
		return got, err
	}
	s.asked(ctx, OperationClaim, began, err)
	return got, err
}

// Renew implements [idempotency.Store].
func (s observedStore) Renew(ctx context.Context, c idempotency.Claim) error {
	began := time.Now()
	err := s.Store.Renew(ctx, c)
	s.asked(ctx, OperationRenew, began, err)
	return err
}

// Settle implements [idempotency.Store].
func (s observedStore) Settle(ctx context.Context, key idempotency.Key, claimed *idempotency.Record, settlement idempotency.Settlement) error {
	began := time.Now()
	err := s.Store.Settle(ctx, key, claimed, settlement)
	s.asked(ctx, OperationSettle, began, err)
	return err
}

// Lookup implements [idempotency.Store].
func (s observedStore) Lookup(ctx context.Context, key idempotency.Key) (*idempotency.Record, time.Time, error) {
	began := time.Now()
	record, now, err := s.Store.Lookup(ctx, key)
	s.asked(ctx, OperationLookup, began, err)
	return record, now, err
}

// Ready implements [idempotency.Store].
func (s observedStore) Ready(ctx context.Context) error {
	began := time.Now()
	err := s.Store.Ready(ctx)
	s.asked(ctx, OperationLookup, began, err)
	return err
}

// Response implements [idempotency.Store].
func (s observedStore) Response(ctx context.Context, key idempotency.Key, token string) (*idempotency.Response, error) {
	began := time.Now()
	response, err := s.Store.Response(ctx, key, token)
	s.asked(ctx, OperationResponse, began, err)
	return response, err
}

// Release implements [idempotency.Store].
func (s observedStore) Release(ctx context.Context, key idempotency.Key, token string, seen idempotency.Precondition) (*idempotency.Record, error) {
	began := time.Now()
	record, err := s.Store.Release(ctx, key, token, seen)
	s.asked(ctx, OperationRelease, began, err)
	return record, err
}

// Forget implements [idempotency.Store].
func (s observedStore) Forget(ctx context.Context, key idempotency.Key, seen idempotency.Precondition) error {
	began := time.Now()
	err := s.Store.Forget(ctx, key, seen)
	s.asked(ctx, OperationForget, began, err)
	return err
}

// List implements [idempotency.Store].
func (s observedStore) List(ctx context.Context, cursor string, limit int) ([]idempotency.Listed, string, error) {
	began := time.Now()
	page, next, err := s.Store.List(ctx, cursor, limit)
	s.asked(ctx, OperationList, began, err)
	return page, next, err
}

// Find implements [idempotency.Store].
func (s observedStore) Find(ctx context.Context, of []idempotency.KeyPrefix, cursor string, limit int) ([]idempotency.Listed, string, error) {
	began := time.Now()
	page, next, err := s.Store.Find(ctx, of, cursor, limit)
	s.asked(ctx, OperationList, began, err)
	return page, next, err
}
