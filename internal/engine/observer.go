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
	// when its claim is settled or lost. If the store fails, that may be long after the run.
	RunEnded(label string, result Result)
	// TookOver is called when a run takes over a claim whose lease was not renewed.
	TookOver()
	// Overloaded is called when a limit refuses a request.
	Overloaded(limit Limit)
	// BodyDropped is called when a response is kept without its body, because the store cannot
	// take it.
	BodyDropped()
	// Asked is called when an operation of the store has ended. failed reports whether the
	// store could not be asked, or could not do it.
	Asked(operation Operation, took time.Duration, failed bool)
}

// Result is how the claim of a run ended.
type Result string

// The results of runs.
const (
	// ResultKept: its response is kept.
	ResultKept Result = "kept"
	// ResultReleased: the key was released for a retry; the request may have been executed.
	ResultReleased Result = "released"
	// ResultNotSent: the key was released, because the request was not sent, or the service has asked for more.
	ResultNotSent Result = "not_sent"
	// ResultHeld: whether the request was executed is unknown; an operator must decide.
	ResultHeld Result = "held"
	// ResultFenced: another owner had taken the key over; nothing was stored.
	ResultFenced Result = "fenced"
	// ResultLost: the store had lost the claim, or the settlement was never stored.
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
	OperationComplete Operation = "complete"
	OperationForget   Operation = "forget"
	OperationList     Operation = "list" // List and Find
)

// Operations are all operations.
var Operations = []Operation{
	OperationClaim, OperationRenew, OperationSettle, OperationLookup,
	OperationResponse, OperationRelease, OperationComplete, OperationForget, OperationList,
}

type noopObserver struct{}

func (noopObserver) RunEnded(string, Result)              {}
func (noopObserver) TookOver()                            {}
func (noopObserver) Overloaded(Limit)                     {}
func (noopObserver) BodyDropped()                         {}
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

// writes reports whether the operation changes the store.
func (o Operation) writes() bool {
	switch o {
	case OperationLookup, OperationResponse, OperationList:
		return false
	default:
		return true
	}
}

// storeCall is one call of the store. done notifies the observer of it.
type storeCall struct {
	ctx       context.Context
	cancel    context.CancelFunc
	engine    *Engine
	operation Operation
	start     time.Time
}

// startCall starts a call of the store, which may take as long as timeout. The caller passes
// storeCall.ctx to the store, and its error to done.
func (e *Engine) startCall(ctx context.Context, operation Operation, timeout time.Duration) storeCall {
	call := storeCall{engine: e, operation: operation}
	call.ctx, call.cancel = e.withTimeout(ctx, timeout)
	call.start = time.Now()
	return call
}

// startMove starts a call of the store that moves a large body. Its timeout moves with the bytes.
func (e *Engine) startMove(ctx context.Context, operation Operation) storeCall {
	if e.inProcess {
		return e.startCall(ctx, operation, 0)
	}
	call := storeCall{engine: e, operation: operation, start: time.Now()}
	call.ctx, call.cancel = idempotency.WithProgress(ctx, e.Timeout())
	return call
}

// done notifies the observer that the call has ended, notes a refused write, and returns the error.
func (c *storeCall) done(err error) error {
	took := time.Since(c.start)
	failed := c.failed(err)
	if c.operation == OperationSettle && (failed || c.ctx.Err() == nil) { // a cancelled one says nothing of the store
		c.engine.failing.note(failed)
	}
	c.engine.options.Observer.Asked(c.operation, took, failed)
	if c.operation.writes() {
		c.engine.refusals.note(err)
	}
	c.cancel()
	return err
}

// failed reports whether an error is a failure of the store. Those that the rules name are replies
// ([idempotency.Store]), and a cancelled context is the caller's. A full store refuses a claim as
// a limit does, but it fails to store a settlement.
func (c *storeCall) failed(err error) bool {
	cancelled := c.ctx.Err() != nil && !errors.Is(context.Cause(c.ctx), context.DeadlineExceeded)
	switch {
	case err == nil, cancelled:
		return false
	case errors.Is(err, idempotency.ErrFull):
		return c.operation != OperationClaim
	}
	for _, answer := range []error{idempotency.ErrFenced, idempotency.ErrGone, idempotency.ErrInFlight,
		idempotency.ErrComplete, idempotency.ErrCursor, idempotency.ErrTooLarge} {
		if errors.Is(err, answer) {
			return false
		}
	}
	_, unreadable := errors.AsType[*idempotency.UnreadableError](err)
	_, changed := errors.AsType[idempotency.ChangedError](err)
	return !unreadable && !changed
}
