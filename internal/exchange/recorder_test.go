package exchange

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
	"github.com/caddy-dedup/caddy-dedup/internal/deduptest"
	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/httpfield"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/recording"
	"github.com/caddy-dedup/caddy-dedup/internal/report"
	"github.com/caddy-dedup/caddy-dedup/internal/store/memory"
	"github.com/caddy-dedup/caddy-dedup/internal/upstream"
)

// end ends a run whose handlers have returned.
func end(e *execution) { e.deliver(e.finish(e.ended(nil))) }

// executionOn returns the run of a request whose client may read as slowly as it likes.
func executionOn(t *testing.T, w http.ResponseWriter, maxBody int64) *execution {
	return newExecution(t, w, Config{MaxResponseBody: maxBody}, nil)
}

// newExecution is executionOn with a configuration, which has a large budget unless it says otherwise.
// settle, if it is not nil, is called when the run is settled.
func newExecution(t *testing.T, w http.ResponseWriter, c Config, settle func(idempotency.Settlement)) *execution {
	run, policy := startRun(t, engineOn(t, &settling{memory.New(64 << 20), settle}))
	c.Timeout, c.Budget = time.Hour, cmp.Or(c.Budget, budget.New(1<<30))
	c.Report = &report.Reporter{Observer: noCounts{}, Logger: zap.NewNop()}
	r := httptest.NewRequestWithContext(context.WithValue(t.Context(), caddy.ReplacerCtxKey, caddy.NewReplacer()), http.MethodPost, "/", nil)
	x := &exchange{Handler: New(c), w: w, r: r, info: new(report.Info)}
	x.Request.Init(x.keys, c.Report, c.Budget, w, r, x.info)
	e := &execution{exchange: x, run: run, policy: policy}
	e.startRun()
	e.response.init(e.toClient(), &e.limit, c.MaxResponseBody, e.headers, e.room())
	t.Cleanup(e.limit.stop)
	t.Cleanup(e.response.close)
	return e
}

// engineOn returns an engine on a store.
func engineOn(t *testing.T, store idempotency.Store) *engine.Engine {
	e := engine.New(store, engine.Options{
		Timeout: time.Minute, Logger: zap.NewNop(),
		NewToken: func() string { return "token" }, NewExecutionID: func() string { return "execution" },
	})
	t.Cleanup(func() { _ = e.Close() })
	return e
}

// startRun returns the run of a new key.
func startRun(t *testing.T, e *engine.Engine) (*engine.Run, *idempotency.Policy) {
	policy := &idempotency.Policy{Terms: idempotency.Terms{Lease: time.Hour, Retention: time.Hour}}
	decision, err := e.Claim(t.Context(), engine.Request{Key: idempotency.Key{1}, Policy: *policy})
	if err != nil {
		panic(err)
	}
	return decision.(*engine.Run), policy
}

// settling is a store that calls settle before it stores the end of a run.
type settling struct {
	idempotency.Store
	settle func(idempotency.Settlement)
}

func (s *settling) Settle(ctx context.Context, key idempotency.Key, claimed *idempotency.Record, settlement idempotency.Settlement) error {
	if s.settle != nil {
		s.settle(settlement)
	}
	return s.Store.Settle(ctx, key, claimed, settlement)
}

type noCounts struct{}

func (noCounts) Request(string, report.Outcome, bool) {}
func (noCounts) Differing(string, bool)               {}
func (noCounts) Overloaded(engine.Limit)              {}

// A run that finds no room is settled without its body, and its client gets all of that.
func TestRunWithoutRoomIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		room := budget.New(1000)
		others := &budget.Allowance{Budget: room}
		others.Count(2 * budget.SmallBody)
		deduptest.KeepBusy(t, others)
		client, settled := httptest.NewRecorder(), 0
		c := newExecution(t, client, Config{MaxResponseBody: 1 << 20, Budget: room}, func(idempotency.Settlement) {
			if settled++; client.Body.Len() != 0 {
				t.Errorf("its client has %d bytes before it is settled", client.Body.Len())
			}
		})
		large := strings.Repeat("all ", budget.SmallBody)
		for _, part := range []string{large, "of ", "it"} {
			if _, err := io.WriteString(c, part); err != nil {
				t.Fatal(err)
			}
		}
		if settled != 1 {
			t.Errorf("settled %d times before its handlers have returned", settled)
		}
		end(c)
		if settled != 1 || !c.response.omitted || client.Body.String() != large+"of it" {
			t.Errorf("settled %d times, omitted: %v; the client got %d bytes", settled, c.response.omitted, client.Body.Len())
		}
		if used := room.Used(); used != 2*budget.SmallBody {
			t.Errorf("%d bytes are in use, want those of the others", used)
		}
	})
}

// The copy that a body needs on its way into the store waits for room like the body itself. Without
// it the body is not kept, for that reason, and its client gets it all the same. A small one does not
// wait.
func TestCopyForTheStoreWaitsForRoom(t *testing.T) {
	const large = 2 * budget.SmallBody
	for name, c := range map[string]struct {
		body      int
		others    int           // bytes that others hold besides the body
		release   time.Duration // when they release them
		encrypted bool
		want      int
		wantAfter time.Duration
	}{
		"room":       {large, 0, time.Hour, true, large, 0},
		"room later": {large, large, 3 * time.Second, true, large, 3 * time.Second},
		"no room":    {large, large, time.Hour, true, 0, budget.RoomTimeout},
		"small":      {budget.SmallBody, large, time.Hour, true, budget.SmallBody, 0},
		"no copy":    {large, large, time.Hour, false, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				room := budget.New(5 * budget.SmallBody)
				client := httptest.NewRecorder()
				e := newExecution(t, client, Config{MaxResponseBody: 1 << 20, Budget: room}, nil)
				r := &e.response
				r.encrypted = c.encrypted
				others := &budget.Allowance{Budget: room}
				if _, err := e.Write(make([]byte, c.body)); err != nil {
					t.Fatal(err)
				}
				others.Count(2 * c.others)
				deduptest.KeepBusy(t, others)
				release := time.AfterFunc(c.release, others.ReleaseAll)
				defer release.Stop()
				began := time.Now()
				response := r.Shared(upstream.ShareResponse, nil)
				if took := time.Since(began); r.copyRoom != c.want || took != c.wantAfter {
					t.Errorf("%d bytes were taken after %v, want %d after %v", r.copyRoom, took, c.want, c.wantAfter)
				}
				notKept := r.notKept()
				if response.Omitted != (c.wantAfter == budget.RoomTimeout) || response.Omitted != strings.Contains(notKept, "no room") {
					t.Errorf("omitted: %v, because %q", response.Omitted, notKept)
				}
				r.deliver()
				if client.Body.Len() != c.body {
					t.Errorf("its client got %d bytes", client.Body.Len())
				}
			})
		})
	}
}

func TestCapture(t *testing.T) {
	long := strings.Repeat("x", 100)
	type captured struct { // when the run is settled
		status                    int
		body                      string
		omitted, streaming, whole bool
		front                     bool // it has a field of a handler in front
	}
	for name, test := range map[string]struct {
		handler func(http.ResponseWriter)
		want    captured
		body    string // what the client reads, if it is not what is kept
	}{
		"buffered": {
			handler: func(w http.ResponseWriter) {
				w.Header().Set("X-Own", "1")
				w.WriteHeader(201)
				fmt.Fprint(w, "created")
			},
			want: captured{status: 201, body: "created", whole: true},
		},
		"second status ignored": {
			handler: func(w http.ResponseWriter) { w.WriteHeader(202); w.WriteHeader(500) },
			want:    captured{status: 202, whole: true},
		},
		"flushed": {
			handler: func(w http.ResponseWriter) {
				fmt.Fprint(w, "one,")
				_ = http.NewResponseController(w).Flush()
				fmt.Fprint(w, "two")
			},
			want: captured{status: 200, body: "one,two", streaming: true, whole: true},
		},
		"event stream": {
			handler: func(w http.ResponseWriter) {
				w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
				fmt.Fprint(w, "data: 1\n\n")
			},
			want: captured{status: 200, body: "data: 1\n\n", streaming: true, whole: true},
		},
		"exactly as large as kept": {
			handler: func(w http.ResponseWriter) { fmt.Fprint(w, long[:50]); fmt.Fprint(w, long[:14]) },
			want:    captured{status: 200, body: long[:64], whole: true},
		},
		"larger than kept": {
			handler: func(w http.ResponseWriter) { fmt.Fprint(w, long[:50]); fmt.Fprint(w, long[:50]) },
			want:    captured{status: 200, omitted: true, streaming: true, whole: true},
			body:    long,
		},
		"larger than kept, declared, in one write": {
			handler: func(w http.ResponseWriter) {
				w.Header().Set("Content-Length", "100")
				fmt.Fprint(w, long)
			},
			want: captured{status: 200, omitted: true, streaming: true, whole: true},
			body: long,
		},
		"trailers": {
			handler: func(w http.ResponseWriter) {
				w.Header().Set("Trailer", "X-Sum, Dedup-Sum")
				fmt.Fprint(w, "body")
				w.Header().Set("X-Sum", "42")
				w.Header().Set("Dedup-Sum", "42")
				w.Header().Set(http.TrailerPrefix+"X-Late", "43")
				w.Header().Set(http.TrailerPrefix+"Dedup-Late", "42")
			},
			want: captured{status: 200, body: "body", whole: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got captured
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Server", "in front")
				var e *execution
				e = newExecution(t, w, Config{MaxResponseBody: 64}, func(s idempotency.Settlement) {
					_, front := s.Response.Header["Server"]
					got = captured{s.Response.Status, string(s.Response.Body), s.Response.Omitted, e.response.streaming, s.State == idempotency.Complete, front}
				})
				test.handler(e)
				end(e)
			}))
			defer server.Close()
			response, err := http.Get(server.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			if err != nil {
				t.Fatal(err)
			}
			if want := cmp.Or(test.body, test.want.body); string(body) != want || response.StatusCode != test.want.status {
				t.Errorf("the client got %d %q, want %d %q", response.StatusCode, body, test.want.status, want)
			}
			if got := response.Trailer; name == "trailers" && (got.Get("X-Sum")+got.Get("X-Late") != "4243" || got.Get("Dedup-Sum")+got.Get("Dedup-Late") != "") {
				t.Errorf("the client got the trailers %v", response.Trailer)
			}
			if got != test.want {
				t.Errorf("captured %+v, want %+v", got, test.want)
			}
		})
	}
}

// Nothing of a buffered response, and not the last byte of a declared one, reaches the client before the run is
// settled.
func TestCaptureHoldsTheEndBack(t *testing.T) {
	for name, c := range map[string]struct {
		declared string
		parts    []string
		flushed  bool   // each part
		before   string // what the client has when the run is settled
	}{
		"buffered":        {"", []string{"abc", "def"}, false, ""},
		"stream":          {"", []string{"abc", "def"}, true, "abcdef"},
		"declared stream": {"6", []string{"abc", "def"}, true, "abcde"},
		"past the limit":  {"100", []string{strings.Repeat("a", 60), strings.Repeat("b", 40)}, false, strings.Repeat("a", 60)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := httptest.NewRecorder()
				e := newExecution(t, client, Config{MaxResponseBody: 64}, func(idempotency.Settlement) {
					synctest.Wait()
					if got := client.Body.String(); got != c.before {
						t.Errorf("before the run was settled the client got %q, want %q", got, c.before)
					}
				})
				if c.declared != "" {
					e.Header().Set("Content-Length", c.declared)
				}
				for _, part := range c.parts {
					if _, err := io.WriteString(e, part); err != nil {
						t.Fatal(err)
					}
					if c.flushed {
						e.Flush()
					}
				}
				end(e)
				if got := client.Body.String(); got != strings.Join(c.parts, "") {
					t.Errorf("the client got %q", got)
				}
			})
		})
	}
}

// A response that declares more or less than it has is not whole.
func TestCaptureNoticesAWrongLength(t *testing.T) {
	for _, body := range []string{"too short", "much too long"} {
		c := executionOn(t, httptest.NewRecorder(), 64)
		c.Header().Set("Content-Length", "10")
		if _, err := io.WriteString(c, body); err != nil {
			t.Fatal(err)
		}
		if !c.ended(nil).Broken {
			t.Errorf("%d of 10 bytes count as the whole response", len(body))
		}
	}
}

// goneClient is a client that has left.
type goneClient struct{ *httptest.ResponseRecorder }

func (goneClient) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// A handler behind writes on when the client is gone: the run is captured whole.
func TestCaptureGoesOnWithoutClient(t *testing.T) {
	e := executionOn(t, goneClient{httptest.NewRecorder()}, 1<<20)
	want := ""
	for range 1000 {
		if _, err := io.WriteString(e, "more"); err != nil {
			t.Fatal(err)
		}
		want += "more"
		e.Flush()
		<-e.response.delivered // it has left
	}
	if got := string(e.response.toStore().Body); got != want || e.ended(nil).Broken {
		t.Errorf("captured %d bytes, broken: %v", len(got), e.ended(nil).Broken)
	}
}

// A response without a body that was flushed is no stream: its client gets it, like any
// other, after it is stored.
func TestFlushedResponseWithoutABodyIsHeldBack(t *testing.T) {
	for name, write := range map[string]func(c *execution){
		"no content":        func(c *execution) { c.WriteHeader(http.StatusNoContent) },
		"not modified":      func(c *execution) { c.WriteHeader(http.StatusNotModified) },
		"declared as empty": func(c *execution) { c.Header().Set("Content-Length", "0") },
		"no events": func(c *execution) {
			c.Header().Set("Content-Type", "text/event-stream")
			c.WriteHeader(http.StatusNoContent)
		},
		"events declared as empty": func(c *execution) {
			c.Header().Set("Content-Type", "text/event-stream")
			c.Header().Set("Content-Length", "0")
			c.WriteHeader(http.StatusOK)
		},
	} {
		t.Run(name, func(t *testing.T) {
			client := httptest.NewRecorder()
			client.Code = 0
			c := executionOn(t, client, 64)
			write(c)
			c.Flush()
			if c.response.streaming || client.Flushed || client.Code != 0 {
				t.Fatalf("before the run was settled the client got %d, flushed: %v", client.Code, client.Flushed)
			}
			end(c)
			if client.Code != c.response.status {
				t.Errorf("the client got %d, want %d", client.Code, c.response.status)
			}
		})
	}
}

// lookingWriter is a handler in front that looks at the request when it is answered.
type lookingWriter struct {
	http.ResponseWriter
	look func()
}

func (w lookingWriter) WriteHeader(status int) {
	w.look()
	w.ResponseWriter.WriteHeader(status)
}

func (w lookingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// While a stream goes to its client, handlers behind go on: what handlers in front do
// with the status, they do before.
func TestHandlersInFrontSeeTheStatusInTheRequestsGoroutine(t *testing.T) {
	variables := make(map[string]int)
	client := lookingWriter{httptest.NewRecorder(), func() { _ = variables["written"] }}
	c := executionOn(t, client, 1<<20)
	fmt.Fprint(c, "first,")
	c.Flush()
	variables["written"]++ // the race detector sees who reads it
	fmt.Fprint(c, "second")
	end(c)
	if got := client.ResponseWriter.(*httptest.ResponseRecorder).Body.String(); got != "first,second" {
		t.Errorf("the client got %q", got)
	}
}

// deadlineClient fails the test if its deadline is set.
type deadlineClient struct {
	*httptest.ResponseRecorder
	t *testing.T
}

func (c deadlineClient) SetWriteDeadline(time.Time) error {
	c.t.Error("the client's deadline is set")
	return nil
}

// Handlers behind write to the recording: they cannot set the deadline of the client.
func TestHandlersBehindHaveNoWriteDeadline(t *testing.T) {
	e := executionOn(t, deadlineClient{httptest.NewRecorder(), t}, 1<<20)
	if err := http.NewResponseController(e).SetWriteDeadline(time.Now()); !errors.Is(err, http.ErrNotSupported) {
		t.Errorf("got %v", err)
	}
}

// A status without a body has none, whatever is written behind it, and 204 no length either:
// over HTTP/2 a client would take that for a broken answer.
func TestStatusWithoutABodyIsWhole(t *testing.T) {
	for status, length := range map[int]string{http.StatusNoContent: "", http.StatusNotModified: "7"} {
		client := httptest.NewRecorder()
		c := executionOn(t, client, 64)
		c.Header().Set("Content-Length", "7")
		c.WriteHeader(status)
		if n, err := io.WriteString(c, "created"); n != 7 || err != nil || c.ended(nil).Broken || len(c.response.toStore().Body) != 0 {
			t.Errorf("%d: wrote %d, %v; broken %v with %q", status, n, err, c.ended(nil).Broken, c.response.toStore().Body)
		}
		end(c)
		if got := client.Header().Get("Content-Length"); client.Code != status || got != length || client.Body.Len() != 0 {
			t.Errorf("the client got %d with the length %q and %q; want %d with %q", client.Code, got, client.Body, status, length)
		}
	}
}

// What requests get that wait for a run.
func TestSharedResponse(t *testing.T) {
	for name, c := range map[string]struct {
		status int // that was written
		share  upstream.Share
		err    error
		want   *idempotency.Response
	}{
		"nothing":                    {0, upstream.ShareNone, nil, nil},
		"the response":               {201, upstream.ShareResponse, nil, &idempotency.Response{Status: 201}},
		"an empty 200":               {0, upstream.ShareEmpty, nil, &idempotency.Response{Status: 200}},
		"an error":                   {0, upstream.ShareError, errors.New("no"), &idempotency.Response{Status: 500, Failed: true}},
		"an error of Caddy's":        {0, upstream.ShareError, caddyhttp.Error(504, nil), &idempotency.Response{Status: 504, Failed: true}},
		"a panic":                    {0, upstream.ShareError, upstream.ErrAborted, &idempotency.Response{Status: 502, Failed: true}},
		"an error behind a response": {201, upstream.ShareError, errors.New("no"), &idempotency.Response{Status: 500, Failed: true}},
		"a 499 that is no response":  {499, upstream.ShareError, nil, &idempotency.Response{Status: 502, Failed: true}},
	} {
		e := executionOn(t, httptest.NewRecorder(), 1<<20)
		e.Header().Set("X-Own", "1")
		if c.status != 0 {
			e.WriteHeader(c.status)
		}
		got := e.response.Shared(c.share, c.err)
		if (got == nil) != (c.want == nil) {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
		if got == nil || c.want == nil {
			continue
		}
		// The header is kept with a response, and with an error in place of none.
		if hasHeader := len(got.Header["X-Own"]) == 1; got.Status != c.want.Status || got.Failed != c.want.Failed || hasHeader != (c.status == 0 || !got.Failed) {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}

// What is stored of a tool call is its response: encrypting it takes a copy of that, however much of a
// stream came before, and without encryption it is stored as it is held.
func TestRoomForTheCopyOfAToolCallsResponse(t *testing.T) {
	for encrypted, want := range map[bool]int{true: 100 << 10, false: 0} {
		c := &executionOn(t, httptest.NewRecorder(), 1<<20).response
		c.encrypted, c.answer, c.streaming = encrypted, heldPart{bytes: 100 << 10}, true
		c.record.Add(make([]byte, 500<<10))
		if c.takeCopyRoom(); c.copyRoom != want {
			t.Errorf("encrypted: %v: %d bytes are taken, want %d", encrypted, c.copyRoom, want)
		}
	}
}

// heldPart is an answer of which a part is kept.
type heldPart struct {
	upstream.Answer
	bytes int
}

func (p heldPart) Held() int { return p.bytes }

// Large header fields are sent while their room is taken: Go's server would send them when the handler has
// returned.
func TestLargeHeaderIsSentWhileItCounts(t *testing.T) {
	for size, flushed := range map[int]bool{budget.SmallBody / 2: false, 2 * budget.SmallBody: true} {
		room, client := budget.New(1<<20), httptest.NewRecorder()
		e := newExecution(t, client, Config{MaxResponseBody: 1 << 20, Budget: room}, nil)
		e.Header().Set("X-Large", strings.Repeat("x", size))
		e.WriteHeader(http.StatusNoContent)
		if used := room.Used(); flushed != (used >= int64(size)) {
			t.Errorf("%d bytes of a header count as %d", size, used)
		}
		end(e)
		if client.Flushed != flushed {
			t.Errorf("a header of %d bytes is flushed: %v", size, client.Flushed)
		}
	}
}

// A refusal of a dedup behind passes along a row of dedups, and to no other client.
func TestNotExecutedPassesAlongARow(t *testing.T) {
	for _, within := range []string{"", "the run in front"} {
		client := httptest.NewRecorder()
		e := executionOn(t, client, 1<<20)
		e.within = within
		e.Header().Set(httpfield.NotExecuted, "request_in_flight")
		e.WriteHeader(http.StatusConflict)
		end(e)
		if told := client.Header().Get(httpfield.NotExecuted) != ""; told != (within != "") {
			t.Errorf("a client that is %q gets the field: %v", within, told)
		}
	}
}

// wholeAnswer is an answer of which all is kept.
type wholeAnswer struct {
	upstream.Answer
	body []byte
}

func (a *wholeAnswer) Whole(body []byte)             { a.body = body }
func (a *wholeAnswer) Verdict(bool) upstream.Verdict { return upstream.Verdict{} }

// A tool call's answer that is no stream is held once: what is read of it is what its client gets.
func TestToolCallsAnswerIsHeldOnce(t *testing.T) {
	e := executionOn(t, httptest.NewRecorder(), 1<<20)
	answer := new(wholeAnswer)
	e.response.status, e.response.answer = http.StatusOK, answer
	for range 5 {
		e.response.add(make([]byte, 100<<10))
	}
	e.ended(nil)
	if held := e.response.record.Bytes(); len(held) != 500<<10 || &held[0] != &answer.body[0] {
		t.Errorf("%d bytes are held, and %d were read", len(held), len(answer.body))
	}
}

// An invalid status ends the run as it would without dedup, and is not taken for an informational response.
func TestInvalidStatus(t *testing.T) {
	for _, status := range []int{-1, 0, 42, 99, 1000} {
		func() {
			c := executionOn(t, httptest.NewRecorder(), 64)
			defer func() {
				if recover() == nil || c.response.status != 0 {
					t.Errorf("%d: captured %d", status, c.response.status)
				}
			}()
			c.WriteHeader(status)
		}()
	}
}

// 1xx goes to the client at once and is not the answer.
func TestCapturePassesEarlyHints(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c := executionOn(t, w, 64)
		c.Header().Set("Link", "</style.css>; rel=preload")
		c.WriteHeader(http.StatusEarlyHints)
		c.Header().Del("Link")
		c.WriteHeader(http.StatusCreated)
		if c.response.status != http.StatusCreated || len(c.response.answered["Link"]) > 0 {
			t.Errorf("captured %d %v", c.response.status, c.response.answered)
		}
		end(c)
	}))
	defer server.Close()
	var hinted string
	trace := &httptrace.ClientTrace{Got1xxResponse: func(_ int, header textproto.MIMEHeader) error {
		hinted = header.Get("Link")
		return nil
	}}
	r, err := http.NewRequestWithContext(httptrace.WithClientTrace(context.Background(), trace), http.MethodPost, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if hinted == "" || response.StatusCode != http.StatusCreated || response.Header.Get("Link") != "" {
		t.Errorf("hinted %q, then %d %v", hinted, response.StatusCode, response.Header)
	}
}

// A run is settled as upgraded when it has the connection. One that does not get it,
// as over HTTP/2, goes on, and its answer is kept like any other.
func TestRunIsUpgradedWhenItHasTheConnection(t *testing.T) {
	upgrades := 0
	watched := func(w http.ResponseWriter) *execution {
		return newExecution(t, w, Config{MaxResponseBody: 1000}, func(idempotency.Settlement) { upgrades++ })
	}
	c := watched(httptest.NewRecorder()) // it has no connection to hand over
	if _, _, err := http.NewResponseController(c).Hijack(); err == nil || upgrades != 0 || c.response.upgraded {
		t.Errorf("without a connection: %v, upgraded %d times", err, upgrades)
	}
	if _, err := c.Write([]byte("an answer")); err != nil || c.ended(nil).Broken || upgrades != 0 {
		t.Errorf("the answer after that: %v, broken: %v, upgraded %d times", err, c.ended(nil).Broken, upgrades)
	}

	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(watched(w)).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = conn.Write([]byte("HTTP/1.1 204 No Content\r\n\r\n"))
		_ = conn.Close()
	}))
	defer server.Close()
	got, err := http.Post(server.URL, "text/plain", strings.NewReader("request"))
	if err != nil {
		t.Fatal(err)
	}
	_ = got.Body.Close()
	if got.StatusCode != http.StatusNoContent || upgrades != 1 {
		t.Errorf("with a connection: %d, upgraded %d times", got.StatusCode, upgrades)
	}
}

// A duplicate of a run whose response is not stored yet is answered although there is no room: the body is
// held and counted already.
func TestUnstoredBodyIsSharedByDuplicates(t *testing.T) {
	const size = 900 << 10
	b := budget.New(1 << 20)
	run := &recorder{allowance: budget.Allowance{Budget: b}}
	run.record.Init(&run.allowance)
	run.record.AttachOwn(&run.own)
	if !run.allowance.TryTake(size) {
		t.Fatal("there is no room for the run")
	}
	run.record.Add(bytes.Repeat([]byte("x"), size))
	body := run.record.Bytes()
	run.keep(&idempotency.Response{Body: body})
	run.record.Close(recording.Whole)
	run.own.Leave() // its client has the response

	other := &budget.Allowance{Budget: b}
	wantUsed := func(want int64, when string) {
		t.Helper()
		if got := b.Used(); got != want {
			t.Errorf("%d bytes are counted %s, want %d", got, when, want)
		}
	}
	share := func() (release func()) {
		_, release = other.Share(body, false)
		return release
	}
	first, second := share(), share()
	if first == nil || second == nil {
		t.Fatal("a duplicate of a response that is not stored has to wait for room")
	}
	wantUsed(size, "for the run and two duplicates")
	first()
	run.stored()
	wantUsed(size, "when it is stored, and a duplicate reads it")
	if share() != nil {
		t.Error("a duplicate of a stored response has room that there is not")
	}
	second()
	second()
	wantUsed(0, "at the end")
}
