package file

import (
	"fmt"
	"sync"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

func awaitFilter(t *testing.T, s *Store) *filterBits {
	t.Helper()
	eventually(t, "the filter is built", func() bool { return s.filter.current.Load() != nil })
	return s.filter.current.Load()
}

// The filter never takes a key in the database for a new one, not even while it is rebuilt or after a
// failure. It recognises nearly all other keys as new.
func TestFilterMissesNoKey(t *testing.T) {
	fs := newFaulty(newMemory())
	s := openStore(t, fs, storePath)
	awaitFilter(t, s)
	var done sync.WaitGroup
	for writer := range 4 {
		done.Go(func() { keep(t, s, writer*500, writer*500+500) })
	}
	for range 20 {
		s.filter.rebuildAt = 0 // the sweeper does not run now
		must(t, s.filter.rebuild(t.Context(), s.database))
	}
	done.Wait()
	b, meanwhile := new(filterBits), key("2000")
	s.filter.next.Store(b)
	keep(t, s, 2000, 2001)
	s.filter.next.Store(nil)
	if word, bits := b.word(&meanwhile); word.Load()&bits != bits {
		t.Error("a filter under construction misses a key")
	}
	claimed(t, s, holding("held"))
	fs.set(failing(syscall.EIO, isAny))
	if _, err := s.Claim(t.Context(), holding("in doubt")); err == nil {
		t.Error("claimed on a disk that fails")
	}
	fs.set(nil)
	awaitReady(t, s)
	for reopened := range 2 {
		for i := range 2000 {
			if k := key(fmt.Sprint(i)); s.filter.isNew(&k) {
				t.Fatalf("key %d is taken for a new one", i)
			}
		}
		for _, name := range []string{"held", "in doubt"} {
			if k := key(name); reopened == 0 && s.filter.isNew(&k) {
				t.Errorf("key %s is taken for a new one", name)
			}
		}
		known := 0
		for i := range 10_000 {
			if k := key(fmt.Sprint("new ", i)); s.filter.isNew(&k) {
				known++
			}
		}
		if known < 9900 {
			t.Errorf("only %d of 10,000 new keys are known to be new", known)
		}
		closeStore(t, s)
		s = openStore(t, fs, storePath)
		awaitFilter(t, s)
	}
}

// A full filter is rebuilt without the removed keys.
func TestFullFilterIsRebuilt(t *testing.T) {
	s := openStore(t, vfs.Default, newPath(t))
	before := awaitFilter(t, s)
	keep(t, s, 0, 10)
	must(t, s.Forget(t.Context(), key("3"), idempotency.Precondition{}))
	if err := s.filter.rebuild(t.Context(), s.database); err != nil || s.filter.current.Load() != before {
		t.Errorf("rebuilt before it is full: %v", err)
	}
	before.keys.Store(filterCapacity)
	must(t, s.filter.rebuild(t.Context(), s.database))
	if k := key("3"); s.filter.current.Load() == before || s.filter.current.Load().keys.Load() != 9 || !s.filter.isNew(&k) {
		t.Errorf("%d keys, want 9", s.filter.current.Load().keys.Load())
	}
}
