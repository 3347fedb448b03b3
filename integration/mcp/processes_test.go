// Package mcp tries the official SDKs of the Model Context Protocol with the built binary
// between their clients and their servers. It is a module of its own: the SDKs are no
// requirement of the product, and nothing of the product is imported.
//
// It needs node, npm and redis-server, and npm installs the packages of package-lock.json.
// Without one of the programs it is skipped; with CI=true it fails. DEDUP_BINARY names a
// binary to try instead of building one.
package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience bounds every wait for something that must happen. It says nothing of how fast
// that should be.
const patience = 60 * time.Second

// need returns the path of a program.
func need(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("%v: CI is set, and the test needs it", err)
		}
		t.Skipf("%v: the test needs it", err)
	}
	return path
}

// buildBinary returns the path of the program under test.
func buildBinary(t *testing.T) string {
	t.Helper()
	if given := os.Getenv("DEDUP_BINARY"); given != "" {
		return given
	}
	path := filepath.Join(t.TempDir(), "caddy-dedup")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", path, "./cmd/caddy-dedup")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building cmd/caddy-dedup: %v\n%s", err, out)
	}
	return path
}

// installPackages returns a directory with the scripts, and with what they import.
func installPackages(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, pattern := range []string{"*.mjs", "package*.json", ".npmrc"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, file), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	install := exec.CommandContext(t.Context(), need(t, "npm"), "ci", "--ignore-scripts", "--prefer-offline")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
	return dir
}

// process is a program that ends with the test.
type process struct {
	stdin  io.WriteCloser
	stdout *bufio.Scanner
	exited chan struct{}
}

// start runs a program. What it prints to standard error is shown if the test fails.
func start(t *testing.T, dir string, words ...string) *process {
	t.Helper()
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	p := &process{exited: make(chan struct{})}
	var log bytes.Buffer
	cmd.Stderr, cmd.WaitDelay = &log, patience
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, stdoutEnd, err := os.Pipe() // unlike StdoutPipe, Wait leaves it open
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = stdoutEnd
	p.stdin, p.stdout = stdin, bufio.NewScanner(stdout)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stdoutEnd.Close()
	go func() {
		_ = cmd.Wait() // it is killed below
		close(p.exited)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended by itself, which a test has noticed
		<-p.exited
		stdout.Close()
		if t.Failed() {
			t.Logf("%s printed:\n%s", strings.Join(words, " "), log.String())
		}
	})
	return p
}

// eventually asks until there is no error; the test fails if that never is, or if the
// process ends before.
func (p *process) eventually(t *testing.T, what string, ask func() error) {
	t.Helper()
	eventually(t, what, func() error {
		select {
		case <-p.exited:
			t.Fatal("the process has ended")
		default:
		}
		return ask()
	})
}

func eventually(t *testing.T, what string, ask func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := ask()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still not so after %s: %s: %v", patience, what, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// startServer runs a server's script, and returns its address.
func startServer(t *testing.T, packages, script, work string) string {
	t.Helper()
	p := start(t, packages, need(t, "node"), script, work)
	if !p.stdout.Scan() {
		t.Fatalf("%s has printed no port: %v", script, p.stdout.Err())
	}
	return "127.0.0.1:" + p.stdout.Text()
}

// startRedis runs a Redis on a socket, and returns its URL.
func startRedis(t *testing.T) string {
	t.Helper()
	socket := filepath.Join(shortTempDir(t), "redis.sock")
	p := start(t, t.TempDir(), need(t, "redis-server"), "--port", "0", "--unixsocket", socket, "--save", "")
	p.eventually(t, "Redis accepts connections", func() error {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			conn.Close()
		}
		return err
	})
	return "unix://" + socket
}

// front is the binary before the servers.
type front struct {
	addr  string
	admin http.Client
}

// startFront runs the binary with a store before the servers, each below its name.
func startFront(t *testing.T, program, store string, servers map[string]string) *front {
	t.Helper()
	dir, addr := shortTempDir(t), freeAddress(t)
	socket, file := filepath.Join(dir, "admin.sock"), filepath.Join(dir, "Caddyfile")
	var routes strings.Builder
	for name, server := range servers {
		fmt.Fprintf(&routes, "\thandle /%s/* {\n\t\treverse_proxy %s\n\t}\n", name, server)
	}
	_, port, _ := net.SplitHostPort(addr)
	config := strings.NewReplacer("PORT", port, "SOCKET", socket, "STORE", store, "ROUTES\n", routes.String()).Replace(`{
	admin unix/SOCKET
	default_bind 127.0.0.1
	auto_https off
	persist_config off
	dedup {
		store STORE
	}
}
http://:PORT {
	dedup {
		mode mcp
		key json /params/arguments/idempotency_key
	}
ROUTES
}
`)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, dir, program, "run", "--config", file, "--adapter", "caddyfile")
	f := &front{addr: addr}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	f.admin = http.Client{Transport: transport, Timeout: patience}
	t.Cleanup(transport.CloseIdleConnections)
	p.eventually(t, "the binary serves", func() error {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
		}
		return err
	})
	return f
}

// awaitWaiting waits until a request waits for the run of another one.
func (f *front) awaitWaiting(t *testing.T) {
	t.Helper()
	eventually(t, "a request waits", func() error {
		answer, err := f.admin.Get("http://localhost/metrics")
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err == nil && !bytes.Contains(text, []byte("\ncaddy_dedup_waiting 1\n")) {
			err = fmt.Errorf("the metrics are\n%s", text)
		}
		return err
	})
}

// freeAddress returns an address of this machine on which no server listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// shortTempDir is t.TempDir with a path short enough for a Unix socket.
func shortTempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dedup")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// relay is the network in front of a server, or of several that are one service.
type relay struct {
	server *httptest.Server

	mu      sync.Mutex
	address string // of the server
	// Messages with this method go to another address.
	method, elsewhere string
}

func startRelay(t *testing.T, address string) *relay {
	t.Helper()
	r := &relay{address: address}
	proxy := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(p *httputil.ProxyRequest) {
		p.SetURL(&url.URL{Scheme: "http", Host: r.target(p.Out)})
		p.Out.Host = p.In.Host
	}, ErrorLog: log.New(io.Discard, "", 0)}
	r.server = httptest.NewServer(proxy)
	t.Cleanup(func() {
		r.cut()
		r.server.Close()
	})
	return r
}

// target returns where a request goes.
func (r *relay) target(out *http.Request) string {
	var message struct{ Method string }
	if out.Body != nil {
		body, err := io.ReadAll(out.Body)
		out.Body = io.NopCloser(bytes.NewReader(body))
		if err != nil || json.Unmarshal(body, &message) != nil {
			message.Method = ""
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.method != "" && message.Method == r.method {
		return r.elsewhere
	}
	return r.address
}

func (r *relay) set(address, method, elsewhere string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.address, r.method, r.elsewhere = address, method, elsewhere
}

func (r *relay) addr() string { return r.server.Listener.Addr().String() }

// cut cuts all connections to it.
func (r *relay) cut() { r.server.CloseClientConnections() }
