// Package redistest runs real Redis servers for tests: single servers, with replicas, under sentinels,
// and as clusters. Each server is a process with a private directory, on a free port of the loopback
// interface and on a unix socket. It ends with its test.
package redistest

import (
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

// binary is the name of the server's program in PATH: that in the environment variable REDIS_SERVER, such
// as valkey-server, or redis-server.
var binary = cmp.Or(os.Getenv("REDIS_SERVER"), "redis-server")

// timeout is how long a server may take to start, to stop, or to reach a state.
const timeout = time.Minute

// Server is a Redis server of one test.
type Server struct {
	// Addr is its host:port on the loopback interface.
	Addr string
	// Socket is the path of its unix socket.
	Socket string

	t    testing.TB
	dir  string
	args []string
	// arguments returns the arguments that this kind of server needs; args follow them.
	arguments func(s *Server) []string
	// bus is the address of a cluster node's bus.
	bus     string
	process *process
}

// process is one run of the server's binary.
type process struct {
	command *exec.Cmd
	// exited is closed when the process has exited and Wait has returned.
	exited chan struct{}
}

// Start starts a server that writes nothing to its disk. args are arguments of redis-server, such as
// "--maxmemory", "2mb", and override those of this package. Without a redis-server in PATH, Start skips
// the test, or fails it if the environment has CI=true.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return start(t, (*Server).plainArgs, args...)
}

func start(t testing.TB, arguments func(s *Server) []string, args ...string) *Server {
	t.Helper()
	if _, err := exec.LookPath(binary); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("no %s in PATH, which CI=true requires: %v", binary, err)
		}
		t.Skipf("no %s in PATH: not tested against a real Redis", binary)
	}
	// In t.TempDir(), a long test name would make the socket's path too long for the kernel.
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
	s.run()
	return s
}

// Stop sends SIGTERM, as an operator would: the server saves what it is configured to save. Stop returns
// when the process has exited.
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
	case <-time.After(timeout):
		s.t.Fatalf("%s at %s did not stop within %s of SIGTERM", binary, s.Addr, timeout)
	}
}

// Kill ends the server at once, even a paused one. It returns when the process has exited.
func (s *Server) Kill() {
	if s.process == nil {
		return
	}
	_ = s.process.command.Process.Kill() // it may have exited already
	<-s.process.exited
	s.process = nil
}

// Restart starts the server again, with the same addresses and directory. It stops the server if that
// still runs.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	s.run()
}

// run starts the process and returns when it answers over its socket: another server could have the port.
func (s *Server) run() {
	s.t.Helper()
	p := &process{command: exec.Command(binary, append(s.arguments(s), s.args...)...), exited: make(chan struct{})}
	if err := p.command.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		_ = p.command.Wait() // how it ended is in its log
		close(p.exited)
	}()
	s.process = p
	s.await("it answers", func() bool {
		select {
		case <-p.exited:
			s.process = nil
			s.t.Fatalf("%s at %s ended with %s", binary, s.Addr, p.command.ProcessState)
		default:
		}
		return s.answers()
	})
}

func (s *Server) answers() bool {
	conn, err := net.Dial("unix", s.Socket)
	if err != nil {
		return false // go-redis would log it
	}
	_ = conn.Close()
	_, err = s.try("PING")
	return err == nil
}

// plainArgs returns the arguments of a server without TLS.
func (s *Server) plainArgs() []string {
	return append(s.commonArgs(), "--port", s.Port())
}

// commonArgs returns the arguments of every server except sentinels.
func (s *Server) commonArgs() []string {
	return []string{
		"--bind", "127.0.0.1",
		"--unixsocket", s.Socket,
		"--dir", s.dir, "--logfile", filepath.Join(s.dir, "log"),
		"--save", "", "--appendonly", "no",
		"--daemonize", "no",
		// Without this, a master would wait for more replicas before it sends its data.
		"--repl-diskless-sync-delay", "0",
	}
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
