package file

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// names counts the names in the database by table.
func names(t *testing.T, s *Store) map[byte]int {
	t.Helper()
	it, err := s.database.db.NewIter(nil)
	must(t, err)
	defer it.Close()
	counts := make(map[byte]int)
	for valid := it.First(); valid; valid = it.Next() {
		counts[it.Key()[0]]++
	}
	return counts
}

// exact fails the test unless the database has so many values and answers, one expiry for each, and
// nothing else.
func exact(t *testing.T, s *Store, values, answers int) {
	t.Helper()
	got := names(t, s)
	if got[valueTable] != values || got[answerTable] != answers || got[expiryTable] != values+answers {
		t.Fatalf("%d values, %d answers, %d expiries; want %d, %d and one for each",
			got[valueTable], got[answerTable], got[expiryTable], values, answers)
	}
}

// lateness is the longest time after which an expired value is removed, and bodyLateness the same for
// the bodies in a bucket.
const (
	lateness     = 2 * (sweepDelay + sweepInterval)
	bodyLateness = 2 * (sweepDelay + bodySweepInterval)
)

// Each value has one expiry, whatever happens to its key, and the sweeper removes what has expired.
func TestSweepRemovesWhatHasExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openStore(t, newMemory(), storePath)
		const kept = 2*sweepSize + 10
		keep(t, s, 0, kept)
		exact(t, s, kept, 0)
		release := completeAs("busy")
		release.State, release.AnswerRetention = idempotency.Released, 2*time.Hour
		for i, terms := range []idempotency.Terms{{}, {Hold: true}, {MaxAttempts: 3}} {
			name := fmt.Sprint("several ", i)
			for n := range 3 { // the answer of each run stays for the requests that waited
				c := claimOf(name)
				c.Token += fmt.Sprint(n)
				c.Hold, c.MaxAttempts = terms.Hold, terms.MaxAttempts
				record := claimed(t, s, c)
				must(t, s.Renew(t.Context(), c))
				must(t, s.Settle(t.Context(), c.Key, record, release))
				exact(t, s, kept+1+i, 2*i+n)
			}
		}
		must(t, storetest.ErrOf(s.Change(t.Context(), key("1"), idempotency.Change{State: idempotency.Released, Token: "operator"})))
		force := claimOf("2")
		force.Token, force.Force = "forced", true
		record := claimed(t, s, force)
		must(t, s.Settle(t.Context(), key("2"), record, completeAs("forced")))
		exact(t, s, kept+3, 7) // and the answer that was replaced
		time.Sleep(time.Hour + lateness)
		exact(t, s, 3, 6)
		time.Sleep(time.Hour)
		exact(t, s, 0, 0)
	})
}

// A key that is claimed again when its value is due keeps its new value.
func TestSweepLeavesWhatIsWrittenMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openStore(t, newMemory(), storePath)
		keep(t, s, 0, 10)
		time.Sleep(time.Hour)
		time.Sleep(sweepDelay - 2*time.Second) // the sweeper has not removed them yet
		due, err := s.database.expiries([]byte{expiryTable}, expiryName(wallClock().UnixMilli(), idempotency.Key{}, ""), 100)
		if err != nil || len(due) != 10 {
			t.Fatalf("%d expiries are due, %v", len(due), err)
		}
		rewritten := 0
		for key(fmt.Sprint(rewritten)) != keyOfExpiry(due[2]) {
			rewritten++
		}
		keep(t, s, rewritten, rewritten+1)
		inUse := keyOfExpiry(due[7])
		if _, unlocked := s.keys.tryLock(inUse); unlocked != nil {
			t.Fatal("a key is in use")
		}
		if n, err := s.removeDue(t.Context(), s.database, due); err != nil || n != 6 {
			t.Errorf("%d are removed, %v; want the 6 others before the key in use", n, err)
		}
		s.keys.unlock(inUse, nil)
		replaysAll(t, s, rewritten, rewritten+1)
		time.Sleep(lateness)
		exact(t, s, 1, 0)
		replaysAll(t, s, rewritten, rewritten+1)
	})
}

// A claim in memory counts until it expires, even over a value that the sweeper has removed.
func TestSweepUnderAClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openStore(t, newMemory(), storePath)
		release := completeAs("busy")
		release.State = idempotency.Released
		must(t, keepAs(t.Context(), s, "a", release))
		c := claimOf("a")
		c.Token, c.Retention = "second", 3*time.Hour
		record := claimed(t, s, c)
		time.Sleep(2 * time.Hour)
		exact(t, s, 0, 0)
		must(t, s.Settle(t.Context(), c.Key, record, completeAs("late")))
		replays(t, s, "a", "late")
		if got, _, err := s.Lookup(t.Context(), c.Key); err != nil || got.Attempt != 2 {
			t.Errorf("%+v, %v; want the second attempt", got, err)
		}
		exact(t, s, 1, 0)

		// A claim that has expired is dropped, but not before the value under it has expired.
		brief := claimOf("b")
		must(t, keepAs(t.Context(), s, "b", release))
		brief.Token, brief.Retention, brief.Lease = "brief", time.Second, time.Second
		claimed(t, s, brief)
		time.Sleep(30 * time.Second)
		if got, _, err := s.Lookup(t.Context(), brief.Key); got != nil || err != nil {
			t.Errorf("a claim that has expired: %+v, %v", got, err)
		}
		time.Sleep(2 * time.Hour)
		if _, locked := s.keys.peek(brief.Key); locked || len(s.keys.claimed(nil)) > 0 {
			t.Error("a claim that has expired stays in memory")
		}
	})
}

// Bodies are removed with their buckets, including those whose value was never written. Other
// directories are left alone.
func TestSweepRemovesBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newMemory()
		s := openStore(t, fs, storePath)
		for _, name := range []string{"a", "b"} {
			must(t, keepAs(t.Context(), s, name, completeAs(largeText(name))))
		}
		must(t, writeBody(t.Context(), s.bodies, "orphan", wallClock().Add(time.Hour), []byte(largeText("orphan"))))
		must(t, s.Forget(t.Context(), key("b"), idempotency.Precondition{}))
		must(t, fs.MkdirAll(fs.PathJoin(s.bodies.root, "other"), 0o700))
		shared := completeAs(largeText("shared"))
		shared.State, shared.Retention, shared.AnswerRetention = idempotency.Released, 24*time.Hour, time.Minute
		must(t, keepAs(t.Context(), s, "shared", shared))
		buckets := func() string {
			t.Helper()
			found, err := fs.List(s.bodies.root)
			must(t, err)
			return strings.Join(found, " ")
		}
		if got := buckets(); !strings.Contains(got, " ") {
			t.Errorf("there is only %s", got)
		}
		time.Sleep(time.Hour - time.Second)
		replays(t, s, "a", largeText("a"))
		time.Sleep(time.Second + bucketInterval + bodyLateness)
		storetest.Equal(t, buckets(), "other", "names of buckets")
		if r, err := s.Response(t.Context(), key("shared"), claimOf("shared").Token); r != nil || err != nil {
			t.Errorf("a response that has expired before its record: %v, %v; want none", r, err)
		}
	})
}
