//go:build unix

package redistest

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Pause stops the server's process (SIGSTOP) and returns when it has stopped. Its connections stay open,
// but it does not answer.
func (s *Server) Pause() {
	s.t.Helper()
	s.signal(syscall.SIGSTOP)
	s.await("it has stopped", s.paused)
}

// Resume continues a paused server (SIGCONT).
func (s *Server) Resume() {
	s.t.Helper()
	s.signal(syscall.SIGCONT)
}

func (s *Server) signal(signal syscall.Signal) {
	s.t.Helper()
	if s.process == nil {
		s.t.Fatalf("%s at %s does not run: it cannot get the signal %s", binary, s.Addr, signal)
	}
	if err := s.process.command.Process.Signal(signal); err != nil {
		s.t.Fatalf("send %s to %s at %s: %v", signal, binary, s.Addr, err)
	}
}

// paused reports whether the process has stopped. Without /proc that is unknown, and paused assumes that
// the signal has worked.
func (s *Server) paused() bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(s.process.command.Process.Pid) + "/stat")
	if err != nil {
		return true
	}
	// The state follows the name, which is in parentheses.
	_, after, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(after, "T")
}
