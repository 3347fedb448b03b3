//go:build !race

// The race detector empties pools at random.

package memory_test

import (
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/memory"
)

func TestAllocationsOfAFirstDelivery(t *testing.T) {
	const runs = 1000
	s := memory.New(64 << 20)
	defer s.Close()
	settlement, claims := kept(512), make([]idempotency.Claim, runs+1)
	for n := range claims {
		claims[n] = delivery(n)
	}
	n := 0
	// The record of the claim, and for the settlement the record and its texts as they
	// are read, and the next one. One more is for a pool that may be empty.
	if got := testing.AllocsPerRun(runs, func() {
		if err := deliver(s, claims[n], settlement); err != nil {
			t.Fatal(err)
		}
		n++
	}); got > 17 {
		t.Errorf("claim and settle take %v allocations, want at most 17", got)
	}
}
