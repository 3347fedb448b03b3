package load

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestScheduleHasItsRate(t *testing.T) {
	arrivals := Schedule(1000, 100*time.Second, 1)
	// The count of a Poisson process differs from its mean by 316 at one in three seeds;
	// by 2,000 it does not with this seed, nor with any other in a lifetime.
	if n := len(arrivals); n < 98_000 || n > 102_000 {
		t.Errorf("1000 a second in 100 s are %d arrivals", n)
	}
	if !slices.IsSorted(arrivals) || arrivals[0] <= 0 || arrivals[len(arrivals)-1] >= 100*time.Second {
		t.Error("the arrivals are not in order, or outside of their time")
	}
	if again := Schedule(1000, 100*time.Second, 1); !slices.Equal(arrivals, again) {
		t.Error("the same seed gives other arrivals")
	}
	if other := Schedule(1000, 100*time.Second, 2); slices.Equal(arrivals, other) {
		t.Error("another seed gives the same arrivals")
	}
}

// While the server stands still the schedule goes on, and each request that it delays
// is as late as the stall made it.
func TestAStallShowsInTheLatencies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		arrivals := make([]time.Duration, 100)
		for i := range arrivals {
			arrivals[i] = time.Duration(i) * 10 * time.Millisecond
		}
		began := time.Now()
		stall := began.Add(500 * time.Millisecond)
		var inFlight, most atomic.Int64
		got := open(t.Context(), arrivals, 1, func(context.Context) string {
			most.Store(max(most.Load(), inFlight.Add(1)))
			defer inFlight.Add(-1)
			if at := time.Now(); !at.Before(stall) && at.Before(stall.Add(200*time.Millisecond)) {
				time.Sleep(time.Until(stall.Add(200 * time.Millisecond)))
			}
			return ""
		})
		if got.Good() != 100 || got.Unanswered != 0 || most.Load() != 1 {
			t.Fatalf("%d answers, %d unanswered, %d in flight", got.Good(), got.Unanswered, most.Load())
		}
		slices.Sort(got.Latencies)
		late := 0
		for _, latency := range got.Latencies {
			if latency > 0 {
				late++
			}
		}
		// Those from 500 ms until just before 700 ms: 200 ms late, 190 ms late, and so on.
		if late != 20 || got.Latencies[99] != 200*time.Millisecond || got.Latencies[98] != 190*time.Millisecond {
			t.Errorf("%d requests were late, the latest by %v", late, got.Latencies[95:])
		}
	})
}

func TestWhatIsNotAnsweredIsCountedAsItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := open(t.Context(), []time.Duration{0, 100 * time.Millisecond}, 1, func(ctx context.Context) string {
			<-ctx.Done()
			return ctx.Err().Error()
		})
		if got.Unanswered != 2 || got.Good() != 0 || len(got.Failed) != 0 {
			t.Fatalf("%d unanswered, %d good, failed: %v", got.Unanswered, got.Good(), got.Failed)
		}
		if slices.Max(got.Latencies) != openPatience+100*time.Millisecond || slices.Min(got.Latencies) != openPatience {
			t.Errorf("the latencies are %v", got.Latencies)
		}
	})
}
