package engine

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
)

type valueKey struct{}

// An operation ends at its time limit or when it is over, and for nothing else, whether
// somebody waits for that or only looks.
func TestOperationEnds(t *testing.T) {
	const limit = 5 * time.Second
	for name, c := range map[string]struct {
		end   func(o *operation, cancelClient context.CancelFunc)
		err   error
		after time.Duration // when it has ended
	}{
		"at the limit":               {func(*operation, context.CancelFunc) {}, context.DeadlineExceeded, limit},
		"when it is over":            {func(o *operation, _ context.CancelFunc) { o.end() }, context.Canceled, 0},
		"not when the client leaves": {func(_ *operation, cancelClient context.CancelFunc) { cancelClient() }, context.DeadlineExceeded, limit},
	} {
		for how, prepare := range map[string]func(t *testing.T, o *operation) context.Context{
			"looked at":               func(_ *testing.T, o *operation) context.Context { return o },
			"waited for":              func(_ *testing.T, o *operation) context.Context { o.Done(); return o },
			"a context is made of it": func(_ *testing.T, o *operation) context.Context { return context.WithValue(o, valueKey{}, "own") },
			"a context is made that is waited": func(t *testing.T, o *operation) context.Context {
				ctx, cancel := context.WithCancel(o)
				t.Cleanup(cancel)
				return ctx
			},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					client, cancelClient := context.WithCancel(context.WithValue(t.Context(), valueKey{}, "client"))
					defer cancelClient()
					e := &Engine{log: zap.NewNop()}
					e.timeout.Store(int64(limit))
					o := e.operation(client)
					defer o.end()
					ctx := prepare(t, o)
					if err := errors.Join(ctx.Err(), context.Cause(ctx)); err != nil || ctx.Value(valueKey{}) == nil {
						t.Fatalf("it begins with the error %v and the value %v", err, ctx.Value(valueKey{}))
					}
					if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) != limit {
						t.Errorf("its deadline is in %v, %v; want %v", time.Until(deadline), ok, limit)
					}
					c.end(o, cancelClient)
					begun := time.Now()
					if c.after > 0 {
						synctest.Wait()
						if ctx.Err() != nil {
							t.Errorf("it ends early: %v", ctx.Err())
						}
						time.Sleep(c.after)
						synctest.Wait()
					}
					if how == "a context is made that is waited" {
						<-ctx.Done() // the child learns of the end without asking
					}
					if err := ctx.Err(); !errors.Is(err, c.err) {
						t.Errorf("it ends with %v; want %v", err, c.err)
					}
					<-ctx.Done()
					if took := time.Since(begun); took != c.after {
						t.Errorf("it has ended after %v; want %v", took, c.after)
					}
				})
			})
		}
	}
}

// An operation that only is looked at costs itself and nothing else: no timer, no
// channel.
func TestOperationAllocates(t *testing.T) {
	e := &Engine{}
	e.timeout.Store(int64(time.Second))
	var kept *operation
	if n := testing.AllocsPerRun(100, func() {
		kept = e.operation(t.Context())
		if kept.Err() != nil {
			t.Error(kept.Err())
		}
		kept.end()
	}); n > 1 {
		t.Errorf("an operation allocates %v times; want once", n)
	}
}
