package file

import (
	"context"
	"errors"
	"testing"
)

// The sweeper has no time limit. One that is stuck in a database that was given up keeps
// nobody waiting: neither those who ask the store, nor the database that takes its place.
func TestStuckSweeperOfADatabaseThatWasGivenUp(t *testing.T) {
	t.Parallel()
	h := new(hangingReads)
	s, goOn := h.onDisk(t, 20)
	old := s.current()
	swept := make(chan struct{})
	go func() {
		defer close(swept)
		_ = s.sweepDue() // the database was given up
	}()
	poll(t, "the sweeper reads", func() bool { return h.waiting.Load() > 0 })
	h.mu.Lock()
	h.hangs = nil // for all who come now
	h.mu.Unlock()
	old.disk.fail(errors.New("the disk is gone"))
	poll(t, "there is another database", func() bool {
		lookedUp := false
		_ = soon(t, "a lookup", func(ctx context.Context) error {
			_, _, err := s.Lookup(ctx, key("1"))
			lookedUp = err == nil
			return err
		})
		return lookedUp
	})
	replays(t, s, "1")
	released := func() bool {
		old.disk.files.mu.Lock()
		defer old.disk.files.mu.Unlock()
		return old.disk.files.released
	}
	if released() {
		t.Error("the files are closed under the sweeper, which would wait for ever")
	}
	goOn()
	<-swept
	poll(t, "the files are closed", released)
}
