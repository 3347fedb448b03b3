package file

import (
	"errors"
	"testing"
)

// An operation that waited for a key while the database failed does not read it from that database:
// what it would see may not be on the disk.
func TestLockWaitAcrossDatabaseFailure(t *testing.T) {
	s := openStore(t, newFaulty(newMemory()), storePath)
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
	poll(t, "the operation waits", func() bool {
		shard := s.keys.shard(&k)
		shard.mu.Lock()
		defer shard.mu.Unlock()
		return shard.entries[k].unlocked != nil
	})
	s.database.disk.fail(failed)
	s.keys.unlock(k, c)
	wantErr(t, <-got, failed)
}
