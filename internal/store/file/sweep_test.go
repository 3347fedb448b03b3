package file

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// entries counts what is in the database.
func entries(t *testing.T, s *Store) (records, responses, expiries int) {
	t.Helper()
	it, err := s.database.db.NewIter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer it.Close()
	for valid := it.First(); valid; valid = it.Next() {
		switch name := it.Key(); {
		case name[0] == expiryTable:
			expiries++
		case name[1+keySize] == ofRecord:
			records++
		default:
			responses++
		}
	}
	return records, responses, expiries
}

// lateness is how long after it has expired a record is removed at the latest.
const lateness = sweepStep + sweepDelay + 2*sweepEvery

func TestSweepRemovesWhatHasExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := reopen(t, newPath(t))
		const n = 2*sweepAtOnce + 10
		keepMany(t, s, n)
		stays := claimOf("stays")
		stays.Retention = 24 * time.Hour
		if _, err := s.Claim(t.Context(), stays); err != nil {
			t.Fatal(err)
		}
		// There is one entry for a record and its response, also after its run's end.
		if records, responses, expiries := entries(t, s); records != n || responses != n || expiries != n {
			t.Fatalf("%d records, %d responses, %d expiries; want %d of each", records, responses, expiries, n)
		}
		time.Sleep(time.Hour + lateness)
		synctest.Wait()
		// The claim that stays has lapsed, and is in the database now.
		if records, responses, expiries := entries(t, s); records != 1 || responses != 0 || expiries != 1 {
			t.Errorf("after the retention: %d records, %d responses, %d expiries; want 1, 0, 1", records, responses, expiries)
		}
	})
}

// A response that its record does not know any more, or that lives shorter, has an entry
// of its own.
func TestSweepRemovesResponsesWithoutTheirRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := reopen(t, newPath(t))
		if err := keep(t.Context(), s, "freed"); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Free(t.Context(), key("freed"), "token of an operator", idempotency.Seen{}); err != nil {
			t.Fatal(err)
		}
		released, err := s.Claim(t.Context(), claimOf("released"))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Settle(t.Context(), key("released"), released.Record, releasedFor(24*time.Hour, time.Hour)); err != nil {
			t.Fatal(err)
		}
		if err := keep(t.Context(), s, "forced"); err != nil {
			t.Fatal(err)
		}
		force := claimOf("forced")
		force.Token, force.Force = "token of a forced run", true
		forced, err := s.Claim(t.Context(), force)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Settle(t.Context(), key("forced"), forced.Record, completeAs("forced")); err != nil {
			t.Fatal(err)
		}
		if records, responses, _ := entries(t, s); records != 3 || responses != 4 {
			t.Fatalf("%d records, %d responses; want 3 and 4", records, responses)
		}
		time.Sleep(time.Hour + lateness)
		synctest.Wait()
		if records, responses, expiries := entries(t, s); records != 1 || responses != 0 || expiries != 1 {
			t.Errorf("after their time: %d records, %d responses, %d expiries; want only the released record", records, responses, expiries)
		}
	})
}

// A key is used again when its response has expired and the sweeper has not come to it. The
// response goes with the record: its entry could be among those that a sweeper is removing.
func TestExpiredResponseGoesWithItsRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := reopen(t, newPath(t))
		if err := keep(t.Context(), s, "a"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour + time.Second)
		next := claimOf("a")
		next.Token = "token of the next run"
		claimed, err := s.Claim(t.Context(), next)
		if err != nil || claimed.Verdict != idempotency.Proceed {
			t.Fatalf("claim: %v, %v", claimed.Verdict, err)
		}
		if err := s.Settle(t.Context(), key("a"), claimed.Record, completeAs("a")); err != nil {
			t.Fatal(err)
		}
		if records, responses, expiries := entries(t, s); records != 1 || responses != 1 || expiries != 1 {
			t.Errorf("%d records, %d responses, %d expiries; want one of each", records, responses, expiries)
		}
	})
}

func TestSweepLeavesWhatWasPutBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := newPath(t)
		s := reopen(t, path)
		if err := keep(t.Context(), s, "a"); err != nil {
			t.Fatal(err)
		}
		k := key("a")
		closeStore(t, s)
		tamper(t, path, func(db *pebble.DB) error {
			early := time.Now().Add(time.Minute)
			if err := db.Set(expiryName(early, k, ""), nil, pebble.Sync); err != nil {
				return err
			}
			return db.Set(expiryName(early, k, claimOf("a").Token), nil, pebble.Sync)
		})
		s = reopen(t, path)
		time.Sleep(time.Minute + lateness)
		synctest.Wait()
		if _, _, expiries := entries(t, s); expiries != 1 {
			t.Errorf("%d expiries, want the one that is right", expiries)
		}
		replays(t, s, "a")
	})
}

// A record that cannot be read is removed when it was to be.
func TestSweepRemovesWhatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := reopen(t, newPath(t))
		if err := keep(t.Context(), s, "a"); err != nil {
			t.Fatal(err)
		}
		damage(t, s, key("a"))
		time.Sleep(time.Hour + lateness)
		synctest.Wait()
		if records, responses, expiries := entries(t, s); records+responses+expiries != 0 {
			t.Errorf("%d records, %d responses, %d expiries; want none", records, responses, expiries)
		}
	})
}

// A key that is in use is not swept, and does not keep the others from it for long.
func TestSweepWaitsForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := reopen(t, newPath(t))
		keepMany(t, s, 20)
		s.database.locks.tryLock(key("7"))
		time.Sleep(time.Hour + lateness)
		synctest.Wait()
		if records, _, _ := entries(t, s); records == 0 {
			t.Error("a key was removed that was in use")
		}
		s.database.locks.unlock(key("7"))
		time.Sleep(2 * sweepEvery)
		synctest.Wait()
		if records, responses, expiries := entries(t, s); records+responses+expiries != 0 {
			t.Errorf("%d records, %d responses, %d expiries; want none", records, responses, expiries)
		}
	})
}
