package caddymodule

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/standard" // reverse_proxy and what else sites are made of
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/exchange"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/observe"
	"github.com/caddy-dedup/caddy-dedup/internal/report"
)

// site is a site of a Caddyfile that is served in this process: Caddy's own routes
// and handlers, and a memory store of its own.
type site struct {
	*httptest.Server
	t testing.TB
	// keys is the engine of the site's store.
	keys *engine.Engine
	app  *App
	// stop ends the site before its test does.
	stop func()
}

// reporter is what the handler reports with.
func (h *Handler) reporter() *report.Reporter {
	switch h := h.handler.(type) {
	case *exchange.Handler:
		return h.Config.Report
	case *observe.Handler:
		return h.Config.Report
	}
	return nil
}

// handler is the site's first dedup handler.
func (s *site) handler() *Handler {
	s.t.Helper()
	routes := s.Config.Handler.(*caddyhttp.Server).Routes
	for i := 0; i < len(routes); i++ {
		for _, handler := range routes[i].Handlers {
			switch h := handler.(type) {
			case *Handler:
				return h
			case *caddyhttp.Subroute:
				routes = slices.Concat(routes, h.Routes)
			}
		}
	}
	s.t.Fatal("the site has no dedup handler")
	return nil
}

// serve serves the lines of a site.
func serve(t *testing.T, lines ...string) *site {
	t.Helper()
	return serveWith(t, "", lines...)
}

// provision loads the lines of a site and of the global option dedup, and starts nothing.
func provision(t testing.TB, global string, lines ...string) (*App, *caddyhttp.App) {
	t.Helper()
	text := "{\n\tdedup {\n\t\tstore memory\n\t\t" + global + "\n\t}\n}\n\nhttp://:80 {\n" + strings.Join(lines, "\n") + "\n}\n"
	ctx, err := loaded(text)
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	app, err := ctx.App("dedup")
	if err != nil {
		t.Fatal(err)
	}
	web, err := ctx.App("http")
	if err != nil {
		t.Fatal(err)
	}
	return app.(*App), web.(*caddyhttp.App)
}

// serveWith is serve with lines of the global option dedup.
func serveWith(t testing.TB, global string, lines ...string) *site {
	t.Helper()
	app, web := provision(t, global, lines...)
	if err := app.Start(); err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, app: app, keys: app.started[0].Store().Engine}
	for _, server := range web.Servers {
		s.Server = httptest.NewServer(server)
	}
	store := app.started[0].Store()
	s.stop = sync.OnceFunc(func() {
		s.Close()
		if err := app.Cleanup(); err != nil {
			t.Error(err)
		}
		<-store.Closed() // the process has one memory store for all tests: the next begins anew
	})
	t.Cleanup(s.stop)
	return s
}

// answer is a whole answer as a client got it.
type answer struct {
	status int
	header http.Header
	body   string
}

// oneRequest makes a connection for each request: on a reused one Go's client
// would send a request with an idempotency key again by itself.
var oneRequest = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true, DisableCompression: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// keyedBy is a POST with an idempotency key, "" for none, and header fields in pairs.
func keyedBy(key, body string, header ...string) request {
	var lines []string
	if key != "" {
		lines = append(lines, "Idempotency-Key: "+key)
	}
	for i := 0; i < len(header); i += 2 {
		lines = append(lines, header[i]+": "+header[i+1])
	}
	return with(body, lines...)
}

// post sends keyedBy over a connection. The error is that of one that was cut.
func (s *site) post(key, body string, header ...string) (answer, error) {
	s.t.Helper()
	return s.over(keyedBy(key, body, header...))
}

// over sends a request over a connection of its own.
func (s *site) over(r request) (answer, error) {
	s.t.Helper()
	return do(s.outgoing(r))
}

// outgoing is a request to the site's address, unless it names another host.
func (s *site) outgoing(r request) *http.Request {
	s.t.Helper()
	parsed := r.http()
	out, err := http.NewRequest(parsed.Method, s.URL+parsed.RequestURI, strings.NewReader(r.body))
	if err != nil {
		s.t.Fatal(err)
	}
	if out.Header = parsed.Header; parsed.Host != anyHost {
		out.Host = parsed.Host
	}
	if slices.Contains(r.lines, chunked) {
		out.ContentLength = -1
	}
	return out
}

// do sends a request and reads the whole answer.
func do(r *http.Request) (answer, error) {
	got, err := oneRequest.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer got.Body.Close()
	text, err := io.ReadAll(got.Body)
	return answer{got.StatusCode, got.Header, string(text)}, err
}

// must is over for a request that gets a whole answer.
func (s *site) must(r request) answer {
	s.t.Helper()
	got, err := s.over(r)
	if err != nil {
		s.t.Fatal(err)
	}
	return got
}

// mustPost is must for [keyedBy].
func (s *site) mustPost(key, body string, header ...string) answer {
	s.t.Helper()
	return s.must(keyedBy(key, body, header...))
}

// serveHTTP is post without a connection: when it returns, the site is done with the request.
func (s *site) serveHTTP(key, body string, header ...string) answer {
	s.t.Helper()
	return s.send(keyedBy(key, body, header...))
}

// waits returns when a request waits for a run.
func (s *site) waits() {
	for _, waiting := s.keys.InProgress(); waiting == 0; _, waiting = s.keys.InProgress() {
		time.Sleep(time.Millisecond)
	}
}

// logged returns what the handler reports from now on.
func (s *site) logged(level zapcore.Level) *observer.ObservedLogs {
	core, logs := observer.New(level)
	s.handler().reporter().Logger = zap.New(core)
	return logs
}

func (s *site) listed() []idempotency.Listed {
	s.t.Helper()
	page, _, err := s.keys.List(s.t.Context(), "", 100)
	if err != nil {
		s.t.Error(err)
	}
	return page
}

// only returns the record of the site's only key.
func (s *site) only() *idempotency.Record {
	s.t.Helper()
	page := s.listed()
	if len(page) != 1 {
		s.t.Fatalf("the site has %d records; want 1", len(page))
	}
	return page[0].Record
}

// startUpstream starts a service that counts its runs.
func startUpstream(t *testing.T, serve func(w http.ResponseWriter, r *http.Request, n int)) (address string, runs *atomic.Int64) {
	t.Helper()
	runs = new(atomic.Int64)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := runs.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
		serve(w, r, int(n))
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://"), runs
}

func answers(status int, body string) func(http.ResponseWriter, *http.Request, int) {
	return func(w http.ResponseWriter, _ *http.Request, _ int) {
		w.Header().Set("X-Own", "1")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}
