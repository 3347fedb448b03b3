package servers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/caddy-dedup/caddy-dedup/bench/internal/process"
)

// Path is where the upstream answers with Size bytes.
const (
	Path      = "/payments"
	Size      = 512
	countPath = "/count"
)

// RetentionField is a request field that asks the upstream for a Dedup-Retention of so
// many seconds.
const RetentionField = "X-Bench-Retention"

// UpstreamHandler answers as a service does that has little to do: 201, and a body.
func UpstreamHandler() http.Handler {
	var runs atomic.Int64
	mux := http.NewServeMux()
	body := bytes.Repeat([]byte("x"), Size)
	length := []string{strconv.Itoa(Size)}
	kind := []string{"application/json"}
	mux.HandleFunc("POST "+Path, func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return // the proxy has gone
		}
		runs.Add(1)
		if seconds := r.Header.Get(RetentionField); seconds != "" {
			w.Header().Set("Dedup-Retention", seconds)
		}
		w.Header()["Content-Length"], w.Header()["Content-Type"] = length, kind
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(body) // a proxy that has gone shows in the client's figures
	})
	mux.HandleFunc("GET "+countPath, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, runs.Load()) })
	return mux
}

// ServeUpstream is the upstream's process. It returns when the context ends.
func ServeUpstream(ctx context.Context, addr string) error {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: UpstreamHandler(), ReadHeaderTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // nobody waits for its last answers
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Upstream is the service behind the proxies, in a process of its own.
type Upstream struct {
	*process.Process
	Addr string
}

// StartUpstream starts this very program once more, as an upstream: see [ServeUpstream].
func (s *Stage) StartUpstream(program string) (*Upstream, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	p, err := s.set.Start("the upstream", nil, program, "upstream", addr)
	if err != nil {
		return nil, err
	}
	u := &Upstream{Process: p, Addr: addr}
	return u, s.set.Await(p, startPatience, func() error { _, err := u.Runs(); return err })
}

// Runs returns how many requests have reached the upstream.
func (u *Upstream) Runs() (int64, error) {
	answer, err := http.Get("http://" + u.Addr + countPath)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(text), 10, 64)
}
