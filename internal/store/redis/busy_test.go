package redis

import (
	"fmt"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// TestRecordThatChangesManyTimes has others at the key between each look and the write
// that follows it, many times in a row. There is time left, so that is no failure.
func TestRecordThatChangesManyTimes(t *testing.T) {
	const times = 40
	server := redistest.Start(t)
	other := closeAtEnd(t, openAt(t, server.Addr))
	for name, test := range map[string]struct {
		script *script
		do     func(s *Store, c idempotency.Claim) error
	}{
		"claimed": {claimScript, func(s *Store, c idempotency.Claim) error {
			claimed, err := s.Claim(ctx, withToken(c, "next"))
			if err == nil && claimed.Verdict != idempotency.Proceed {
				err = fmt.Errorf("verdict %v, want %v", claimed.Verdict, idempotency.Proceed)
			}
			return err
		}},
		"freed":     {freeScript, func(s *Store, c idempotency.Claim) error { _, err := s.Free(ctx, c.Key, "operator"); return err }},
		"forgotten": {forgetScript, func(s *Store, c idempotency.Claim) error { return s.Forget(ctx, c.Key) }},
	} {
		t.Run(name, func(t *testing.T) {
			c := claimOf(name, "token")
			changes := make(map[int]func())
			for i := range times {
				changes[i+1] = func() {
					if _, err := other.Free(ctx, c.Key, fmt.Sprint("another operator ", i)); err != nil {
						t.Fatalf("free: %v", err)
					}
				}
			}
			s := openMeddled(t, server.Addr, generous, test.script, changes)
			mustSettle(t, other, c, mustClaim(t, other, c, idempotency.Proceed).Record, released())
			if err := test.do(s, c); err != nil {
				t.Errorf("it is not %s: %v", name, err)
			}
		})
	}
}
