//go:build unix

package integration

import (
	"syscall"
	"testing"
)

// pause stops the process: its connections stay open, and nobody answers on them.
func (p *caddy) pause(t *testing.T) { t.Helper(); p.signal(t, syscall.SIGSTOP) }

// resume has a paused process go on.
func (p *caddy) resume(t *testing.T) { t.Helper(); p.signal(t, syscall.SIGCONT) }
