package idempotency

import (
	"context"
	"sync"
	"time"
)

// Progress is when bytes last moved between a store and its disk or its server.
type Progress struct {
	mu   sync.Mutex
	last time.Time
}

// Moved records that bytes have moved.
func (p *Progress) Moved() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = time.Now()
}

func (p *Progress) moved() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

// IdleTimeout is how long a step that moves a body may go without moving a byte. timeout is that of
// one operation of the store.
func IdleTimeout(timeout time.Duration) time.Duration { return max(2*time.Second, 4*timeout) }

// movingContext is the context of [WithProgress].
type movingContext struct {
	context.Context
	cancel context.CancelCauseFunc
	idle   time.Duration

	mu    sync.Mutex
	timer *time.Timer
	of    *Progress // nil until the step follows one
	since time.Time // when it began to follow
}

type movingKey struct{}

// WithProgress returns a context for a step that moves a body. It ends after timeout, like that of
// [context.WithTimeout], unless the store calls [Follow]: from then on, it ends when no byte has moved
// for the [IdleTimeout]. It has no deadline, since that moves.
func WithProgress(parent context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	c := &movingContext{idle: IdleTimeout(timeout)}
	c.Context, c.cancel = context.WithCancelCause(parent)
	c.timer = time.AfterFunc(timeout, c.expire)
	return c, func() {
		c.timer.Stop()
		c.cancel(nil)
	}
}

// Follow moves the end of a [WithProgress] context with the progress, and restarts its time. It does
// nothing for other contexts.
func Follow(ctx context.Context, p *Progress) {
	c, ok := ctx.Value(movingKey{}).(*movingContext)
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of, c.since = p, time.Now()
	if c.timer.Stop() {
		c.timer.Reset(c.idle)
	}
}

// expire ends the context, unless bytes have moved since.
func (c *movingContext) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of != nil {
		last := c.of.moved()
		if last.Before(c.since) {
			last = c.since
		}
		if left := c.idle - time.Since(last); left > 0 {
			c.timer.Reset(left)
			return
		}
	}
	c.cancel(context.DeadlineExceeded)
}

// Value implements [context.Context].
func (c *movingContext) Value(key any) any {
	if key == (movingKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// Err implements [context.Context]. It is [context.DeadlineExceeded] if no byte has moved for too long.
func (c *movingContext) Err() error {
	if c.Context.Err() == nil {
		return nil
	}
	return context.Cause(c.Context)
}
