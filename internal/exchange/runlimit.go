package exchange

import (
	"context"
	"time"
)

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
