//go:build !unix

package integration

import (
	"runtime"
	"testing"
)

// pause fails the test: this system cannot stop a process and have it go on.
func (p *caddy) pause(t *testing.T) {
	t.Helper()
	t.Fatalf("a process cannot be paused: %s has no SIGSTOP", runtime.GOOS)
}

// resume fails the test, as pause does.
func (p *caddy) resume(t *testing.T) {
	t.Helper()
	t.Fatalf("a process cannot be resumed: %s has no SIGCONT", runtime.GOOS)
}
