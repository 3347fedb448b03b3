//go:build !race

package file

import (
	"fmt"
	"testing"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// TestAllocations holds how many objects a first delivery takes, in the goroutines behind it
// too: a claim, and a settlement that keeps a response. And how many a duplicate takes, whose
// record pebble is asked for.
func TestAllocations(t *testing.T) {
	s, err := Open(newPath(t), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	filterMade(t, s)
	const runs = 500
	settlement := smallResponse()
	claims := make([]idempotency.Claim, runs+1)
	for i := range claims {
		claims[i] = claimOf(fmt.Sprint(i))
	}
	for _, c := range []struct {
		what string
		most float64
		do   func(c idempotency.Claim) error
	}{
		{"first delivery", 25, func(c idempotency.Claim) error {
			claimed, err := s.Claim(t.Context(), c)
			if err != nil {
				return err
			}
			return s.Settle(t.Context(), c.Key, claimed.Record, settlement)
		}},
		{"duplicate", 27, func(idempotency.Claim) error {
			_, err := ask(s, "0")
			return err
		}},
	} {
		n := 0
		if got := testing.AllocsPerRun(runs, func() {
			if err := c.do(claims[n]); err != nil {
				t.Fatal(err)
			}
			n++
		}); got > c.most {
			t.Errorf("a %s allocates %v times, want at most %v", c.what, got, c.most)
		}
	}
}
