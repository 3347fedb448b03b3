package integration

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// These are the services of docs/from-hand-written.md, each with dedup of its own. The
// tests show the failure that the page tells of, and that it is gone behind dedup.

// eventTable stands for a table with a unique constraint on the event's ID.
type eventTable struct {
	mu  sync.Mutex
	ids map[string]bool
}

// insert reports whether the ID is new, as INSERT ... ON CONFLICT DO NOTHING does.
func (e *eventTable) insert(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ids[id] {
		return false
	}
	e.ids[id] = true
	return true
}

// work is what a service does for an event: it counts, and may fail or be cut off.
type work struct {
	mu     sync.Mutex
	done   map[string]int
	before func(id string, n int) error
}

func newWork(before func(id string, n int) error) *work {
	return &work{done: make(map[string]int), before: before}
}

func (w *work) do(id string) error {
	w.mu.Lock()
	n := w.done[id] + 1
	w.done[id] = n
	w.mu.Unlock()
	return w.before(id, n)
}

func (w *work) times(id string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.done[id]
}

// page:table
func (s *tableService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get("X-Event-Id")
	if !s.events.insert(id) { // INSERT INTO events ... ON CONFLICT DO NOTHING
		w.WriteHeader(http.StatusOK) // a duplicate
		return
	}
	if err := s.work.do(id); err != nil {
		http.Error(w, "try again", http.StatusInternalServerError)
		return
	}
	fmt.Fprintln(w, "order", id, "is on its way")
}

// page:end

type tableService struct {
	events *eventTable
	work   *work
}

// page:setnx
func (s *setnxService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get("X-Event-Id")
	first, err := s.redis.SetNX(r.Context(), "seen:"+id, 1, s.ttl).Result()
	if err != nil || !first {
		w.WriteHeader(http.StatusOK) // a duplicate, or Redis is away
		return
	}
	if err := s.work.do(id); err != nil {
		s.redis.Del(r.Context(), "seen:"+id) // so that the retry runs
		http.Error(w, "try again", http.StatusInternalServerError)
		return
	}
	fmt.Fprintln(w, "order", id, "is on its way")
}

// page:end

type setnxService struct {
	redis *redis.Client
	ttl   time.Duration
	work  *work
}

// page:cache
func (s *cacheMiddleware) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Idempotency-Key")
	if kept, ok := s.cache.Load(key); ok {
		_, _ = w.Write(kept.([]byte))
		return
	}
	recorded := httptest.NewRecorder()
	s.next.ServeHTTP(recorded, r)
	s.cache.Store(key, recorded.Body.Bytes())
	_, _ = w.Write(recorded.Body.Bytes())
}

// page:end

type cacheMiddleware struct {
	cache sync.Map
	next  http.Handler
}

// The Go code of the page is the code that is tried here.
func TestHandWrittenCodeOfThePage(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("handwritten_test.go")
	if err != nil {
		t.Fatal(err)
	}
	shown := 0
	for _, b := range docBlocks(t) {
		if b.page != "from-hand-written.md" || b.language != "go" {
			continue
		}
		shown++
		if !strings.Contains(string(source), "\n"+b.text+"\n// page:end") {
			t.Errorf("%s:%d: this is not the code that the test tries:\n%s", b.page, b.line, b.text)
		}
	}
	if shown != 3 {
		t.Errorf("the page shows %d services, want 3", shown)
	}
}

// handWritten is an upstream with dedup of its own.
func handWritten(t *testing.T, service http.Handler) *upstream {
	t.Helper()
	server := httptest.NewServer(service)
	t.Cleanup(server.Close)
	return &upstream{addr: server.Listener.Addr().String()}
}

// direct is a client that asks the service itself. The status is 0 if there is no answer.
func direct(t *testing.T, up *upstream, field, id, body string, options ...option) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+up.addr+"/events", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(field, id)
	for _, change := range options {
		change(r)
	}
	got, err := oneShot.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer got.Body.Close()
	text, err := io.ReadAll(got.Body)
	if err != nil {
		return 0, err.Error()
	}
	return got.StatusCode, string(text)
}

var fails1 = func(_ string, n int) error {
	if n == 1 {
		return fmt.Errorf("the warehouse does not answer")
	}
	return nil
}

// A table: the ID is noted before the work is done. If the work fails, the retry is taken
// for a duplicate, and the order is lost.
func TestHandWrittenTableLosesAFailedEvent(t *testing.T) {
	t.Parallel()
	w := newWork(fails1)
	up := handWritten(t, &tableService{&eventTable{ids: map[string]bool{}}, w})
	if status, _ := direct(t, up, "X-Event-Id", "17", "{}"); status != 500 {
		t.Fatalf("the first one got %d, want 500", status)
	}
	if status, body := direct(t, up, "X-Event-Id", "17", "{}"); status != 200 || body != "" || w.times("17") != 1 {
		t.Errorf("the retry got %d %q after %d tries: is the failure of the page mended?", status, body, w.times("17"))
	}
}

// While the first one is at work, the table answers its duplicate with 200, and the
// sender stops. Then the work fails.
func TestHandWrittenTableAnswersTooEarly(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	w := newWork(func(string, int) error { <-g.opened; return fmt.Errorf("no") })
	up := handWritten(t, &tableService{&eventTable{ids: map[string]bool{}}, w})
	first := make(chan int)
	go func() { status, _ := direct(t, up, "X-Event-Id", "18", "{}"); first <- status }()
	eventually(t, "the first one is at work", func() bool { return w.times("18") == 1 })
	if status, _ := direct(t, up, "X-Event-Id", "18", "{}"); status != 200 {
		t.Errorf("the duplicate got %d, want 200", status)
	}
	g.open()
	if status := <-first; status != 500 {
		t.Errorf("the first one got %d, want 500", status)
	}
}

// SETNX: the process dies at work. Nobody removes what it has set: each retry gets 200,
// and nothing is done, until the time is over.
func TestHandWrittenSetNXLosesTheEventOfACrash(t *testing.T) {
	t.Parallel()
	client := redisClient(t, redistest.Start(t))
	w := newWork(func(_ string, n int) error {
		if n == 1 {
			panic(http.ErrAbortHandler) // the process is gone: nothing behind this is done
		}
		return nil
	})
	up := handWritten(t, &setnxService{client, time.Hour, w})
	if status, _ := direct(t, up, "X-Event-Id", "19", "{}"); status != 0 {
		t.Fatalf("the first one got %d, want no answer", status)
	}
	for range 3 {
		if status, body := direct(t, up, "X-Event-Id", "19", "{}"); status != 200 || body != "" {
			t.Errorf("a retry got %d %q", status, body)
		}
	}
	if w.times("19") != 1 {
		t.Errorf("it was tried %d times: is the failure of the page mended?", w.times("19"))
	}
}

// SETNX with a short time instead: work that takes longer is done twice.
func TestHandWrittenSetNXRunsTwiceWhenItsTimeIsOver(t *testing.T) {
	t.Parallel()
	client := redisClient(t, redistest.Start(t))
	g := newGate(t)
	w := newWork(func(_ string, n int) error {
		if n == 1 {
			<-g.opened
		}
		return nil
	})
	up := handWritten(t, &setnxService{client, 100 * time.Millisecond, w})
	first := make(chan int)
	go func() { status, _ := direct(t, up, "X-Event-Id", "20", "{}"); first <- status }()
	eventually(t, "the first one is at work", func() bool { return w.times("20") == 1 })
	eventually(t, "the key has expired", func() bool { return client.Exists(t.Context(), "seen:20").Val() == 0 })
	direct(t, up, "X-Event-Id", "20", "{}")
	if w.times("20") != 2 {
		t.Errorf("it ran %d times: is the failure of the page mended?", w.times("20"))
	}
	g.open()
	<-first
}

// A cache in a middleware: two at once both miss it, another body gets the old answer,
// another caller gets it too, and a failure is kept.
func TestHandWrittenCacheMissesFourThings(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	w := newWork(func(id string, _ int) error {
		if id == "at once" {
			<-g.opened
		}
		return nil
	})
	up := handWritten(t, &cacheMiddleware{next: http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		_ = w.do(key)
		body, _ := io.ReadAll(r.Body)
		if key == "fails" {
			out.WriteHeader(500)
		}
		fmt.Fprintf(out, "%s for %s", body, r.Header.Get("Authorization"))
	})})
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() { direct(t, up, "Idempotency-Key", "at once", "10") })
	}
	eventually(t, "both are at work", func() bool { return w.times("at once") == 2 })
	g.open()
	both.Wait()

	if _, a := direct(t, up, "Idempotency-Key", "k", "10"); a != "10 for " {
		t.Errorf("got %q", a)
	}
	if status, b := direct(t, up, "Idempotency-Key", "k", "99"); status != 200 || b != "10 for " {
		t.Errorf("another amount got %d %q: is the failure of the page mended?", status, b)
	}
	if _, b := direct(t, up, "Idempotency-Key", "k", "10", header("Authorization", "Bearer other")); b != "10 for " {
		t.Errorf("another caller got %q: is the failure of the page mended?", b)
	}
	direct(t, up, "Idempotency-Key", "fails", "10")
	if status, _ := direct(t, up, "Idempotency-Key", "fails", "10"); status != 200 || w.times("fails") != 1 {
		t.Errorf("after a failure the retry got %d and %d runs: is the failure of the page mended?", status, w.times("fails"))
	}
}
