package file

import (
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2"
)

// A run that ends after a page's iterator was created is on the page.
func TestListHasARunThatEndsMeanwhile(t *testing.T) {
	s := openStore(t, newMemory(), storePath)
	record := claimed(t, s, claimOf("a"))
	it := &keyIterator{claimed: s.keys.claimed(nil)}
	var err error
	it.values, err = s.database.db.NewIter(&pebble.IterOptions{LowerBound: []byte{valueTable}, UpperBound: []byte{valueTable + 1}})
	if err != nil {
		t.Fatal(err)
	}
	defer it.values.Close()
	it.seek(nil)
	if err := s.Settle(t.Context(), key("a"), record, completeAs("body")); err != nil {
		t.Fatal(err)
	}
	listed := s.listed(s.database, it, key("a"))
	if listed.Unreadable != nil || listed.Record == nil || listed.Record.State != "complete" {
		t.Errorf("it is listed as %+v", listed)
	}
}

// An operation that has waited for a key while the database failed does not read it: what the
// database shows may be undone.
func TestOperationThatWaitedOverAFailure(t *testing.T) {
	s := openStore(t, newFaulty(newMemory()), storePath)
	if err := keepAs(t.Context(), s, "a", completeAs("body")); err != nil {
		t.Fatal(err)
	}
	k := key("a")
	c, err := s.keys.lock(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	failed := errors.New("the disk failed")
	got := make(chan error, 1)
	go func() {
		_, err := ask(t.Context(), s, "a")
		got <- err
	}()
	poll(t, "the operation waits", func() bool {
		shard := s.keys.shard(&k)
		shard.mu.Lock()
		defer shard.mu.Unlock()
		return shard.entries[k].unlocked != nil
	})
	s.database.disk.fail(failed)
	s.keys.unlock(k, c)
	if err := <-got; !errors.Is(err, failed) {
		t.Errorf("it got %v, want the failure", err)
	}
}
