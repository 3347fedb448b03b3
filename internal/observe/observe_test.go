package observe

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
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

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/identify"
	"github.com/caddy-dedup/caddy-dedup/internal/report"
	"github.com/caddy-dedup/caddy-dedup/internal/signature"
	"github.com/caddy-dedup/caddy-dedup/internal/store/memory"
	"github.com/caddy-dedup/caddy-dedup/internal/storepool"
	"github.com/caddy-dedup/caddy-dedup/internal/upstream"
)

// observing is a handler that observes an API, and what it says. It is also the configuration of
// its store.
type observing struct {
	*Handler
	t    *testing.T
	logs *observer.ObservedLogs

	key, method, signature string // of its requests

	// Called when the store is asked for a claim, or a settlement. They may hang, or panic.
	claim, settle func()

	others int64 // bytes that others hold

	mu     sync.Mutex
	counts []string
}

func newObserving(t *testing.T, change func(*Config)) *observing {
	t.Helper()
	core, logs := observer.New(zap.WarnLevel)
	o, logger := &observing{t: t, logs: logs, key: "k", method: http.MethodPost, claim: func() {}, settle: func() {}}, zap.New(core)
	c := Config{
		Identify: identify.Config{
			Mode: delivery.ModeAPI, Methods: []string{"POST"}, MaxKeyLength: 255, Namespace: "test",
			Sources:        []delivery.Source{{Kind: delivery.KindHeader, Header: delivery.IdempotencyKeyHeader}},
			Policies:       map[string]idempotency.Policy{"": {Terms: idempotency.Terms{Lease: time.Hour, Retention: time.Hour}}},
			MaxRequestBody: 100,
		},
		Report:  &report.Reporter{Observer: o, Logger: logger, Label: "api"},
		Timeout: time.Hour, Wait: time.Minute, MaxResponseBody: 100,
		Budget: budget.New(1 << 20),
		Store:  &storepool.Handle{Pool: storepool.New(nil, nil, nil), Config: o, Key: "test", Logger: logger},
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

func (o *observing) Request(_ string, outcome report.Outcome, observed bool) {
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
	r := httptest.NewRequestWithContext(context.WithValue(o.t.Context(), caddy.ReplacerCtxKey, repl), o.method, "/", body)
	r.Header.Set("Idempotency-Key", o.key)
	if o.signature != "" {
		r.Header.Set("X-Signature", o.signature)
	}
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
	lines := o.logs.FilterMessageSnippet("unobserved").Len()
	if unobserved := lines > 0; unobserved != (len(counts) == 0) {
		o.t.Errorf("%d lines say that a request is unobserved", lines)
	}
}

func readAll(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.WriteHeader(http.StatusCreated)
}

func readNothing(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }

// A request has an outcome when the handlers behind have read what its signature, its key and its
// fingerprint are made of. One that verify would refuse passes, claims nothing, and is logged.
func TestObserveByWhatIsRead(t *testing.T) {
	readSome := func(n int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadFull(r.Body, make([]byte, n))
			w.WriteHeader(http.StatusCreated)
		}
	}
	text := func(n int) io.Reader { return strings.NewReader(strings.Repeat("x", n)) }
	chunked := func(n int) io.Reader { return io.NopCloser(text(n)) }
	mac := hmac.New(sha256.New, []byte("secret"))
	_, _ = io.WriteString(mac, "xxxx")
	signed := hex.EncodeToString(mac.Sum(nil))
	verify := func(c *Config) {
		verifier, err := signature.New(signature.Config{Scheme: &signature.Scheme{Header: "X-Signature"}, Secrets: []string{"secret"}})
		if err != nil {
			t.Fatal(err)
		}
		c.Identify.Verify = &identify.Verification{Verifiers: signature.Verifiers{verifier}, Senders: map[string]*identify.Sender{"": {Sources: c.Identify.Sources}}}
	}
	room := func(limit, taken int) func(*Config) {
		return func(c *Config) {
			c.Budget, c.Identify.MaxRequestBody = budget.New(int64(limit)), 1<<20
			(&budget.Allowance{Budget: c.Budget}).Count(taken)
		}
	}
	const executed, tooLarge, invalid, unsigned = "executed", "too_large", "invalid", "signature_invalid"
	for name, c := range map[string]struct {
		change    func(*Config)
		method    string // "" for POST
		signature string
		body      io.Reader
		behind    http.HandlerFunc
		want      string // "" for none
	}{
		"to its end":                   {body: chunked(10), behind: readAll, want: executed},
		"its declared length":          {body: text(10), behind: readSome(10), want: executed},
		"not to its end":               {body: chunked(10), behind: readSome(10)},
		"not at all":                   {body: text(10), behind: readNothing},
		"none":                         {body: http.NoBody, behind: readNothing, want: executed},
		"of a body that has none":      {body: emptyBody{}, behind: readNothing, want: executed},
		"a body declared too large":    {body: text(101), behind: readNothing, want: tooLarge},
		"one that is":                  {body: chunked(101), behind: readAll, want: tooLarge},
		"enough of it":                 {body: chunked(1000), behind: readSome(101), want: tooLarge},
		"one that cannot be read":      {body: iotest.ErrReader(io.ErrUnexpectedEOF), behind: readAll, want: invalid},
		"what is not needed":           {change: func(c *Config) { c.Identify.Fingerprint = idempotency.FingerprintNone }, body: text(10), behind: readNothing, want: executed},
		"what there is no room for":    {change: room(64<<10, 64<<10), body: chunked(10_000), behind: readAll},
		"what there is never room for": {change: room(8<<10, 0), body: chunked(10_000), behind: readAll, want: tooLarge},
		"signed":                       {change: verify, signature: signed, body: text(4), behind: readAll, want: executed},
		"unsigned":                     {change: verify, body: text(4), behind: readAll, want: unsigned},
		"another body":                 {change: verify, signature: signed, body: text(5), behind: readAll, want: unsigned},
		"an unsigned PUT":              {change: verify, method: "PUT", body: text(4), behind: readAll, want: unsigned},
		"a signed PUT":                 {change: verify, method: "PUT", signature: signed, body: text(4), behind: readAll, want: executed},
		"signed and large":             {change: verify, signature: signed, body: text(101), behind: readAll, want: tooLarge},
		"unsigned and large":           {change: verify, body: text(101), behind: readAll, want: unsigned},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newObserving(t, c.change)
				o.method, o.signature = cmp.Or(c.method, http.MethodPost), c.signature
				claimed := false
				o.claim = func() { claimed = true }
				_, repl := o.post(c.body, c.behind)
				outcome, _ := repl.GetString("http.dedup.outcome")
				o.want(strings.Fields(c.want)...)
				if c.want != outcome || claimed != (outcome == executed) {
					t.Errorf("the outcome is shown as %q, and a claim was made: %v", outcome, claimed)
				}
				if lines := o.logs.FilterMessageSnippet("that verify would refuse").Len(); (lines == 1) != (outcome == unsigned) {
					t.Errorf("%d lines say that it would be refused", lines)
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
		repl.Set(upstream.Status, 204)
		failed := errors.New("failed")
		err := o.ServeHTTP(httptest.NewRecorder(), r, caddyhttp.HandlerFunc(func(_ http.ResponseWriter, got *http.Request) error {
			if got != r || got.Context().Value(caddy.ReplacerCtxKey) != repl {
				t.Error("they get another request")
			}
			if status, _ := repl.Get(upstream.Status); status != 204 {
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
		o := newObserving(t, func(c *Config) { c.Identify.Scope = []string{"{http.test}", "{http.dedup.json./id}"} })
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

// A store that hangs delays no request, and neither does the next; one that panics ends no process.
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
		o.claim = func() { panic("damaged") }
		o.post(strings.NewReader("body"), readAll)
		synctest.Wait()
		if len(o.logs.TakeAll()) == 0 {
			t.Error("no line says that the store panics")
		}
		o.want("executed", "executed", "replayed")
	})
}

// A request that follows the answer of another would have come after its end was stored.
func TestObserveFollowsTheAnswer(t *testing.T) {
	for status, want := range map[int]string{http.StatusCreated: "replayed", http.StatusServiceUnavailable: "executed"} {
		synctest.Test(t, func(t *testing.T) {
			o := newObserving(t, func(c *Config) {
				policy := c.Identify.Policies[""]
				policy.ReleaseOn, _ = idempotency.ParseStatuses("5xx")
				c.Identify.Policies[""] = policy
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

// A response that outgrows max_response_body was executed, whatever follows; any other that breaks off or lasts too
// long has an unknown end.
func TestObserveLargeResponses(t *testing.T) {
	for name, c := range map[string]struct {
		end              func()
		fitting, outgrew string // what counts for the duplicate
	}{
		"whole":            {func() {}, "replayed", "not_kept"},
		"broken off":       {func() { panic(http.ErrAbortHandler) }, "executed", "not_kept"},
		"over the timeout": {func() { time.Sleep(2 * time.Minute) }, "executed", "not_kept"},
	} {
		for size, want := range map[int]string{100: c.fitting, 101: c.outgrew} {
			t.Run(fmt.Sprintf("%s, %d bytes", name, size), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					o := newObserving(t, func(c *Config) { c.Timeout, c.MaxResponseBody = time.Minute, 100 })
					for range 2 {
						func() {
							defer func() { _ = recover() }()
							o.post(strings.NewReader("body"), func(w http.ResponseWriter, r *http.Request) {
								readAll(w, r)
								_, _ = w.Write(make([]byte, size))
								c.end()
							})
						}()
						synctest.Wait()
					}
					o.want("executed", want)
					if reason := o.only().Reason; want == "not_kept" && strings.Contains(reason, "deadline") {
						t.Errorf("the key says: %s", reason)
					}
				})
			})
		}
	}
}

func TestObserveStatusAfterEarlyHints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newObserving(t, nil)
		o.post(nil, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusCreated)
		})
		synctest.Wait()
		if status := o.only().Status; status != http.StatusCreated {
			t.Errorf("the record has the status %d", status)
		}
	})
}

// The response to a HEAD declares the length of a body that it does not have. Under verify such a request has a key.
func TestObserveResponseToHead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newObserving(t, func(c *Config) { c.Identify.Methods = []string{http.MethodHead} })
		o.method = http.MethodHead
		for range 2 {
			o.post(nil, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", "5")
				w.WriteHeader(http.StatusOK)
			})
			synctest.Wait()
		}
		o.want("executed", "replayed")
	})
}

// only returns the record of the only key.
func (o *observing) only() *idempotency.Record {
	o.t.Helper()
	store, err := o.Config.Store.Enter(o.t.Context())
	if err != nil {
		o.t.Fatal(err)
	}
	defer store.Leave()
	page, _, err := store.List(o.t.Context(), "", 10)
	if err != nil || len(page) != 1 {
		o.t.Fatalf("%d keys, %v", len(page), err)
	}
	return page[0].Record
}

// A panic of the handlers behind reaches the server, which cuts the response.
func TestObservePanicsAsTheHandlersBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newObserving(t, nil)
		defer func() {
			if got, _ := recover().(error); !errors.Is(got, http.ErrAbortHandler) {
				t.Errorf("the panic is %v", got)
			}
		}()
		o.post(strings.NewReader("body"), func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	})
}

// Of two dedups, the one behind says what became of a request.
func TestObserveInFrontOfAnotherDedup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newObserving(t, nil)
		_, repl := o.post(strings.NewReader("body"), func(w http.ResponseWriter, r *http.Request) {
			var behind report.Report
			behind.Init(&report.Reporter{Observer: noCounts{}}, r, report.InfoOf(r))
			behind.Name(idempotency.Key{1}, delivery.Found{})
			behind.Set(report.Replayed, "of the dedup behind", 1)
			readAll(w, r)
		})
		o.want("executed")
		for name, want := range map[string]string{"key": idempotency.Key{1}.String(), "outcome": "replayed", "execution_id": "of the dedup behind"} {
			if got, _ := repl.GetString("http.dedup." + name); got != want {
				t.Errorf("the %s is %q, want %q", name, got, want)
			}
		}
	})
}

type noCounts struct{}

func (noCounts) Request(string, report.Outcome, bool) {}
func (noCounts) Differing(string, bool)               {}
func (noCounts) Overloaded(engine.Limit)              {}

// Under observe a response is read as it goes to its client, and by no more than that.
func TestObserveReadsResponses(t *testing.T) {
	large := strings.Repeat(" ", budget.SmallBody)
	for name, c := range map[string]struct {
		parts []string
		full  bool // there is no room
		want  []string
	}{
		"failed":     {[]string{`{"errors"`, `: 1}`}, false, []string{"executed", "executed"}},
		"succeeded":  {[]string{`{"errors"`, `: 0}`}, false, []string{"executed", "replayed"}},
		"large":      {[]string{large, large, `{"errors"`, `: 1}`}, false, []string{"executed", "executed"}},
		"too large":  {[]string{strings.Repeat(" ", upstream.MaxReleaseBody), `{"errors": 1}`}, false, []string{"executed", "replayed"}},
		"no room":    {[]string{large, large, `{"errors": 1}`}, true, []string{"executed", "replayed"}},
		"no content": {nil, false, []string{"executed", "replayed"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newObserving(t, func(c *Config) {
					c.Rules.ReleaseIf, c.MaxResponseBody, c.Budget = []upstream.ReleaseIf{{Pointer: "/errors"}}, 8<<20, budget.New(8<<20)
				})
				for range c.want {
					o.post(strings.NewReader("body"), func(w http.ResponseWriter, r *http.Request) {
						readAll(w, r)
						others := budget.Allowance{Budget: o.Budget}
						if c.full {
							others.Count(8 << 20)
						}
						for i, part := range c.parts {
							if i%2 == 0 {
								_, _ = io.WriteString(w, part)
							} else {
								_, _ = io.Copy(w, io.LimitReader(strings.NewReader(part), 1<<20)) // by ReadFrom
							}
						}
						synctest.Wait()
						others.ReleaseAll()
					})
					synctest.Wait()
				}
				o.want(c.want...)
				if lines := o.logs.FilterMessageSnippet("release_if").Len(); lines > 0 != c.full {
					t.Errorf("%d lines say that a response was not read", lines)
				}
			})
		})
	}
}
