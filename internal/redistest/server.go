// Package redistest runs real Redis servers for tests: alone, with replicas, under
// sentinels, and as clusters. Each is a process of its own, with a private directory,
// on a free port of the loopback interface and a unix socket. It ends with its test.
package redistest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
)

// binary is the server's program, looked for in PATH: what the environment variable
// REDIS_SERVER names (valkey-server, for example), else redis-server.
var binary = cmp.Or(os.Getenv("REDIS_SERVER"), "redis-server")

// patience is how long a server may take to start or to stop.
const patience = time.Minute

// Server is a Redis server of one test.
type Server struct {
	// Addr is its host:port on the loopback interface.
	Addr string
	// Socket is the path of its unix socket.
	Socket string

	t    testing.TB
	dir  string
	args []string
	// arguments returns those that this kind of server needs; args come after them.
	arguments func(s *Server, port string) []string
	// bus is the address of a cluster node's bus.
	bus     string
	process *process
}

// process is one run of the server's binary.
type process struct {
	command *exec.Cmd
	// exited is closed when the process is gone and waited for.
	exited chan struct{}
}

// Start starts a server that writes nothing to its disk. The arguments are Redis's own
// ("--maxmemory", "2mb"), and are stronger than those of this package. Without a
// redis-server in PATH the test is skipped; with CI=true in the environment it fails.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return start(t, (*Server).plain, args)
}

func start(t testing.TB, arguments func(s *Server, port string) []string, args []string) *Server {
	t.Helper()
	if _, err := exec.LookPath(binary); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("no %s in PATH, and CI=true makes it a must: %v", binary, err)
		}
		t.Skipf("no %s in PATH: not tested against a real Redis", binary)
	}
	// Not t.TempDir(): with a long test name the socket's path would be too
	// long for the kernel.
	dir, err := os.MkdirTemp("", "redistest")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, dir: dir, args: args, arguments: arguments, Socket: filepath.Join(dir, "redis.sock")}
	t.Cleanup(func() {
		s.Kill()
		if t.Failed() {
			t.Logf("log of the %s at %s:\n%s", binary, s.Addr, s.log())
		}
		_ = os.RemoveAll(dir)
	})
	s.Addr = freeAddr(t)
	if err := s.run(); err != nil {
		t.Fatalf("%s does not start: %v\n%s", binary, err, s.log())
	}
	return s
}

// Stop ends the server as an operator would: SIGTERM, and it saves what it was
// told to save. It returns when the process is gone.
func (s *Server) Stop() {
	s.t.Helper()
	if s.process == nil {
		return
	}
	if err := s.process.command.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.t.Fatalf("send SIGTERM to %s at %s: %v", binary, s.Addr, err)
	}
	select {
	case <-s.process.exited:
		s.process = nil
	case <-time.After(patience):
		s.t.Fatalf("%s at %s did not stop within %s of SIGTERM", binary, s.Addr, patience)
	}
}

// Kill ends the server at once, also a paused one. It returns when the process is
// gone.
func (s *Server) Kill() {
	if s.process == nil {
		return
	}
	_ = s.process.command.Process.Kill() // it may be gone already
	<-s.process.exited
	s.process = nil
}

// Restart starts the server again after [Server.Stop] or [Server.Kill], at the
// same addresses and with the same directory. It stops one that still runs.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	if err := s.run(); err != nil {
		s.t.Fatalf("%s does not start again at %s: %v\n%s", binary, s.Addr, err, s.log())
	}
}

// run starts the process and returns when it answers.
func (s *Server) run() error {
	_, port, err := net.SplitHostPort(s.Addr)
	if err != nil {
		return err
	}
	p := &process{command: exec.Command(binary, append(s.arguments(s, port), s.args...)...), exited: make(chan struct{})}
	if err := p.command.Start(); err != nil {
		return err
	}
	go func() {
		_ = p.command.Wait() // how it ended is in its log
		close(p.exited)
	}()
	s.process = p
	for deadline := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		select {
		case <-p.exited:
			s.process = nil
			return fmt.Errorf("it ended with %s", p.command.ProcessState)
		default:
		}
		err := s.answers()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			s.Kill()
			return fmt.Errorf("it does not answer within %s: %w", patience, err)
		}
	}
}

// plain are the arguments of a server whose port is without TLS.
func (s *Server) plain(port string) []string {
	return append(s.private(), "--port", port)
}

// private are the arguments of every server but a sentinel.
func (s *Server) private() []string {
	return []string{
		"--bind", "127.0.0.1",
		"--unixsocket", s.Socket,
		"--dir", s.dir, "--logfile", filepath.Join(s.dir, "log"),
		"--save", "", "--appendonly", "no",
		"--daemonize", "no",
		// A master is to serve a new replica at once, and not to wait for others.
		"--repl-diskless-sync-delay", "0",
	}
}

// answers sends a PING over the socket: on the port there could be another server. A
// server that wants a password, or TLS on its port, answers here too.
func (s *Server) answers() error {
	conn, err := net.DialTimeout("unix", s.Socket, time.Second)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	reply := make([]byte, 64)
	n, err := conn.Read(reply)
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(reply[:n], []byte("+PONG")) && !bytes.HasPrefix(reply[:n], []byte("-NOAUTH")) {
		return fmt.Errorf("it says %q", reply[:n])
	}
	return nil
}

func (s *Server) log() string {
	text, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func freeAddr(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", freeport.Of(t))
}
