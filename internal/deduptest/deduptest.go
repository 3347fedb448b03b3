// Package deduptest has what the tests of several packages need.
package deduptest

import (
	"os"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
)

// Patience bounds every wait for something that must happen. It says nothing of how fast that
// should be.
const Patience = time.Minute

// Eventually polls a condition until it holds; the test fails if it never does.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still not so after %s: %s", Patience, what)
		}
	}
}

// TempDir is t.TempDir with a path short enough for a Unix socket.
func TempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dedup")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// KeepBusy has others take and release room until the test ends, so that no run may exceed the limit.
func KeepBusy(t testing.TB, others *budget.Allowance) {
	t.Helper()
	done := make(chan struct{})
	t.Cleanup(func() { close(done) })
	go func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(100 * time.Millisecond):
				others.Count(1)
				others.Release(1)
			}
		}
	}()
}
