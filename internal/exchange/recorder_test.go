package exchange

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// captured is what a recorder knew when its run was settled.
type captured struct {
	status    int
	body      string
	omitted   bool
	streaming bool
	whole     bool
	header    http.Header
}

// serveCaptured serves one request with a handler behind a recorder, on a real server. settle is
// called where the run is settled: at its end, or where its body outgrows what is kept.
func serveCaptured(t *testing.T, maxBody int64, handler http.HandlerFunc, settle func(captured)) *http.Response {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Server", "in front")
		c := recorderOn(w, maxBody)
		settleOnce := sync.OnceFunc(func() {
			settle(captured{
				status: c.status, body: string(c.response().Body), omitted: c.omitted, streaming: c.streaming, whole: c.whole(),
				header: c.response().Header,
			})
		})
		c.settle = settleOnce
		handler(c, r)
		settleOnce()
		c.deliver()
	}))
	t.Cleanup(server.Close)
	response, err := http.Post(server.URL, "text/plain", strings.NewReader("request"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	return response
}

// recorderOn returns a recorder for a client that may read as slowly as it likes.
func recorderOn(w http.ResponseWriter, maxBody int64) *recorder {
	return recorderWithin(NewBudget(1<<30), w, maxBody)
}

// recorderWithin is recorderOn with a budget. Its run is not settled by anything.
func recorderWithin(budget *Budget, w http.ResponseWriter, maxBody int64) *recorder {
	c := &recorder{limit: new(runLimit), settle: func() {}, share: func() {}}
	c.limit.startTimer(context.Background(), time.Hour)
	c.init(newClientWriter(w, nil, writeLimit{}), maxBody, headerRules{}, budget)
	return c
}

// A run that finds no room is settled without its body, and its client gets all of that.
func TestRunWithoutRoomIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := NewBudget(1000)
		others := &Allowance{Budget: budget}
		others.Take(2 * smallBody)
		client, settled := httptest.NewRecorder(), 0
		c := recorderWithin(budget, client, 1<<20)
		c.settle = func() { settled++ }
		large := strings.Repeat("all ", smallBody)
		for _, part := range []string{large, "of ", "it"} {
			if _, err := io.WriteString(c, part); err != nil {
				t.Fatal(err)
			}
		}
		c.deliver()
		if settled != 1 || !c.omitted || client.Body.String() != large+"of it" {
			t.Errorf("settled %d times, omitted: %v; the client got %d bytes", settled, c.omitted, client.Body.Len())
		}
		if used := budget.Used(); used != 2*smallBody {
			t.Errorf("%d bytes are in use, want those of the others", used)
		}
	})
}

// The copy that a body needs on its way into the store waits for room like the body itself. Without
// it the body is not kept, for that reason, and its client gets it all the same. A small one does not
// wait.
func TestCopyForTheStoreWaitsForRoom(t *testing.T) {
	const large = 2 * smallBody
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
		"no room":    {large, large, time.Hour, true, 0, roomTimeout},
		"small":      {smallBody, large, time.Hour, true, smallBody, 0},
		"no copy":    {large, large, time.Hour, false, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				budget := NewBudget(3 * smallBody)
				client := httptest.NewRecorder()
				r := recorderWithin(budget, client, 1<<20)
				others := &Allowance{Budget: budget}
				if _, err := r.Write(make([]byte, c.body)); err != nil {
					t.Fatal(err)
				}
				others.TryTake(1) // another run is over the limit, and its body too
				others.Count(c.others)
				if c.others > 0 {
					others.TryTake(large)
				}
				release := time.AfterFunc(c.release, others.ReleaseAll)
				defer release.Stop()
				began := time.Now()
				got := r.takeCopyRoom(c.encrypted)
				if took := time.Since(began); got != c.want || took != c.wantAfter {
					t.Errorf("%d bytes were taken after %v, want %d after %v", got, took, c.want, c.wantAfter)
				}
				notKept := r.notKept()
				if response := r.response(); response.Omitted != (c.wantAfter == roomTimeout) || response.Omitted != strings.Contains(notKept, "no room") {
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
	tests := map[string]struct {
		handler http.HandlerFunc
		want    captured
		body    string // what the client reads, if it is not what is kept
	}{
		"buffered": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("X-Own", "1")
				w.WriteHeader(201)
				fmt.Fprint(w, "created")
			},
			want: captured{status: 201, body: "created", whole: true},
		},
		"no status": {
			handler: func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") },
			want:    captured{status: 200, body: "ok", whole: true},
		},
		"no body": {
			handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) },
			want:    captured{status: 204, whole: true},
		},
		"second status ignored": {
			handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(202); w.WriteHeader(500) },
			want:    captured{status: 202, whole: true},
		},
		"io.Copy": {
			handler: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.Copy(w, strings.NewReader("copied")) },
			want:    captured{status: 200, body: "copied", whole: true},
		},
		"declared and whole": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", "5")
				fmt.Fprint(w, "whole")
			},
			want: captured{status: 200, body: "whole", whole: true},
		},
		"flushed": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprint(w, "one,")
				_ = http.NewResponseController(w).Flush()
				fmt.Fprint(w, "two")
			},
			want: captured{status: 200, body: "one,two", streaming: true, whole: true},
		},
		"event stream": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
				fmt.Fprint(w, "data: 1\n\n")
			},
			want: captured{status: 200, body: "data: 1\n\n", streaming: true, whole: true},
		},
		"exactly as large as kept": {
			handler: func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, long[:50]); fmt.Fprint(w, long[:14]) },
			want:    captured{status: 200, body: long[:64], whole: true},
		},
		"larger than kept": {
			handler: func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, long[:50]); fmt.Fprint(w, long[:50]) },
			want:    captured{status: 200, omitted: true, streaming: true, whole: true},
			body:    long,
		},
		"larger than kept, declared, in one write": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", "100")
				fmt.Fprint(w, long)
			},
			want: captured{status: 200, omitted: true, streaming: true, whole: true},
			body: long,
		},
		"trailers": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Trailer", "X-Sum")
				fmt.Fprint(w, "body")
				w.Header().Set("X-Sum", "42")
			},
			want: captured{status: 200, body: "body", whole: true},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var got captured
			response := serveCaptured(t, 64, test.handler, func(c captured) { got = c }) //nolint:bodyclose // it does, at the end
			body, err := io.ReadAll(response.Body)
			if err != nil {
				t.Fatal(err)
			}
			want := test.body
			if want == "" {
				want = test.want.body
			}
			if string(body) != want || response.StatusCode != test.want.status {
				t.Errorf("the client got %d %q, want %d %q", response.StatusCode, body, test.want.status, want)
			}
			if name == "trailers" && response.Trailer.Get("X-Sum") != "42" {
				t.Errorf("the client got the trailers %v", response.Trailer)
			}
			if _, kept := got.header["Server"]; kept {
				t.Errorf("a field of a handler in front is kept: %v", got.header)
			}
			got.header = nil
			if fmt.Sprint(got) != fmt.Sprint(test.want) {
				t.Errorf("captured %+v, want %+v", got, test.want)
			}
		})
	}
}

// Nothing of a buffered response, and not the last byte of a declared one,
// reaches the client before the run is settled.
func TestCaptureHoldsTheEndBack(t *testing.T) {
	tests := map[string]struct {
		handler http.HandlerFunc
		before  string
		whole   string
	}{
		"declared stream": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", "6")
				for _, part := range []string{"abc", "def"} {
					fmt.Fprint(w, part)
					_ = http.NewResponseController(w).Flush()
				}
			},
			before: "abcde", whole: "abcdef",
		},
		"flushed after all was written": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", "6")
				fmt.Fprint(w, "abcdef")
				_ = http.NewResponseController(w).Flush()
			},
			before: "abcde", whole: "abcdef",
		},
		"past the limit": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", "100")
				fmt.Fprint(w, strings.Repeat("a", 60))
				fmt.Fprint(w, strings.Repeat("b", 40))
				_ = http.NewResponseController(w).Flush()
			},
			// Its run is settled where it outgrows what is kept, and before these bytes pass.
			before: strings.Repeat("a", 60),
			whole:  strings.Repeat("a", 60) + strings.Repeat("b", 40),
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			settled := make(chan struct{})
			response := serveCaptured(t, 64, test.handler, func(captured) { <-settled }) //nolint:bodyclose // it does, at the end
			before := make([]byte, len(test.before))
			if _, err := io.ReadFull(response.Body, before); err != nil || string(before) != test.before {
				t.Fatalf("before the run was settled the client got %q, %v; want %q", before, err, test.before)
			}
			close(settled)
			rest, err := io.ReadAll(response.Body)
			if err != nil || string(before)+string(rest) != test.whole {
				t.Errorf("the client got %q then %q, %v", before, rest, err)
			}
		})
	}
}

// A response that declares more than it has is not whole.
func TestCaptureNoticesAShortBody(t *testing.T) {
	c := recorderOn(httptest.NewRecorder(), 64)
	c.Header().Set("Content-Length", "10")
	if _, err := c.Write([]byte("short")); err != nil {
		t.Fatal(err)
	}
	if c.whole() || !c.broken() {
		t.Error("5 of 10 bytes count as the whole response")
	}
}

// A handler behind writes on when the client is gone: the run is captured whole.
func TestCaptureGoesOnWithoutClient(t *testing.T) {
	done := make(chan captured, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := recorderOn(w, 1<<20)
		fmt.Fprint(c, "first,")
		c.Flush()
		<-r.Context().Done()
		for range 1000 {
			if _, err := fmt.Fprint(c, "more"); err != nil {
				t.Errorf("writing failed: %v", err)
			}
			c.Flush()
		}
		done <- captured{body: string(c.response().Body), whole: c.whole()}
		c.deliver() // the server must have its writer back for itself
	}))
	defer server.Close()
	ctx, leave := context.WithCancel(context.Background())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(response.Body).ReadString(','); err != nil {
		t.Fatal(err)
	}
	leave()
	response.Body.Close()
	if got := <-done; got.body != "first,"+strings.Repeat("more", 1000) || !got.whole {
		t.Errorf("captured %d bytes, whole %v", len(got.body), got.whole)
	}
}

// A response without a body that was flushed is no stream: its client gets it, like any
// other, after it is stored.
func TestFlushedResponseWithoutABodyIsHeldBack(t *testing.T) {
	for name, write := range map[string]func(c *recorder){
		"no content":        func(c *recorder) { c.WriteHeader(http.StatusNoContent) },
		"not modified":      func(c *recorder) { c.WriteHeader(http.StatusNotModified) },
		"declared as empty": func(c *recorder) { c.Header().Set("Content-Length", "0") },
		"no events": func(c *recorder) {
			c.Header().Set("Content-Type", "text/event-stream")
			c.WriteHeader(http.StatusNoContent)
		},
		"events declared as empty": func(c *recorder) {
			c.Header().Set("Content-Type", "text/event-stream")
			c.Header().Set("Content-Length", "0")
			c.WriteHeader(http.StatusOK)
		},
	} {
		t.Run(name, func(t *testing.T) {
			client := httptest.NewRecorder()
			client.Code = 0
			c := recorderOn(client, 64)
			write(c)
			c.Flush()
			if c.streaming || client.Flushed || client.Code != 0 {
				t.Fatalf("before the run was settled the client got %d, flushed: %v", client.Code, client.Flushed)
			}
			c.deliver()
			if client.Code != c.status {
				t.Errorf("the client got %d, want %d", client.Code, c.status)
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
	c := recorderOn(client, 1<<20)
	fmt.Fprint(c, "first,")
	c.Flush()
	variables["written"]++ // the race detector sees who reads it
	fmt.Fprint(c, "second")
	c.deliver()
	if got := client.ResponseWriter.(*httptest.ResponseRecorder).Body.String(); got != "first,second" {
		t.Errorf("the client got %q", got)
	}
}

// Who writes to the recording has no client whose pace could be limited.
func TestHandlersBehindHaveNoWriteDeadline(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c := recorderOn(w, 1<<20)
		if err := http.NewResponseController(c).SetWriteDeadline(time.Now()); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("got %v", err)
		}
		fmt.Fprint(c, "all")
		c.deliver()
	}))
	defer server.Close()
	answer, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if body, err := io.ReadAll(answer.Body); string(body) != "all" || err != nil {
		t.Errorf("the client got %q, %v", body, err)
	}
}

// A status without a body has none, whatever is written behind it, and 204 no length either:
// over HTTP/2 a client would take that for a broken answer.
func TestStatusWithoutABodyIsWhole(t *testing.T) {
	for status, length := range map[int]string{http.StatusNoContent: "", http.StatusNotModified: "7"} {
		client := httptest.NewRecorder()
		c := recorderOn(client, 64)
		c.Header().Set("Content-Length", "7")
		c.WriteHeader(status)
		if n, err := io.WriteString(c, "created"); n != 7 || err != nil || !c.whole() || len(c.response().Body) != 0 {
			t.Errorf("%d: wrote %d, %v; whole %v with %q", status, n, err, c.whole(), c.response().Body)
		}
		c.deliver()
		if got := client.Header().Get("Content-Length"); client.Code != status || got != length || client.Body.Len() != 0 {
			t.Errorf("the client got %d with the length %q and %q; want %d with %q", client.Code, got, client.Body, status, length)
		}
	}
}

// whole reports whether a final status came, with as many bytes as it declared.
func (c *recorder) whole() bool { return c.status != 0 && !c.broken() }
