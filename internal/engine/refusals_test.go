package engine_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/memory"
)

// A store that answers and refuses a write is remembered for a minute after the last refusal. The
// times are those of the bubble, which begins at midnight.
func TestRefusedWrites(t *testing.T) {
	play(t, []scene{
		{"none", "", "a runs run; run ends 201 kept; a replays run; a refused nothing"},
		{"a claim", "{now|observed}", `
			a store {readonly|full} claim; a refuses {unavailable|full} -; a refused {read-only|the store is full} (since 2000-01-01T00:00:00Z, last at 2000-01-01T00:00:00Z)
			a store works; a runs run; run ends 201 kept; sleep 59s; a refused {read-only|full}; sleep 2s; a refused nothing`},
		{"a settlement, until a minute after it is stored", "retention=1h", `
			a runs run; a store readonly settle; sleep 1s; run ends 201 trying; sleep 10m
			a refused read-only (since 2000-01-01T00:00:01Z, last at 2000-01-01T00:; a store works; a drains; sleep 50s; a refused read-only; sleep 11s; a refused nothing`},
		{"a response that is too large", "", "a runs run; a store large settle; run ends 201 trying; a refused larger than the store has room for"},
		{"a renewal", "", "a runs run; a store readonly renew; sleep 10s; a refused read-only; a store works; run ends 201 kept"},
		{"an operator's change", "", `
			a runs run; run ends 201 kept; a store readonly {change|change|forget}; a {releases|completes run hand|forgets} readonly; a refused read-only`},
		{"a second trouble begins anew, with its own reason", "now", `
			a store readonly claim; a refuses unavailable -; sleep 50s; a store full claim; a refuses full -
			a refused the store is full (since 2000-01-01T00:00:00Z, last at 2000-01-01T00:00:50Z
			sleep 61s; a refuses full -; a refused the store is full (since 2000-01-01T00:01:51Z, last at 2000-01-01T00:01:51Z`},
		{"what is no refusal: the store cannot be asked, or answers by the rules", "{now|now|now|observed}", `
			a store {refused|hung|damaged|refused} claim; a refuses {unavailable|unavailable|unreadable|unavailable} - after=any; a store works; a runs run
			a store {gone|fenced|refused|hung} settle; run ends 500 {lost|fenced|trying|trying}; a refused nothing; a store works; a drains`},
		{"reads", "", "a runs run; run ends 201 kept; a store readonly lookup; a forgets; a refused nothing"},
	})
}

// impaired is a store that is damaged from a time on.
type impaired struct {
	*link
	reason string
	since  time.Time
}

func (s *impaired) Impairment() (string, time.Time) { return s.reason, s.since }

// What a store says of its damage stands first, for as long as it says it.
func TestImpairedStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(1 << 20)
		t.Cleanup(func() { _ = store.Close() })
		s := &impaired{link: newLink(store)}
		a := (&replica{t: t, link: s.link}).open(s, func(*engine.Options) {})
		want := func(want string) {
			t.Helper()
			if got := a.WritesRefused(); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		want("")
		s.reason, s.since = "the table 000007.sst is damaged", time.Now()
		time.Sleep(time.Hour)
		const damage = "the table 000007.sst is damaged (since 2000-01-01T00:00:00Z)"
		want(damage)
		s.failWith(idempotency.ErrFull, "claim")
		_, _ = a.Claim(context.Background(), someRequest())
		want(damage + "; the store is full (since 2000-01-01T01:00:00Z, last at 2000-01-01T01:00:00Z)")
		time.Sleep(2 * time.Minute)
		want(damage)
	})
}
