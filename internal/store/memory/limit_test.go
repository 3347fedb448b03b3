package memory

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// There is room left for the responses of runs in flight. While one of them waits for more, no run
// begins under a new key: it would wait as well.
func TestNoNewKeyWhileAResponseWaits(t *testing.T) {
	for size, wait := range map[int]bool{500: false, 5_000: true, 20_000: true, 120_000: true} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { fillWithRunsInFlight(t, size, wait) })
		})
	}
}

func fillWithRunsInFlight(t *testing.T, size int, waits bool) {
	const limit, runs = 1 << 20, 60
	s := New(limit)
	defer s.Close()
	waiting := make(map[int]*idempotency.Record)
	for n := range runs {
		c := claim(n)
		c.Retention = 1000 * time.Hour
		waiting[n] = mustClaim(t, s, c)
	}
	fill(t, s, runs, 500)
	for hours := 0; len(waiting) > 0; hours++ {
		for n, record := range waiting {
			switch err := s.Settle(t.Context(), claim(n).Key, record, complete(size)); {
			case err == nil:
				delete(waiting, n)
			case !errors.Is(err, idempotency.ErrFull):
				t.Fatal(err)
			default:
				wantErr(t, storetest.ErrOf(s.Claim(t.Context(), claim(-1))), idempotency.ErrFull)
			}
			if taken := s.taken(); taken > limit+runs*300 {
				t.Fatalf("it takes %d bytes", taken)
			}
		}
		if hours == 0 && (len(waiting) > 0) != waits {
			t.Fatalf("%d of %d responses wait", len(waiting), runs)
		}
		time.Sleep(time.Hour)
		if hours == runs {
			t.Fatalf("%d responses still wait", len(waiting))
		}
	}
	mustClaim(t, s, claim(-1))
}

// What does not begin a run under a new key goes on in a full store.
func TestKnownKeysInAFullStore(t *testing.T) {
	s := New(1 << 20)
	defer s.Close()
	record := mustClaim(t, s, claim(-1))
	fill(t, s, 0, 500)
	for n := -2; ; n-- { // up to the limit
		c := claim(0)
		c.Token, c.Force = claim(n).Token, true
		if err := s.Settle(t.Context(), c.Key, mustClaim(t, s, c), complete(5_000)); err != nil {
			break
		}
	}
	want := func(what string, c idempotency.Claim, want idempotency.Verdict) *idempotency.Record {
		t.Helper()
		got, err := s.Claim(t.Context(), c)
		if err != nil || got.Verdict != want {
			t.Fatalf("%s: %v, %v, want %v", what, got.Verdict, err, want)
		}
		return got.Record
	}
	next := func(c idempotency.Claim) idempotency.Claim { c.Token += "'"; return c }
	want("a duplicate", next(claim(1)), idempotency.ReplayKept)
	want("a duplicate of a run", next(claim(-1)), idempotency.WaitForRun)
	want("the same claim again", claim(-1), idempotency.Proceed)
	wantErr(t, s.Renew(t.Context(), claim(-1)), nil)
	wantErr(t, s.Settle(t.Context(), claim(-1).Key, record, complete(20_000)), idempotency.ErrFull)
	want("a duplicate of a run whose response waits", next(claim(-1)), idempotency.WaitForRun)
	released := idempotency.Settlement{State: idempotency.Released, Counted: true, Retention: time.Hour, AnswerRetention: time.Hour}
	released.Response = complete(20_000).Response
	settle(t, s, record, claim(-1), released) // without the response
	record = want("a retry after a release", next(claim(-1)), idempotency.Proceed)
	settle(t, s, record, claim(-1), idempotency.Settlement{State: idempotency.Held, Counted: true, Retention: time.Hour})
	wantErr(t, storetest.ErrOf(s.Change(t.Context(), claim(-1).Key, idempotency.Change{State: idempotency.Released, Token: "another"})), nil)
	wantErr(t, s.Forget(t.Context(), claim(-1).Key, idempotency.Precondition{}), nil)
}

// A response of more than an eighth of the limit is kept if there is room, and does not wait for it.
func TestLargeResponseDoesNotWait(t *testing.T) {
	const limit = 1 << 20
	s := New(limit)
	defer s.Close()
	settle(t, s, mustClaim(t, s, claim(0)), claim(0), complete(limit/2))
	record := mustClaim(t, s, claim(1))
	for _, settlement := range []idempotency.Settlement{complete(limit / 2), complete(2 * limit)} {
		wantErr(t, s.Settle(t.Context(), claim(1).Key, record, settlement), idempotency.ErrTooLarge, len(settlement.Response.Body))
		if found, _, err := s.Lookup(t.Context(), claim(1).Key); err != nil || found.State != idempotency.InFlight {
			t.Errorf("after that: %+v, %v; want the run still in flight", found, err)
		}
	}
	reduced := complete(0)
	reduced.Response = complete(limit).Response.Reduced()
	settle(t, s, record, claim(1), reduced)
}

// What has expired makes room before a sweep.
func TestExpiredResponsesMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(1 << 20)
		defer s.Close()
		first := fill(t, s, 10_000, 500) - 10_000
		s.sweeper.Stop()
		time.Sleep(time.Hour)
		if again := fill(t, s, 20_000, 500) - 20_000; again != first {
			t.Errorf("%d keys fit at first, and %d after they have expired", first, again)
		}
	})
}

// New keys are refused, and kept ones replayed, when seven eighths of the limit are taken.
func TestSetLimit(t *testing.T) {
	const limit = 1 << 20
	s := New(limit)
	defer s.Close()
	n := fill(t, s, 0, 500)
	if taken := s.taken(); taken < limit*3/4 || taken > limit*7/8 {
		t.Errorf("new keys are refused when it takes %d bytes of %d", taken, limit)
	}
	s.SetLimit(2 * limit)
	if more := fill(t, s, n, 500); more < 2*n*9/10 {
		t.Errorf("%d keys fit into 1 MiB, and %d into 2 MiB", n, more)
	}
	s.SetLimit(limit)
	wantErr(t, storetest.ErrOf(s.Claim(t.Context(), claim(-1))), idempotency.ErrFull)
	if record, _, err := s.Lookup(t.Context(), claim(-1).Key); record != nil || err != nil {
		t.Errorf("the refused key: %+v, %v", record, err)
	}
	for i := range n {
		if got, err := s.Claim(t.Context(), claim(i)); err != nil || len(got.Response.Body) != 500 {
			t.Fatalf("key %d is not replayed: %+v, %v", i, got, err)
		}
	}
}
