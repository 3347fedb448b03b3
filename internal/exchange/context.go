package exchange

import (
	"context"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// runContext is what the context of a run is made from. It has the values of the client's
// context, and does not end with it, like that of [context.WithoutCancel]. It also says
// which run it is.
type runContext struct {
	client      context.Context
	executionID string
}

type runKey struct{}

// runOf returns the run in this process that a context belongs to, nil for none.
func runOf(ctx context.Context) *runContext {
	run, _ := ctx.Value(runKey{}).(*runContext)
	return run
}

// Deadline implements [context.Context].
func (*runContext) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done implements [context.Context].
func (*runContext) Done() <-chan struct{} { return nil }

// Err implements [context.Context].
func (*runContext) Err() error { return nil }

// Value implements [context.Context].
func (c *runContext) Value(key any) any {
	switch {
	case key == (runKey{}):
		return c
	case noIdleTimeouts.Value(key) != nil:
		reader, _ := caddyhttp.IdleTimeoutsFromContext(c.client)
		return caddyhttp.ContextWithIdleTimeouts(context.Background(), reader, nil).Value(key)
	}
	return c.client.Value(key)
}

// noIdleTimeouts tells the key under which Caddy has the client's writer with its time limit.
// A `timeouts` handler behind would change that while the client is being written to.
var noIdleTimeouts = caddyhttp.ContextWithIdleTimeouts(context.Background(), nil, nil)

// runLimit is the time limit of a run, and the context that ends with it. Its end is that
// of a deadline: reverse_proxy tells one (504) from a request that was given up (499).
type runLimit struct {
	context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	ends   time.Time
}

// begin returns a context that ends with the limit.
func (l *runLimit) begin(ctx context.Context, timeout time.Duration) context.Context {
	l.Context, l.cancel = context.WithCancelCause(ctx)
	l.ends = time.Now().Add(timeout)
	l.timer = time.AfterFunc(timeout, l.exceed)
	return l
}

// Err implements [context.Context]. It is the cause: for HTTP/2, Go's transport asks for
// nothing else.
func (l *runLimit) Err() error { return context.Cause(l.Context) }

func (l *runLimit) exceed() { l.cancel(context.DeadlineExceeded) }

// end ends the run's context.
func (l *runLimit) end() {
	l.timer.Stop()
	l.cancel(nil)
}

// lift removes the limit.
func (l *runLimit) lift() { l.timer.Stop() }

// pause stops the time until what it returns is called.
func (l *runLimit) pause() (resume func()) {
	if !l.timer.Stop() { // it is lifted, or over
		return func() {}
	}
	paused := time.Now()
	return func() {
		l.ends = l.ends.Add(time.Since(paused))
		l.timer.Reset(time.Until(l.ends))
	}
}
