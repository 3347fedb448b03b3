package redistest_test

import (
	"bufio"
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// ask sends one inline command and returns the first line of the reply.
func ask(t *testing.T, addr, command string, wait time.Duration) (string, error) {
	t.Helper()
	conn, err := net.DialTimeout("tcp", addr, wait)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(wait)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte(command + "\r\n")); err != nil {
		return "", err
	}
	return bufio.NewReader(conn).ReadString('\n')
}

func mustAsk(t *testing.T, addr, command, want string) {
	t.Helper()
	got, err := ask(t, addr, command, 10*time.Second)
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	if got != want+"\r\n" {
		t.Fatalf("%s answers %q, want %q", command, got, want)
	}
}

// A paused server does not answer, and can be killed. Started again, it has its address, and what it has saved.
func TestServer(t *testing.T) {
	s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	mustAsk(t, s.Addr, "SET a 1", "+OK")
	s.Pause()
	if got, err := ask(t, s.Addr, "PING", 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a paused server answers %q, %v; want a timeout", got, err)
	}
	s.Kill()
	if _, err := ask(t, s.Addr, "PING", time.Second); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("a killed server: %v, want a refused connection", err)
	}
	s.Restart()
	mustAsk(t, s.Addr, "STRLEN a", ":1")
}
