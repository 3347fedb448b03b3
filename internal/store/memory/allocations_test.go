//go:build !race

// The race detector empties pools at random.

package memory

import (
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

func TestAllocationsOfAFirstDelivery(t *testing.T) {
	const runs = 1000
	s := New(64 << 20)
	defer s.Close()
	settlement, claims := kept(512), make([]idempotency.Claim, runs+1)
	for n := range claims {
		claims[n] = delivery(n)
	}
	n := 0
	// For the claim, its record, the next one of the settlement, and the growth of maps and blocks.
	if got := testing.AllocsPerRun(runs, func() {
		must(t, deliver(s, claims[n], settlement))
		n++
	}); got > 5 {
		t.Errorf("claim and settle take %v allocations, want at most 5", got)
	}
}
