package engine

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Unstored limits the bodies that all engines of a process hold because their settlements have failed.
// Above the limit the largest are dropped, so that a failing store does not take the memory of another.
// Bodies that wait for their turn at a store do not count.
type Unstored struct {
	limit func() int64

	mu    sync.Mutex
	bytes int64
	drop  map[*Run]unstoredBody
}

type unstoredBody struct {
	bytes int64
	drop  context.CancelCauseFunc
}

// NewUnstored returns an Unstored with a limit in bytes, which may change.
func NewUnstored(limit func() int64) *Unstored {
	return &Unstored{limit: limit, drop: make(map[*Run]unstoredBody)}
}

// Why a body is dropped.
var (
	errUnstoredLimit = errors.New("responses that cannot be stored take half of `buffered`, and this is the largest")
	errStopping      = errors.New("the process stops, and the body was not stored in time")
)

// add counts the body of a run until it is dropped, or until remove is called.
func (u *Unstored) add(r *Run) (remove func()) {
	if u == nil || !r.hasBody() {
		return func() {}
	}
	ctx, drop := context.WithCancelCause(r.bodies)
	r.bodies = ctx
	u.mu.Lock()
	defer u.mu.Unlock()
	u.drop[r] = unstoredBody{int64(len(r.end.Response.Body)), drop}
	u.bytes += u.drop[r].bytes
	for u.bytes > u.limit() {
		var largest *Run
		for other, body := range u.drop {
			if largest == nil || body.bytes > u.drop[largest].bytes {
				largest = other
			}
		}
		u.drop[largest].drop(errUnstoredLimit)
		u.removeLocked(largest)
	}
	return func() {
		drop(nil)
		u.remove(r)
	}
}

func (u *Unstored) remove(r *Run) {
	if u != nil {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.removeLocked(r)
	}
}

func (u *Unstored) removeLocked(r *Run) {
	u.bytes -= u.drop[r].bytes
	delete(u.drop, r)
}

// lateBodyTimeout is how long a body may take that is settled after [Engine.DropBodies].
const lateBodyTimeout = time.Second

// DropBodies settles all runs without their bodies that are not stored yet, for a process that exits: the
// status takes a moment, and without it a retry would be executed again. A run that ends later has
// [lateBodyTimeout] for its body.
func (e *Engine) DropBodies() { e.dropBodies(errStopping) }

// startBodies sets the context of the run's body.
func (r *Run) startBodies() (stop context.CancelFunc) {
	r.bodies = r.engine.bodies
	if r.bodies.Err() == nil {
		return func() {}
	}
	ctx, cancel := context.WithTimeoutCause(r.engine.ctx, lateBodyTimeout, errStopping)
	r.bodies = ctx
	return cancel
}

// hasBody reports whether the run still has a body to store.
func (r *Run) hasBody() bool { return r.end.Response != nil && len(r.end.Response.Body) > 0 }

// dropBody replaces the response of the run by a smaller form, and releases the memory of its body. It
// reports false if there is no smaller form.
func (r *Run) dropBody(cause error) bool {
	reduced := r.end.Response.Reduced()
	if reduced == nil {
		return false
	}
	what, reason := "the body of a response is not kept", cause.Error()
	if errors.Is(cause, idempotency.ErrTooLarge) {
		what, reason = "too large: the store does not take the body of a response; it is not kept", "the store has no room for it"
	}
	if r.hasBody() {
		r.logger().Warn(what, zap.Int("status", reduced.Status), zap.Int("bytes", len(r.end.Response.Body)), zap.Error(cause))
		r.engine.observer(r.observed).BodyDropped()
	}
	r.end.Response, r.end.Reason = reduced, "the response was not kept: "+reason
	r.flight.replaceResult(r.flightResult(r.settlement()))
	r.engine.options.Unstored.remove(r)
	r.responseDone()
	return true
}

// spread returns a time between half of d and d, so that runs that failed together are not retried
// together.
func spread(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

// movesBody reports whether a settlement takes as long as its body moves.
func movesBody(s idempotency.Settlement) bool {
	return s.Response != nil && len(s.Response.Body) > movingBody
}
