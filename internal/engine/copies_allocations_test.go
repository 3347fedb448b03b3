//go:build !race

// With the race detector, the compiler keeps allocations that it otherwise avoids.

package engine_test

import (
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
)

// A copy of a response costs little more than its encoding.
func TestAllocationsOfCopying(t *testing.T) {
	n, response := 0, typicalResponse(512)
	firsts := func(limit int64) float64 {
		e, req := newBenchmarked(t, engine.NewCopies(limit)), someRequest()
		return testing.AllocsPerRun(1000, func() {
			n++
			runWith(t, e, req, n, response)
		})
	}
	without := firsts(0)
	with := firsts(100 << 10) // so that most copies take the place of another
	t.Logf("a first request makes %v allocations without copies, and %v with them", without, with)
	if with > without+10 {
		t.Errorf("a first request makes %v allocations without copies, and %v with them, want at most 10 more", without, with)
	}
}

// A duplicate that is answered from a copy costs next to nothing.
func TestAllocationsOfACopy(t *testing.T) {
	a := newReplicaWithCopies(t, newShared(t), engine.NewCopies(someCopies))
	req := someRequest()
	wantEnd(t, a.run(req), created("paid"), resultKept)
	if n := testing.AllocsPerRun(100, func() { as[engine.Replay](t, a.claim(req)) }); n > 2 {
		t.Errorf("a duplicate makes %v allocations, want at most 2", n)
	} else {
		t.Logf("a duplicate makes %v allocations", n)
	}
}
