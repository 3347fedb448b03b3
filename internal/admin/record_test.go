package admin

import (
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Each state has one word, which operators see in records and in the log.
func TestShownStates(t *testing.T) {
	now := time.Now()
	for _, state := range []idempotency.State{idempotency.InFlight, idempotency.Complete, idempotency.Released, idempotency.Held} {
		for _, left := range []time.Duration{time.Second, 0, -time.Hour} {
			for _, hold := range []bool{false, true} {
				want := map[idempotency.State]string{
					idempotency.InFlight: "in_flight", idempotency.Complete: "complete", idempotency.Released: "released", idempotency.Held: "held",
				}[state]
				switch {
				case state == idempotency.InFlight && left <= 0 && hold:
					want = "held"
				case state == idempotency.InFlight && left <= 0:
					want = "lapsed"
				}
				if got := StateOf(&idempotency.Record{State: state, Hold: hold, LeaseUntil: now.Add(left)}, now); got != want {
					t.Errorf("%s with a lease of another %s, hold %v: shown as %q, want %q", state, left, hold, got, want)
				}
			}
		}
	}
}
