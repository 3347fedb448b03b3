package file

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// An operation that waited for a key while the database failed does not read it from that database:
// what it would see may not be on the disk.
func TestLockWaitAcrossDatabaseFailure(t *testing.T) {
	s, err := openIn(wallClock, newMemory(), storePath, zap.NewNop())
	must(t, err)
	defer s.Close()
	must(t, keepAs(t.Context(), s, "a", completeAs("body")))
	k := key("a")
	c, err := s.keys.lock(t.Context(), k)
	must(t, err)
	failed := errors.New("the disk failed")
	got := make(chan error, 1)
	go func() {
		_, err := ask(t.Context(), s, "a")
		got <- err
	}()
	eventually(t, "the operation waits", func() bool {
		shard := s.keys.shard(&k)
		shard.mu.Lock()
		defer shard.mu.Unlock()
		return shard.entries[k].unlocked != nil
	})
	s.database.disk.fail(failed)
	s.keys.unlock(k, c)
	wantErr(t, <-got, failed)
}

// Behind a failed database, the runs in flight are in flight, but for one that its last write has settled.
func TestClaimsAcrossDatabaseFailure(t *testing.T) {
	fs := newFaulty(newMemory())
	s := openStore(t, fs, storePath)
	must(t, keepAs(t.Context(), s, "again", idempotency.Settlement{State: idempotency.Released, Retention: time.Hour}))
	again := claimOf("again")
	again.Token = "token of the second run"
	claimed(t, s, again)
	claimed(t, s, claimOf("plain"))
	claimed(t, s, holding("held"))
	for _, c := range []idempotency.Claim{claimOf("settled"), holding("settled, held")} {
		record := claimed(t, s, c)
		fs.set(failing(syscall.EIO, isFlush)) // pebble has written the log then
		wantErr(t, s.Settle(t.Context(), c.Key, record, completeAs("body")), syscall.EIO)
		fs.set(nil)
		awaitReady(t, s)
	}
	want := map[string]idempotency.Verdict{
		"again": idempotency.WaitForRun, "plain": idempotency.WaitForRun, "held": idempotency.WaitForRun,
		"settled": idempotency.ReplayKept, "settled, held": idempotency.ReplayKept,
	}
	for name, verdict := range want {
		if got, err := ask(t.Context(), s, name); err != nil || got.Verdict != verdict {
			t.Errorf("%s: %v, %v; want %v", name, got.Verdict, err, verdict)
		}
	}
	page, _, err := s.List(t.Context(), "", 100)
	must(t, err)
	inFlight := 0
	for _, listed := range page {
		if listed.Record.State == idempotency.InFlight {
			inFlight++
		}
	}
	if len(page) != len(want) || inFlight != 3 {
		t.Errorf("%d keys are listed, and %d of them in flight", len(page), inFlight)
	}
}
