package idempotency

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestProgressExtendsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		endsAfter := func(ctx context.Context) time.Duration {
			<-ctx.Done()
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				t.Errorf("it ended with %v", ctx.Err())
			}
			return time.Since(start)
		}
		still, cancel := WithProgress(t.Context(), time.Second)
		defer cancel()
		if got := endsAfter(still); got != time.Second {
			t.Errorf("a step that moves nothing ended after %v, want 1s", got)
		}

		var p Progress
		start = time.Now()
		moving, cancel := WithProgress(t.Context(), time.Second)
		defer cancel()
		Follow(moving, &p)
		for range 10 {
			time.Sleep(3900 * time.Millisecond)
			p.Moved()
		}
		if got, want := endsAfter(moving), 43*time.Second; got != want {
			t.Errorf("a step whose bytes moved until 39s ended after %v, want %v", got, want)
		}

		start = time.Now()
		waiting, cancel := WithProgress(t.Context(), 10*time.Millisecond)
		defer cancel()
		Follow(waiting, &p)
		time.Sleep(1500 * time.Millisecond)
		Follow(waiting, &p) // it has its turn
		if got, want := endsAfter(waiting), 3500*time.Millisecond; got != want {
			t.Errorf("a step that had its turn at 1.5s ended after %v, want %v", got, want)
		}
	})
}

func TestProgressContextEndsWithParent(t *testing.T) {
	parent, stop := context.WithCancel(t.Context())
	ctx, cancel := WithProgress(parent, time.Hour)
	defer cancel()
	stop()
	<-ctx.Done()
	if !errors.Is(ctx.Err(), context.Canceled) {
		t.Errorf("it ended with %v", ctx.Err())
	}
}
