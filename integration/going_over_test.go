package integration

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// pageCaddyfile starts the page's Caddyfile that has these words, before a service.
func pageCaddyfile(t *testing.T, words string, up *upstream, redisAddr string) *caddy {
	t.Helper()
	for _, b := range docBlocks(t) {
		if b.page == "from-hand-written.md" && b.language == "caddyfile" && strings.Contains(b.text, words) {
			text := strings.NewReplacer("{env.REDIS_URL}", "redis://"+redisAddr, "localhost:3000", up.addr, "hooks.example.com {", "http://:PORT {", "api.example.com {", "http://:PORT {").Replace(b.text)
			c := conf{sites: text}
			if options, site, found := strings.Cut(text, "\n}\n\n"); found && strings.HasPrefix(options, "{\n") {
				c.global, c.sites = strings.TrimPrefix(options, "{\n"), site
			}
			return start(t, c)
		}
	}
	t.Fatalf("the page has no Caddyfile with %q", words)
	return nil
}

// plainService is what is left of a service without dedup of its own.
type plainService struct{ work *work }

func (s *plainService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get("X-Event-Id") + r.Header.Get("Idempotency-Key")
	body, _ := io.ReadAll(r.Body)
	if err := s.work.do(id); err != nil {
		http.Error(w, "try again", http.StatusInternalServerError)
		return
	}
	fmt.Fprintln(w, "order", id, "of", string(body), "is on its way")
}

// Behind the Caddyfiles of the page the failures are gone: a failure is tried again, two
// at once are one, and each gets the answer.
func TestHandWrittenFailuresAreGoneBehindDedup(t *testing.T) {
	t.Parallel()
	for words, field := range map[string]string{
		"key header X-Event-Id": "X-Event-Id", "retention 14d": "X-Event-Id", "api.example.com": "Idempotency-Key",
	} {
		t.Run(words, func(t *testing.T) {
			t.Parallel()
			g := newGate(t)
			w := newWork(func(id string, n int) error {
				switch {
				case id == "at once":
					<-g.opened
				case id == "fails" && n == 1:
					return fmt.Errorf("the warehouse does not answer")
				}
				return nil
			})
			p := pageCaddyfile(t, words, handWritten(t, &plainService{w}), redistest.Start(t).Addr)
			send := func(id, body string, options ...option) reply {
				return p.post(t, "/events", "", body, append([]option{header(field, id)}, options...)...)
			}
			if got := send("fails", "10"); got.Status != 500 {
				t.Errorf("the first one got %d, want 500", got.Status)
			}
			first := send("fails", "10")
			wantFresh(t, first, 200, "order fails of 10 is on its way\n")
			wantReplay(t, send("fails", "10"), first)
			if w.times("fails") != 2 {
				t.Errorf("it ran %d times, want 2", w.times("fails"))
			}

			one := p.postLater("/events", "", "10", header(field, "at once"))
			eventually(t, "one is at work", func() bool { return w.times("at once") == 1 })
			two := p.postLater("/events", "", "10", header(field, "at once"))
			p.awaitWaiting(t, 1, two)
			g.open()
			wantReplay(t, two.reply(t), one.reply(t))

			if field != "Idempotency-Key" {
				return
			}
			wantProblem(t, send("fails", "99"), 422, "idempotency_key_reused")
			if got := send("fails", "10", header("Authorization", "Bearer other")); got.replayed() || w.times("fails") != 3 {
				t.Errorf("another caller got %d %q, replayed %t", got.Status, got.Body, got.replayed())
			}
		})
	}
}

// The steps of the page, with retries of events of each step in all that follow.
func TestGoingOverRunsNothingTwice(t *testing.T) {
	t.Parallel()
	w := newWork(func(string, int) error { return nil })
	own, plain := &tableService{&eventTable{ids: map[string]bool{}}, w}, &plainService{w}
	var service http.Handler = own
	var mu sync.Mutex
	up := handWritten(t, http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		mu.Lock()
		now := service
		mu.Unlock()
		now.ServeHTTP(out, r)
	}))
	once := func(step string, ids ...string) {
		t.Helper()
		for _, id := range ids {
			if w.times(id) != 1 {
				t.Errorf("%s: event %s ran %d times, want once", step, id, w.times(id))
			}
		}
	}
	// Before: only the service's own.
	direct(t, up, "X-Event-Id", "before", "{}")
	// 1: both.
	p := pageCaddyfile(t, "key header X-Event-Id", up, redistest.Start(t).Addr)
	send := func(ids ...string) {
		t.Helper()
		for _, id := range ids {
			if got := p.post(t, "/events", "", "{}", header("X-Event-Id", id)); got.Status != 200 {
				t.Errorf("event %s got %d %q", id, got.Status, got.Body)
			}
		}
	}
	send("before", "during", "during")
	direct(t, up, "X-Event-Id", "during", "{}") // past caddy-dedup, as where only some replicas have it
	direct(t, up, "X-Event-Id", "past it", "{}")
	send("past it")
	once("step 2", "before", "during", "past it")
	// 3: the service answers no duplicates any more.
	mu.Lock()
	service = plain
	mu.Unlock()
	send("before", "during", "past it", "after", "after")
	once("step 4", "before", "during", "past it", "after")
}
