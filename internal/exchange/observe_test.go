package exchange

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/memory"
	"github.com/caddy-dedup/caddy-dedup/internal/storepool"
)

// observing is a handler that observes an API, and what it says. It is also the configuration of
// its store.
type observing struct {
	*Handler
	t    *testing.T
	logs *observer.ObservedLogs
	key  string // of its requests

	// Called when the store is asked for a claim, or a settlement. They may hang, or panic.
	claim, settle func()

	others int64 // bytes that others hold

	mu     sync.Mutex
	counts []string
}

func newObserving(t *testing.T, change func(*Config)) *observing {
	t.Helper()
	core, logs := observer.New(zap.WarnLevel)
	o, logger := &observing{t: t, logs: logs, key: "k", claim: func() {}, settle: func() {}}, zap.New(core)
	c := Config{
		Observe: true, Mode: delivery.ModeAPI, Methods: []string{"POST"}, Label: "api", MaxKeyLength: 255, Namespace: "test",
		Sources:  []delivery.Source{{Kind: delivery.KindHeader, Header: delivery.IdempotencyKeyHeader}},
		Policies: map[string]idempotency.Policy{"": {Terms: idempotency.Terms{Lease: time.Hour, Retention: time.Hour}}},
		Timeout:  time.Hour, Wait: time.Minute, MaxRequestBody: 100, MaxResponseBody: 100,
		Budget: NewBudget(1 << 20), Observer: o, Logger: logger,
		Store: &storepool.Handle{Pool: storepool.New(nil, nil, nil), Config: o, Key: "test", Logger: logger},
	}
	if change != nil {
		change(&c)
	}
	o.Handler, o.others = New(c), c.Budget.Used()
	store, err := c.Store.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Store.Stop()
		<-store.Closed()
	})
	return o
}

func (o *observing) Request(_ string, outcome Outcome, observed bool) {
	if !observed {
		o.t.Errorf("%s counts as if it were not observed", outcome)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.counts = append(o.counts, string(outcome))
}

func (o *observing) Differing(string, bool) {}

func (o *observing) Overloaded(limit engine.Limit) {
	o.t.Errorf("%s counts as if it had refused a request", limit)
}

func (*observing) PoolKey() string                 { return "test" }
func (*observing) Tuning() any                     { return nil }
func (*observing) Tune(idempotency.Store)          {}
func (*observing) Describe() string                { return "store of the test" }
func (*observing) OperationTimeout() time.Duration { return time.Minute }
func (*observing) Shared() bool                    { return true }
func (o *observing) Open(*zap.Logger) (idempotency.Store, error) {
	return &hangingStore{memory.New(1 << 20), o}, nil
}

// hangingStore is a store outside of the process, to its engine.
type hangingStore struct {
	idempotency.Store
	of *observing
}

func (s *hangingStore) Claim(ctx context.Context, c idempotency.Claim) (idempotency.Claimed, error) {
	s.of.claim()
	return s.Store.Claim(ctx, c)
}

func (s *hangingStore) Settle(ctx context.Context, key idempotency.Key, claimed *idempotency.Record, settlement idempotency.Settlement) error {
	s.of.settle()
	return s.Store.Settle(ctx, key, claimed, settlement)
}

// post sends a request through the handler. It returns the request when the handlers behind have
// ended, and the handler has returned.
func (o *observing) post(body io.Reader, behind http.HandlerFunc) (*http.Request, *caddy.Replacer) {
	o.t.Helper()
	repl := caddy.NewReplacer()
	repl.Set("http.test", "before")
	r := httptest.NewRequestWithContext(context.WithValue(o.t.Context(), caddy.ReplacerCtxKey, repl), http.MethodPost, "/", body)
	r.Header.Set("Idempotency-Key", o.key)
	if _, empty := body.(emptyBody); empty {
		r.ContentLength = 0
	}
	next := caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
		behind(w, r)
		return nil
	})
	if err := o.ServeHTTP(httptest.NewRecorder(), r, next); err != nil {
		o.t.Error(err)
	}
	return r, repl
}

// want compares what is counted when nothing goes on any more.
func (o *observing) want(counts ...string) {
	o.t.Helper()
	synctest.Wait()
	if !slices.Equal(o.counts, counts) {
		o.t.Errorf("%q are counted, want %q", o.counts, counts)
	}
	if left := o.Budget.Used() - o.others; left != 0 {
		o.t.Errorf("%d bytes are still held", left)
	}
	lines := int64(o.logs.FilterMessageSnippet("unobserved").Len()) + o.unobservedLog.leftOut() // synctest's clock is before its start
	if unobserved := lines > 0; unobserved != (len(counts) == 0) {
		o.t.Errorf("%d lines say that a request is unobserved", lines)
	}
}

func readAll(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.WriteHeader(http.StatusCreated)
}

func readNothing(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }

// A request has an outcome when the handlers behind have read what its key and its fingerprint are
// made of.
func TestObserveByWhatIsRead(t *testing.T) {
	readSome := func(n int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadFull(r.Body, make([]byte, n))
			w.WriteHeader(http.StatusCreated)
		}
	}
	text := func(n int) io.Reader { return strings.NewReader(strings.Repeat("x", n)) }
	chunked := func(n int) io.Reader { return io.NopCloser(text(n)) }
	for name, c := range map[string]struct {
		change func(*Config)
		body   io.Reader
		behind http.HandlerFunc
		want   []string
	}{
		"to its end":                {body: chunked(10), behind: readAll, want: []string{"executed"}},
		"its declared length":       {body: text(10), behind: readSome(10), want: []string{"executed"}},
		"not to its end":            {body: chunked(10), behind: readSome(10)},
		"not at all":                {body: text(10), behind: readNothing},
		"none":                      {body: http.NoBody, behind: readNothing, want: []string{"executed"}},
		"of a body that has none":   {body: emptyBody{}, behind: readNothing, want: []string{"executed"}},
		"a body declared too large": {body: text(101), behind: readNothing, want: []string{"too_large"}},
		"one that is":               {body: chunked(101), behind: readAll, want: []string{"too_large"}},
		"enough of it":              {body: chunked(1000), behind: readSome(101), want: []string{"too_large"}},
		"one that cannot be read":   {body: iotest.ErrReader(io.ErrUnexpectedEOF), behind: readAll, want: []string{"invalid"}},
		"what is not needed": {
			change: func(c *Config) { c.Fingerprint = idempotency.FingerprintNone },
			body:   text(10), behind: readNothing, want: []string{"executed"},
		},
		"what there is no room for": {
			change: func(c *Config) {
				c.Budget, c.MaxRequestBody = NewBudget(64<<10), 1<<20
				(&Allowance{Budget: c.Budget}).Count(64 << 10)
			},
			body: chunked(10_000), behind: readAll,
		},
		"what there is never room for": {
			change: func(c *Config) { c.Budget, c.MaxRequestBody = NewBudget(8<<10), 1<<20 },
			body:   chunked(10_000), behind: readAll, want: []string{"too_large"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newObserving(t, c.change)
				_, repl := o.post(c.body, c.behind)
				outcome, _ := repl.GetString("http.dedup.outcome")
				o.want(c.want...)
				if strings.Join(c.want, "") != outcome {
					t.Errorf("the outcome is shown as %q", outcome)
				}
			})
		})
	}
}

// emptyBody is the body of a request without one behind a handler that measures bodies.
type emptyBody struct{ io.Reader }

// The handlers behind get the request itself, and it is as before when they have ended.
func TestObservedRequestIsTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newObserving(t, nil)
		body := io.NopCloser(strings.NewReader("body"))
		repl := caddy.NewReplacer()
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), caddy.ReplacerCtxKey, repl))
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", body)
		r.Body = body
		r.Header.Set("Idempotency-Key", "k")
		repl.Set(upstreamStatus, 204)
		failed := errors.New("failed")
		err := o.ServeHTTP(httptest.NewRecorder(), r, caddyhttp.HandlerFunc(func(_ http.ResponseWriter, got *http.Request) error {
			if got != r || got.Context().Value(caddy.ReplacerCtxKey) != repl {
				t.Error("they get another request")
			}
			if status, _ := repl.Get(upstreamStatus); status != 204 {
				t.Errorf("the status of a proxy in front is %v", status)
			}
			cancel()
			if got.Context().Err() == nil {
				t.Error("their request is not cancelled")
			}
			return failed
		}))
		if err != failed { //nolint:errorlint // it is that error
			t.Errorf("the error is %v", err)
		}
		if r.Context() != ctx || r.Body != body {
			t.Error("the request is another one afterwards")
		}
	})
}

// The key is that of the request as it came, whatever the handlers behind make of it.
func TestObserveTheRequestAsItCame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newObserving(t, func(c *Config) { c.Scope = []string{"{http.test}", "{http.dedup.json./id}"} })
		for i := range 2 {
			o.post(strings.NewReader(`{"id": 1}`), func(w http.ResponseWriter, r *http.Request) {
				if i == 1 {
					r.Host, r.URL.Path = "other.test", "/other"
					r.Header.Set("Idempotency-Key", "other")
					r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer).Set("http.test", "other")
				}
				readAll(w, r)
			})
			synctest.Wait()
		}
		o.want("executed", "replayed")
	})
}

// A store that hangs delays no request, and neither does the next.
func TestObserveWaitsForNoStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newObserving(t, nil)
		goOn := make(chan struct{})
		o.claim = func() { <-goOn }
		_, first := o.post(strings.NewReader("body"), readAll)
		o.key = "other"
		began := time.Now()
		o.post(strings.NewReader("body"), readAll)
		if waited := time.Since(began); waited != 0 {
			t.Errorf("the second request waits for %v", waited)
		}
		close(goOn)
		o.want("executed", "executed")
		if outcome, _ := first.GetString("http.dedup.outcome"); outcome != "" {
			t.Errorf("after its end a request has the outcome %s", outcome)
		}
		_, third := o.post(strings.NewReader("body"), readAll)
		if outcome, _ := third.GetString("http.dedup.outcome"); outcome != "replayed" {
			t.Errorf("the outcome with a store that is well again is %q", outcome)
		}
	})
}

// A request that follows the answer of another would have come after its end was stored.
func TestObserveFollowsTheAnswer(t *testing.T) {
	for status, want := range map[int]string{http.StatusCreated: "replayed", http.StatusServiceUnavailable: "executed"} {
		synctest.Test(t, func(t *testing.T) {
			o := newObserving(t, func(c *Config) {
				policy := c.Policies[""]
				policy.ReleaseOn, _ = idempotency.ParseStatuses("5xx")
				c.Policies[""] = policy
			})
			answer := func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				w.WriteHeader(status)
			}
			goOn := make(chan struct{})
			o.settle = func() { <-goOn }
			o.post(strings.NewReader("body"), answer)
			o.post(strings.NewReader("body"), answer)
			close(goOn)
			o.want("executed", want)
		})
	}
}

// A store that panics ends no process.
func TestObserveOutlivesAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newObserving(t, nil)
		o.claim = func() { panic("damaged") }
		o.post(strings.NewReader("body"), readAll)
		o.want()
	})
}

// Of two dedups, the one behind says what became of a request.
func TestObserveInFrontOfAnotherDedup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newObserving(t, nil)
		behind := New(func(c Config) Config {
			c.Observe, c.Namespace, c.Observer = false, "behind", noCounts{}
			return c
		}(o.Config))
		var its string
		_, repl := o.post(strings.NewReader("body"), func(w http.ResponseWriter, r *http.Request) {
			_ = behind.ServeHTTP(w, r, caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
				its, _ = r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer).GetString("http.dedup.key")
				readAll(w, r)
				return nil
			}))
		})
		o.want("executed")
		if key, _ := repl.GetString("http.dedup.key"); key == "" || key != its {
			t.Errorf("the key is %q, and that of the dedup behind was %q", key, its)
		}
	})
}

type noCounts struct{}

func (noCounts) Request(string, Outcome, bool) {}
func (noCounts) Differing(string, bool)        {}
func (noCounts) Overloaded(engine.Limit)       {}
