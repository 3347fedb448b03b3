package exchange

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestOneASecond(t *testing.T) {
	var o logSampler
	var counted int64
	for second := range 3 {
		var lines, leftOut atomic.Int64
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				if n, ok := o.allow(time.Duration(second) * time.Second); ok {
					lines.Add(1)
					leftOut.Add(n)
				}
			})
		}
		all.Wait()
		if lines.Load() != 1 {
			t.Errorf("second %d has %d lines, want 1", second, lines.Load())
		}
		counted += leftOut.Load()
	}
	if n, ok := o.allow(time.Minute); !ok || counted+n != 3*99 {
		t.Errorf("%d lines are counted as left out, want %d", counted+n, 3*99)
	}
	if _, ok := o.allow(time.Minute + time.Second - 1); ok {
		t.Error("a second line is logged within a second")
	}
}

// A flood of requests without a key costs nothing that is not logged.
func TestLeftOutLineAllocatesNothing(t *testing.T) {
	var o logSampler
	o.allow(0)
	if n := testing.AllocsPerRun(100, func() { o.allow(0) }); n != 0 {
		t.Errorf("a line that is left out allocates %v times", n)
	}
}
