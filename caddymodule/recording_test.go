package caddymodule

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// readAll reads what a reader can have now, and returns how far the recording is.
func (rd *reader) readAll(t *testing.T) (string, recordingState) {
	t.Helper()
	var got strings.Builder
	for {
		shown, state, _ := rd.next()
		if len(shown) == 0 {
			return got.String(), state
		}
		got.Write(shown)
		rd.took(len(shown))
	}
}

func passed(t *testing.T, r *recording, n int) {
	t.Helper()
	if err := r.pass(make([]byte, n)); err != nil {
		t.Fatal(err)
	}
}

// A body that is larger than is kept reaches all who have begun to read it, and what
// they have is held no longer.
func TestPassingBodyReachesAllItsReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, next := budgetOf(1 << 30)
		r := newRecording(next())
		readers := []*reader{r.reader(), r.reader(), r.reader()}
		r.taken.count(100)
		r.add(make([]byte, 100))
		const pieces = 50
		total := 100 + pieces*window/2
		done := make(chan int, len(readers))
		for n, rd := range readers {
			go func() {
				got := 0
				for {
					shown, state, changed := rd.next()
					if len(shown) == 0 && state != growing && state != passing {
						done <- got
						return
					}
					if len(shown) == 0 {
						<-changed
						continue
					}
					time.Sleep(time.Duration(n) * time.Second) // each at its own pace
					n := min(len(shown), piece)
					got += n
					rd.took(n)
				}
			}()
		}
		for range pieces {
			passed(t, r, window/2)
			if held := len(r.body); held > 2*window {
				t.Fatalf("%d bytes are held", held)
			}
		}
		if r.reader() != nil {
			t.Error("a reader can begin although the first bytes are gone")
		}
		r.end(whole)
		for range readers {
			if got := <-done; got != total {
				t.Errorf("a reader got %d of %d bytes", got, total)
			}
		}
		for _, rd := range readers {
			rd.leave()
			rd.leave()
		}
		wantUsed(t, b, 0)
	})
}

// A reader that takes nothing is cut when another one waits for more, and the upstream
// goes on.
func TestStalledReaderOfAPassingBodyIsLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, next := budgetOf(1 << 30)
		r := newRecording(next())
		stalled, alive := r.reader(), r.reader()
		passed(t, r, window)
		alive.readAll(t)
		begun := time.Now()
		passed(t, r, 1)
		if waited := time.Since(begun); waited != readerPatience {
			t.Errorf("the upstream waited for %v, want %v", waited, readerPatience)
		}
		if _, state := alive.readAll(t); state != passing {
			t.Errorf("the one that reads sees the state %d", state)
		}
		if shown, state, _ := stalled.next(); state != cut || len(shown) > 0 {
			t.Errorf("the one that stalled sees the state %d and %d bytes", state, len(shown))
		}
	})
}

// When the last reader of a passing body is gone, nobody needs the rest.
func TestPassingBodyWithoutReadersIsAbandoned(t *testing.T) {
	_, next := budgetOf(1 << 30)
	r := newRecording(next())
	abandoned := 0
	r.abandoned = func() { abandoned++ }
	first, second := r.reader(), r.reader()
	passed(t, r, 1)
	first.leave()
	if abandoned != 0 {
		t.Error("it was abandoned with a reader")
	}
	second.leave()
	if abandoned != 1 {
		t.Errorf("it was abandoned %d times", abandoned)
	}
	if err := r.pass([]byte("more")); !errors.Is(err, errNoReaders) {
		t.Errorf("more was taken: %v", err)
	}
}

// A body that is kept goes on without readers, and is held until it is stored.
func TestKeptBodyNeedsNoReaders(t *testing.T) {
	b, next := budgetOf(1 << 30)
	r := newRecording(next())
	r.reader().leave()
	r.taken.count(4)
	r.add([]byte("body"))
	r.keep()
	late := r.reader()
	r.end(whole)
	if got, state := late.readAll(t); got != "body" || state != whole {
		t.Errorf("a late reader got %q, state %d", got, state)
	}
	late.leave()
	wantUsed(t, b, 4)
	r.unkeep()
	wantUsed(t, b, 0)
	if r.reader() != nil {
		t.Error("a reader can begin although the bytes are gone")
	}
}

// largeAnswers answers with more than the kernel's buffers take.
func largeAnswers(w http.ResponseWriter, _ *http.Request, _ int) {
	for range 8 << 10 {
		if _, err := io.WriteString(w, strings.Repeat("x", 1024)); err != nil {
			return
		}
	}
}

// A client that reads nothing keeps no store open, whatever it is answered with: the
// response of its own run, that of another one, or what does not fit.
func TestSlowClientKeepsNoStoreOpen(t *testing.T) {
	for name, setting := range map[string]string{
		"kept":     "max_response_body 16MiB",
		"not kept": "max_response_body 1MiB",
	} {
		t.Run(name, func(t *testing.T) {
			address, runs := upstream(t, largeAnswers)
			s := serve(t, "dedup {\n"+setting+"\n}", "reverse_proxy "+address)
			var clients []net.Conn
			for range 3 {
				conn, err := net.Dial("tcp", s.Listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				clients = append(clients, conn)
				fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: dedup.test\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n")
			}
			defer func() {
				for _, conn := range clients {
					conn.Close()
				}
			}()
			for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
				stores.mu.Lock()
				users := 0
				for _, o := range stores.open {
					o.mu.Lock()
					users += o.users
					o.mu.Unlock()
				}
				stores.mu.Unlock()
				if runs.Load() == 1 && users == 1 { // the configuration
					return
				}
				if time.Now().After(deadline) {
					t.Fatalf("the store has %d users, the upstream had %d runs", users, runs.Load())
				}
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
	c := captureOn(client, 1<<20)
	fmt.Fprint(c, "first,")
	c.Flush()
	variables["written"]++ // the race detector sees who reads it
	fmt.Fprint(c, "second")
	c.finish()
	if got := client.ResponseWriter.(*httptest.ResponseRecorder).Body.String(); got != "first,second" {
		t.Errorf("the client got %q", got)
	}
}

// Who writes to the recording has no client whose pace could be limited.
func TestHandlersBehindHaveNoWriteDeadline(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c := captureOn(w, 1<<20)
		if err := http.NewResponseController(c).SetWriteDeadline(time.Now()); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("got %v", err)
		}
		fmt.Fprint(c, "all")
		c.finish()
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

// Whose first bytes are gone nobody can begin to follow, also while the engine still
// tries to store that the response is not kept.
func TestNobodyBeginsBehindDroppedBytes(t *testing.T) {
	r := newRecording(room())
	own := r.reader()
	r.add([]byte("begun"))
	r.keep() // the store is down: the settlement is still to be stored
	passed(t, r, 10)
	own.leave()
	r.end(whole)
	if rd := r.reader(); rd != nil {
		got, state := rd.readAll(t)
		t.Errorf("a reader gets %q, and takes it for whole: %v", got, state == whole)
	}
}

// What a response declares is taken of the budget before it is allocated, and what was
// taken too much is given back.
func TestDeclaredResponsesAreCounted(t *testing.T) {
	for name, c := range map[string]struct {
		declared, most int64
		pieces         []int
		takes          []int
	}{
		"declared":          {100, 1000, []int{30, 30, 40}, []int{100, 0, 0}},
		"at once":           {100, 1000, []int{100}, []int{100}},
		"not declared":      {-1, 1000, []int{30, 30}, []int{30, 30}},
		"larger than kept":  {5000, 1000, []int{300, 700}, []int{1000, 0}},
		"more than it says": {100, 1000, []int{60, 60}, []int{100, 60}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRecording(room())
			r.declared = c.declared
			var written int64
			for i, n := range c.pieces {
				written += int64(n)
				if got := r.needs(n, written, c.most); got != c.takes[i] {
					t.Errorf("piece %d needs %d bytes, want %d", i, got, c.takes[i])
				}
				r.taken.count(c.takes[i])
				r.add(make([]byte, n))
				if int64(cap(r.body)) > max(2*r.taken.bytes, 64) {
					t.Errorf("%d bytes are allocated, %d counted", cap(r.body), r.taken.bytes)
				}
			}
			own := r.reader()
			if err := r.pass([]byte("x")); err != nil {
				t.Fatal(err)
			}
			if held := int64(len(r.body)); r.taken.bytes > held+int64(c.takes[len(c.takes)-1]) {
				t.Errorf("%d bytes are held, %d counted", held, r.taken.bytes)
			}
			own.readAll(t)
			own.leave()
			wantUsed(t, r.taken.budget, 0)
		})
	}
}
