package integration

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
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
)

// clientProgram is a block of the page of clients, which is run.
type clientProgram struct {
	text    string
	begin   string // what defines its names. URL, HOST, PORT and KEY are replaced in it
	file    string // its name
	command string
}

func clientPrograms(t *testing.T) map[string]clientProgram {
	t.Helper()
	return map[string]clientProgram{
		"requests": {blockWith(t, "python", "HTTPAdapter"), "order, url = {'key': 'KEY', 'n': 1}, 'URL'\n", "client.py", "python3"},
		"axios":    {blockWith(t, "js", "axios"), "const order = {key: 'KEY', n: 1}, url = 'URL'\n", "client.mjs", "node"},
		"stripe":   {blockWith(t, "js", "stripe"), "const order = {key: 'KEY'}, apiKey = 'sk_test', host = 'HOST', port = 'PORT', protocol = 'http'\n", "client.mjs", "node"},
	}
}

// clientPackages installs what the programs import, and returns its directory.
func clientPackages(t *testing.T) string {
	t.Helper()
	dir := shortTempDir(t)
	if err := os.CopyFS(dir, os.DirFS("testdata/clients")); err != nil {
		t.Fatal(err)
	}
	for _, words := range [][]string{{"npm", "ci", "--no-audit", "--no-fund"}, {"python3", "-c", "import requests"}} {
		cmd := exec.CommandContext(t.Context(), words[0], words[1:]...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", words, err, out)
		}
	}
	return dir
}

// badNetwork is between a client and caddy-dedup. The key says what happens to the first try.
type badNetwork struct {
	proxy http.Handler
	// began opens when the run of the busy key begins, and that run waits for answer.
	began, answer *gate

	mu      sync.Mutex
	replies []string
}

func (n *badNetwork) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Idempotency-Key")
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client is gone
	}
	pass := func() *httptest.ResponseRecorder {
		r := r.Clone(context.WithoutCancel(r.Context()))
		r.Body = io.NopCloser(bytes.NewReader(body))
		got := httptest.NewRecorder()
		n.proxy.ServeHTTP(got, r)
		return got
	}
	n.mu.Lock()
	first := len(n.replies) == 0
	n.mu.Unlock()
	other := make(chan struct{})
	if first && key == "busy" {
		go func() { defer close(other); pass() }()
		<-n.began.opened
	}
	got := pass()
	n.mu.Lock()
	n.replies = append(n.replies, strings.TrimSpace(fmt.Sprint(got.Code, " ", got.Header().Get("Idempotent-Replayed"))))
	n.mu.Unlock()
	switch {
	case first && key == "lost":
		panic(http.ErrAbortHandler)
	case first && key == "late":
		<-r.Context().Done()
		return
	case first && key == "busy":
		n.answer.open()
		<-other
	}
	maps.Copy(w.Header(), got.Header())
	w.WriteHeader(got.Code)
	_, _ = w.Write(got.Body.Bytes()) // the client notices
}

// The clients of the page retry what its table says, each time with the operation's key.
func TestClientsOfThePage(t *testing.T) {
	t.Parallel()
	programs := clientPrograms(t)
	if os.Getenv("DEDUP_CLIENTS") != "1" {
		t.Skip("not tried without DEDUP_CLIENTS=1: it takes node, npm and its registry, and python3 with requests")
	}
	packages := clientPackages(t)
	retried := map[string]string{"lost": "201, 201 true", "unavailable": "503, 201", "busy": "409, 201 true"}
	table := map[string]string{"late": "201, 201 true", "limited": "429, 201", "reused": "422", "held": "502, 409"}
	maps.Copy(table, retried)
	for name, wants := range map[string]map[string]string{"axios": table, "requests": table, "stripe": retried} {
		for key, want := range wants {
			t.Run(name+"/"+key, func(t *testing.T) {
				t.Parallel()
				if got, said := runClient(t, programs[name], packages, key); got != want {
					t.Errorf("the client got %s, want %s\n%s", got, want, said)
				}
			})
		}
	}
}

// runClient runs a program and returns what its tries got, and what it printed.
func runClient(t *testing.T, program clientProgram, packages, key string) (got, said string) {
	t.Helper()
	began, answer := newGate(t), newGate(t)
	fails := map[string]answering{"unavailable": answersStatus(503), "limited": answersStatus(429), "held": noAnswer}
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		if fail := fails[n.Key]; fail != nil && n.N == 1 {
			fail(w, r, n)
			return
		}
		if n.Key == "busy" {
			began.open()
			<-answer.opened
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, `{"id": "ch_1"}`)
	})
	p := start(t, conf{store: "store memory", site: dedupBlock("wait off", "on_unknown hold") + "\n" + proxyTo(up)})
	between := &badNetwork{began: began, answer: answer, proxy: httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: p.addr})}
	server := httptest.NewServer(between)
	t.Cleanup(server.Close)
	at := strings.TrimPrefix(server.URL, "http://")
	if key == "reused" {
		p.post(t, "/orders", key, "another order", host(at))
	}

	hostname, port, _ := strings.Cut(at, ":")
	text := strings.NewReplacer("URL", server.URL+"/orders", "HOST", hostname, "PORT", port, "KEY", key).Replace(program.begin) + program.text
	if key == "late" {
		text = strings.NewReplacer("timeout: 60000", "timeout: 5000", "timeout=60", "timeout=5").Replace(text)
	}
	dir := shortTempDir(t)
	if err := os.WriteFile(filepath.Join(dir, program.file), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(packages, "node_modules"), filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program.command, program.file)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1")
	out, _ := cmd.CombinedOutput() // it fails where the last answer is a refusal
	between.mu.Lock()
	defer between.mu.Unlock()
	return strings.Join(between.replies, ", "), string(out)
}
