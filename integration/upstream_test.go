package integration

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
)

// run is one execution of a request by the upstream.
type run struct {
	// Key is the idempotency key or GitHub delivery ID; N counts its runs from 1.
	Key string
	N   int

	Method, URI, Host string
	Header            http.Header
	Body              string
}

// text is a body that no other run of the same upstream answers with.
func (r run) text() string { return fmt.Sprintf("run %d of %s", r.N, r.Key) }

// upstream is the service behind the proxy. It counts what it executes.
type upstream struct {
	addr   string
	answer func(http.ResponseWriter, *http.Request, run)

	mu   sync.Mutex
	seen []run
}

// answering lets a test say how the upstream answers.
type answering func(http.ResponseWriter, *http.Request, run)

// answers201 is the upstream that most tests want: created, with a body of its own.
func answers201(w http.ResponseWriter, _ *http.Request, r run) {
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, r.text())
}

// answersStatus answers with a status and a body of its own.
func answersStatus(status int) answering {
	return func(w http.ResponseWriter, _ *http.Request, r run) {
		w.WriteHeader(status)
		fmt.Fprint(w, r.text())
	}
}

// inTurn answers the first run of a key with the first, the second with the
// second, and all further ones with the last.
func inTurn(turns ...answering) answering {
	return func(w http.ResponseWriter, r *http.Request, n run) {
		turns[min(n.N, len(turns))-1](w, r, n)
	}
}

// cutBody promises 100 bytes, sends 7 and closes the connection.
func cutBody(w http.ResponseWriter, _ *http.Request, _ run) {
	conn, buf, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	fmt.Fprint(buf, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 100\r\n\r\n1234567")
	buf.Flush()
	conn.Close()
}

// cutStream sends a part of a body without a known length and breaks off.
func cutStream(w http.ResponseWriter, _ *http.Request, r run) {
	fmt.Fprint(w, r.text())
	w.(http.Flusher).Flush()
	panic(http.ErrAbortHandler)
}

// noAnswer closes the connection after it has read the request.
func noAnswer(w http.ResponseWriter, _ *http.Request, _ run) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	conn.Close()
}

// untilGone answers nothing until the proxy gives up.
func untilGone(_ http.ResponseWriter, r *http.Request, _ run) { <-r.Context().Done() }

func startUpstream(t *testing.T, answer answering) *upstream {
	t.Helper()
	return startUpstreamOn(t, "127.0.0.1:0", answer)
}

func startUpstreamOn(t *testing.T, addr string, answer answering) *upstream {
	t.Helper()
	u := &upstream{answer: answer}
	u.addr = serve(t, addr, u)
	return u
}

// serve serves a handler until the test ends, and returns its address.
func serve(t *testing.T, addr string, handler http.Handler) string {
	t.Helper()
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	go func() { _ = server.Serve(listener) }() // it ends with ErrServerClosed
	// Close, not Shutdown: a run that waits at a gate ends after this.
	t.Cleanup(func() { _ = server.Close() })
	return listener.Addr().String()
}

func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the proxy gave up while it was sending
	}
	this := run{
		Key: r.Header.Get("Idempotency-Key"), Method: r.Method, URI: r.RequestURI, Host: r.Host,
		Header: r.Header.Clone(), Body: string(body),
	}
	if id := r.Header.Get("X-GitHub-Delivery"); id != "" {
		this.Key = id
	}
	u.mu.Lock()
	this.N = 1 + len(u.of(this.Key))
	u.seen = append(u.seen, this)
	u.mu.Unlock()
	u.answer(w, r, this)
}

// of lists the runs of a key; the lock is held.
func (u *upstream) of(key string) []run {
	var of []run
	for _, r := range u.seen {
		if r.Key == key {
			of = append(of, r)
		}
	}
	return of
}

// runs lists the runs of a key as it was sent.
func (u *upstream) runs(key string) []run {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.of(key)
}

// all lists the runs of all keys.
func (u *upstream) all() []run {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.seen)
}

// awaitRuns waits until so many runs of a key have begun, and returns the latest.
func (u *upstream) awaitRuns(t *testing.T, key string, n int) run {
	t.Helper()
	eventually(t, fmt.Sprintf("the upstream has begun run %d of %q", n, key), func() bool {
		return len(u.runs(key)) >= n
	})
	return u.nth(t, key, n)
}

// nth returns the n-th run of a key, counted from 1.
func (u *upstream) nth(t *testing.T, key string, n int) run {
	t.Helper()
	all := u.runs(key)
	if len(all) < n {
		t.Fatalf("the upstream ran %q %d times, want at least %d", key, len(all), n)
	}
	return all[n-1]
}

// wantRuns fails unless the key ran exactly so often.
func (u *upstream) wantRuns(t *testing.T, key string, n int) {
	t.Helper()
	if got := len(u.runs(key)); got != n {
		t.Errorf("the upstream ran %q %d times, want %d", key, got, n)
	}
}

// gate holds runs back until the test opens it, at its end at the latest.
type gate struct {
	opened chan struct{}
	once   sync.Once
}

func newGate(t *testing.T) *gate {
	g := &gate{opened: make(chan struct{})}
	t.Cleanup(g.open)
	return g
}

func (g *gate) open() { g.once.Do(func() { close(g.opened) }) }

// before holds an answer back until the gate is open.
func (g *gate) before(answer answering) answering {
	return func(w http.ResponseWriter, r *http.Request, n run) {
		<-g.opened
		answer(w, r, n)
	}
}
