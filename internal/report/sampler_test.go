package report

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestOneASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o Sampler
		var counted int64
		for second := range 3 {
			var lines, leftOut atomic.Int64
			var all sync.WaitGroup
			for range 100 {
				all.Go(func() {
					if n, ok := o.Allow("a"); ok {
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
			time.Sleep(time.Second)
		}
		if n, ok := o.Allow("a"); !ok || counted+n != 3*99 {
			t.Errorf("%d lines are counted as left out, want %d", counted+n, 3*99)
		}
		time.Sleep(time.Second - 1)
		if _, ok := o.Allow("a"); ok {
			t.Error("a second line is logged within a second")
		}
	})
}

// A flood of requests without a key costs nothing that is not logged.
func TestLeftOutLineAllocatesNothing(t *testing.T) {
	var o Sampler
	if n := testing.AllocsPerRun(100, func() { o.Allow("a") }); n != 0 { // the first one is not counted
		t.Errorf("a line that is left out allocates %v times", n)
	}
}

// One reason hides no other, and reasons that clients make up take a bounded room.
func TestOneASecondForEachReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o Sampler
		lines := make(map[string]int)
		for range 3 {
			for _, reason := range []string{"stripe: no signature matches", "github: no signature matches"} {
				if _, ok := o.Allow(reason); ok {
					lines[reason]++
				}
			}
		}
		if len(lines) != 2 || lines["stripe: no signature matches"] != 1 {
			t.Errorf("the lines are %v, want one of each", lines)
		}
		for n := range 10 * maxReasons {
			o.Allow(strings.Repeat("x", n))
		}
		if len(o.reasons) > maxReasons+1 {
			t.Errorf("%d reasons are kept", len(o.reasons))
		}
		if _, ok := o.Allow("not JSON at byte 17"); ok {
			o.Allow("not JSON at byte 18")
		}
		if _, ok := o.Allow("not JSON at byte 19"); ok {
			t.Error("a position makes a reason of its own")
		}
		time.Sleep(time.Second)
		if _, ok := o.Allow("genuine"); !ok {
			t.Error("a reason has no line after a second")
		}
	})
}
