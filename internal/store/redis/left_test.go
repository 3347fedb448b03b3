package redis

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// often releases the key twelve times, perhaps with an operator's release after each. That is more often than a
// record can remember tokens.
func often(byOperator bool) act {
	return func(t *testing.T, s *Store, c idempotency.Claim) *idempotency.Record {
		for i := range 12 {
			run := withToken(c, fmt.Sprint("token", i))
			ends(released())(t, s, run)
			if byOperator {
				must(t, storetest.ErrOf(s.Change(ctx, c.Key, idempotency.Change{State: idempotency.Released, Token: fmt.Sprint("operator", i)})))
			}
		}
		return nil
	}
}

func operator(change idempotency.Change) act {
	return func(t *testing.T, s *Store, c idempotency.Claim) *idempotency.Record {
		must(t, storetest.ErrOf(s.Change(ctx, c.Key, change)))
		return nil
	}
}

// forced runs over a kept response, and lapses.
func forcedLapses(t *testing.T, s *Store, c idempotency.Claim) *idempotency.Record {
	c = withToken(c, "forced")
	c.Force = true
	return lapses(t, s, c)
}

// lost settles a run whose record is gone.
func lost(t *testing.T, s *Store, c idempotency.Claim) *idempotency.Record {
	record := mustClaim(t, s, c, idempotency.Proceed).Record
	s.client.FlushAll(ctx)
	wantErr(t, s.Settle(ctx, c.Key, record, kept(large)), idempotency.ErrGone)
	return nil
}

// fenced settles a run whose key another run has, and again.
func fenced(t *testing.T, s *Store, c idempotency.Claim) *idempotency.Record {
	record := mustClaim(t, s, c, idempotency.Proceed).Record
	mustSettle(t, s, c, record, released())
	mustSettle(t, s, c, record, kept(large)) // it was settled before
	next := runs(t, s, c)
	wantErr(t, s.Settle(ctx, c.Key, record, kept(large)), idempotency.ErrFenced)
	wantErr(t, readsBody(s, c.Key, c.Token, len("busy")), nil)
	return next
}

// TestWhatIsLeftInRedis has, for what was done with a key, what Redis has then, and until when. Forgetting the key
// leaves nothing.
func TestWhatIsLeftInRedis(t *testing.T) {
	day, hour := 24*time.Hour, time.Hour
	beside := day + responseMargin
	for name, test := range map[string]struct {
		do act
		// left has what names have behind that of the record, and how long they live; nil for anything.
		left map[string]time.Duration
		// inside is how many bytes of the response are in the value, at least.
		inside   int
		earlier  string // tokens that the record remembers
		survives int    // keys that are left when it is forgotten: they expire
	}{
		"a claim":                     {do: runs, left: map[string]time.Duration{"": day}},
		"a small response":            {do: ends(kept(7 << 10)), left: map[string]time.Duration{"": day}, inside: 7 << 10},
		"a large response":            {do: ends(kept(8<<10 + 1)), left: map[string]time.Duration{"": day, ":token": beside}},
		"a released answer":           {do: ends(released()), left: map[string]time.Duration{"": day, ":token": hour}},
		"a settlement of a lost run":  {do: lost, left: map[string]time.Duration{}},
		"a settlement that is fenced": {do: fenced, left: map[string]time.Duration{"": day, ":token": hour}, earlier: "token"},
		"an operator's release":       {do: after(ends(kept(small)), operates), left: map[string]time.Duration{"": day}, earlier: "token"},
		"a release of a large response": {
			do: after(ends(kept(large)), operates), left: map[string]time.Duration{"": day, ":token": beside}, earlier: "token",
		},
		"a release of a lapsed forced run": {
			do: after(ends(kept(large)), forcedLapses, operates), left: map[string]time.Duration{"": day - time.Second, ":token": beside - time.Second}, earlier: "forced token",
		},
		"an operator's response": {
			do: after(ends(released()), operator(operatorCompletes(small))), left: map[string]time.Duration{"": day, ":token": hour}, inside: small, earlier: "token",
		},
		"an operator's large response": {
			do: after(ends(released()), operator(operatorCompletes(large))), left: map[string]time.Duration{"": day, ":token": hour, ":operator": beside}, earlier: "token",
		},
		"many releases": {
			do: often(false), earlier: "token10 token9 token8 token7 token6 token5 token4 token3", survives: 3,
		},
		"many releases, and an operator's": {
			do: often(true), earlier: "token11 operator10 token10 operator9 token9 operator8 token8 operator7", survives: 8,
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, server fake) {
				s, _ := server.open(t, Options{})
				c := claimOf("a", "token")
				record := named.record(c.Key)
				test.do(t, s, c)
				left := make(map[string]time.Duration)
				for _, key := range server.Keys() {
					left[strings.TrimPrefix(key, record)] = server.TTL(key)
				}
				if test.left != nil && !maps.Equal(left, test.left) {
					t.Errorf("Redis has %v, want %v", left, test.left)
				}
				if life, ok := left[""]; ok {
					p := readWritable(t, must1(server.Get(record)))
					if size := len(p.response); size < test.inside || size > test.inside+1<<10 || p.earlier != test.earlier {
						t.Errorf("the value has %d bytes of a response and the tokens %q; want %d and %q", size, p.earlier, test.inside, test.earlier)
					}
					found := mustFind(t, s, c.Key)
					if !found.Expires.Equal(time.Now().Add(life)) {
						t.Errorf("the record says that it expires at %v, and it lives %v from %v on", found.Expires, life, time.Now())
					}
					if found.State == idempotency.InFlight {
						time.Sleep(time.Hour)
					}
					forgets(t, s, c)
				}
				storetest.Equal(t, len(server.Keys()), test.survives, "keys left when it is forgotten")
			})
		})
	}
}

// A released record drops the channels of waiters, and a completed one that was released meanwhile keeps its
// body.
func TestOperatorsRecord(t *testing.T) {
	inBubble(t, func(t *testing.T, server fake) {
		other, _ := server.open(t, Options{})
		s, l := server.open(t, Options{})
		c := claimOf("a", "token")
		ends(kept(small))(t, s, c)
		record := named.record(c.Key)
		p := readWritable(t, must1(server.Get(record)))
		p.channels = named.inbox("of a waiter")
		must(t, server.Set(record, p.String()))
		operates(t, s, c)
		if left := readWritable(t, must1(server.Get(record))); left.channels != "" || left.response != "" {
			t.Errorf("the released record has the channels %q and the response %q", left.channels, left.response)
		}
		l.setFor(changeScript.hash, 1, func() fault { operates(t, other, c); return noFault })
		operator(operatorCompletes(large))(t, s, c)
		must(t, readsBody(s, c.Key, "operator", large))
	})
}

// The SCAN pattern matches records only, among everything that a store writes.
func TestListTransfersRecordsOnly(t *testing.T) {
	inBubble(t, func(t *testing.T, server fake) {
		s, _ := server.open(t, Options{})
		ends(kept(large))(t, s, claimOf("large", "token"))
		ends(released())(t, s, claimOf("released", "token"))
		for _, name := range []string{named.unsettled(keyOf("large"), "token", new(idempotency.Response)), DefaultPrefix + "another's", DefaultPrefix + "{another's}"} {
			must(t, server.Set(name, ""))
		}
		got, _, err := s.client.Scan(ctx, 0, named.records(""), 1000).Result()
		must(t, err)
		want := []string{DefaultPrefix + "{another's}", named.record(keyOf("large")), named.record(keyOf("released"))}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("the pattern %s lets through %q, want %q", named.records(""), got, want)
		}
		if keys := listAll(t, s); len(keys) != 2 || !slices.Contains(keys, keyOf("large")) || !slices.Contains(keys, keyOf("released")) {
			t.Errorf("listed %v, want the two records", keys)
		}
	})
}
