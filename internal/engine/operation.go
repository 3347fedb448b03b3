package engine

import (
	"context"
	"sync"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// operation is the context of one operation of the store. It has a time limit of its
// own, and of the context that it is made from only the values: a client that goes away
// must not leave a claim in doubt.
//
// Most operations are over long before their limit, and most stores look at the limit
// and wait for nothing. So the timer and the channel are made when somebody asks for
// the channel.
type operation struct {
	values   context.Context
	deadline time.Time

	mu    sync.Mutex
	ended bool
	// timed has timer and channel, and is ended by cancel; nil while nobody has asked
	// for them.
	timed  context.Context
	cancel context.CancelFunc
}

var _ idempotency.TimedContext = (*operation)(nil)

// operation returns the context for one operation of the store, which is to be ended.
func (e *Engine) operation(values context.Context) *operation {
	o := new(operation)
	o.begin(values, e.storeTimeout())
	return o
}

// begin makes an operation of a zero one.
func (o *operation) begin(values context.Context, timeout time.Duration) {
	o.values, o.deadline = values, time.Now().Add(timeout)
}

// end says that the operation is over.
func (o *operation) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	if o.cancel != nil {
		o.cancel()
	}
}

// EndsByTimeAlone implements [idempotency.TimedContext]: end is called when the store has
// returned.
func (o *operation) EndsByTimeAlone() {}

// Deadline implements [context.Context].
func (o *operation) Deadline() (time.Time, bool) { return o.deadline, true }

// Done implements [context.Context].
func (o *operation) Done() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.timed == nil {
		o.timed, o.cancel = context.WithDeadline(context.WithoutCancel(o.values), o.deadline)
		if o.ended {
			o.cancel()
		}
	}
	return o.timed.Done()
}

// Err implements [context.Context].
func (o *operation) Err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.timed != nil:
		return idempotency.EndOf(o.timed) // its timer may be late
	case o.ended:
		return context.Canceled
	case !time.Now().Before(o.deadline):
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// Value implements [context.Context]. Package context asks it, too, for what ends the
// contexts that are made from this one: that is timed, and never the client's.
func (o *operation) Value(key any) any {
	o.mu.Lock()
	timed := o.timed
	o.mu.Unlock()
	if timed == nil {
		timed = context.WithoutCancel(o.values)
	}
	return timed.Value(key)
}
