//go:build !unix

package redistest

import "runtime"

// Pause fails the test, because this system cannot pause a process.
func (s *Server) Pause() {
	s.t.Helper()
	s.t.Fatalf("%s at %s cannot be paused: %s has no SIGSTOP", binary, s.Addr, runtime.GOOS)
}

// Resume fails the test, as [Server.Pause] does.
func (s *Server) Resume() {
	s.t.Helper()
	s.t.Fatalf("%s at %s cannot be resumed: %s has no SIGCONT", binary, s.Addr, runtime.GOOS)
}
