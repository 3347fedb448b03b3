package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
)

// caddy is a running process of the binary.
type caddy struct {
	conf conf
	addr string
	log  *logBook

	cmd    *exec.Cmd
	exited chan struct{}
	err    error
}

// start runs the binary with a configuration and waits until it serves.
func start(t *testing.T, c conf) *caddy {
	t.Helper()
	if c.dir == "" {
		c.dir = shortTempDir(t)
	}
	if c.port == 0 {
		c.port = freeport.Of(t)
	}
	p := startCaddyfile(t, c.dir, c.port, c.caddyfile(c.dir, c.port), c.under...)
	p.conf = c
	return p
}

// startCaddyfile runs the binary, under another command, with the text of a Caddyfile in a home of its own, and
// waits until it serves.
func startCaddyfile(t *testing.T, dir string, port int, text string, under ...string) *caddy {
	t.Helper()
	file := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startProcessWith(t, dir, homeEnv(dir), append(slices.Clone(under), binary, "run", "--config", file)...)
	p.addr = fmt.Sprintf("127.0.0.1:%d", port)
	p.awaitLog(t, "serving initial configuration", func(e entry) bool {
		return e.text("msg") == "serving initial configuration"
	})
	return p
}

// startProcess runs the binary with arguments and a home of its own.
func startProcess(t *testing.T, dir string, args ...string) *caddy {
	t.Helper()
	return startProcessWith(t, dir, homeEnv(dir), append([]string{binary}, args...)...)
}

// startProcessWith runs a program, with arguments, a directory and an environment.
func startProcessWith(t *testing.T, dir string, env []string, words ...string) *caddy {
	t.Helper()
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Dir = dir
	cmd.Env = env
	p := &caddy{cmd: cmd, log: new(logBook), exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.log, p.log
	cmd.WaitDelay = patience
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(func() {
		p.kill(t)
		p.log.judge(t)
	})
	return p
}

// homeEnv keeps a process's state and its configuration within a directory.
func homeEnv(dir string) []string {
	return append(os.Environ(),
		"HOME="+dir,
		"XDG_DATA_HOME="+filepath.Join(dir, "data"),
		"XDG_CONFIG_HOME="+filepath.Join(dir, "config"),
		"GOTRACEBACK=all")
}

// command runs the binary to its end and returns what it printed.
func command(t *testing.T, dir string, args ...string) (output string, exitCode int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = homeEnv(dir)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// signal sends a signal to the process.
func (p *caddy) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
}

// kill ends the process as a power cut would.
func (p *caddy) kill(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGKILL)
	<-p.exited
}

// terminate asks the process to stop; awaitExit waits for its end.
func (p *caddy) terminate(t *testing.T) { t.Helper(); p.signal(t, syscall.SIGTERM) }

// awaitExit waits for the process's end and returns its exit code.
func (p *caddy) awaitExit(t *testing.T) int {
	t.Helper()
	select {
	case <-p.exited:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		t.Fatalf("the process still runs after %s", patience)
		return 0
	}
}

// reload loads another site block into the running process.
func (p *caddy) reload(t *testing.T, site string) {
	t.Helper()
	next := p.conf
	next.site = site
	text := next.caddyfile(p.conf.dir, p.conf.port)
	status, answer := p.askAdmin(t, "POST", "/load", "text/caddyfile", text)
	if status != http.StatusOK {
		t.Fatalf("the reload was answered %d: %s", status, answer)
	}
	eventually(t, "the port has one listener again", func() bool { return listeners(t, p.conf.port) <= 1 })
}

// listeners counts those of a port. During a reload Caddy has two, and the
// kernel resets the connections that wait at the old one when it closes. Where
// there is no /proc they cannot be counted.
func listeners(t *testing.T, port int) int {
	t.Helper()
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return 0
	}
	const listening = "0A"
	count := 0
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) > 3 && fields[3] == listening && strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) {
			count++
		}
	}
	return count
}

// overSocket connects to a Unix socket, whatever the host.
func overSocket(socket string) *http.Transport {
	return &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
}

func (p *caddy) askAdmin(t *testing.T, method, path, contentType, body string) (int, string) {
	t.Helper()
	transport := overSocket(adminSocket(p.conf.dir))
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://127.0.0.1"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", contentType)
	answer, err := (&http.Client{Transport: transport, Timeout: patience}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

// awaitWaiting waits until so many requests of the process wait for a run: the
// goroutine dump shows them blocked in the package that decides itself, not in
// the store that it asks. None of those named may end before.
func (p *caddy) awaitWaiting(t *testing.T, n int, requests ...*pending) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d requests wait for a run", n), func() bool {
		for _, r := range requests {
			r.mustWait(t)
		}
		_, dump := p.askAdmin(t, "GET", "/debug/pprof/goroutine?debug=2", "", "")
		waiting := 0
		for stack := range strings.SplitSeq(dump, "\n\n") {
			lines := strings.SplitN(stack, "\n", 3)
			blocked := strings.Contains(lines[0], "[select") || strings.Contains(lines[0], "[chan receive")
			if blocked && len(lines) == 3 && strings.Contains(lines[1], "/internal/engine.") &&
				strings.Contains(lines[2], "caddyhttp.(*Server).ServeHTTP") {
				waiting++
			}
		}
		return waiting >= n
	})
}
