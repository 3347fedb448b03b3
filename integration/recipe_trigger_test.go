package integration

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

func event(id string) option { return header("X-Event-Id", id) }

func TestRecipeTriggerDispatchReservesFirst(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := redisClient(t, server)
	reserved := make(chan int64, 10)
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		reserved <- client.Exists(context.Background(), recordIn(goldenTriggerKey)).Val()
		answersStatus(202)(w, r, n)
	})
	r := readRecipe(t, "trigger-dispatch.md").before(t, up).on(t, server.Addr)
	a, b := r.start(t), r.start(t)

	fire := func(p *caddy, path, body string, options ...option) reply {
		return p.post(t, path, "", body, append(options, host("triggers.test:8080"))...)
	}
	first := fire(a, "/triggers/deploy/main", "{}", event("evt-1"))
	wantFresh(t, first, 202, "run 1 of ")
	if n := <-reserved; n != 1 {
		t.Error("the dispatch began before the event was reserved under its key")
	}
	wantReplay(t, fire(b, "/triggers/deploy/main", "{}", event("evt-1")), first)
	// Nothing but the ID counts, and nothing but the event and its subscription: not the
	// body, the caller, or the name of the replica.
	wantReplay(t, b.post(t, "/triggers/deploy/main", "", "other", event("evt-1"), header("Authorization", "x"), host("replica-b.test")), first)
	a, b = r.restart(t, a), r.restart(t, b)
	wantReplay(t, fire(b, "/triggers/deploy/main", "{}", event("evt-1")), first)
	wantReplay(t, fire(a, "/triggers/deploy/main", "{}", event(`"evt-1"`)), first)
	up.wantRuns(t, "", 1)
}

// goldenTriggerKey is that of the event evt-1 of /triggers/deploy/main, in the page's
// namespace. If it changes, everybody's records are
// lost with an update.
const goldenTriggerKey = "e90d22880fa6920c0ed9f6984aa6eb8ef14fe9a043900f95b73e6f8468f74a9d"

// The service that starts the run gets a key that is the same for each attempt, on each
// replica.
func TestRecipeTriggerDispatchHandsTheKeyOn(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	up := startUpstream(t, answersStatus(503))
	r := readRecipe(t, "trigger-dispatch.md").before(t, up).on(t, server.Addr)
	for n, p := range []*caddy{r.start(t), r.start(t)} {
		got := p.post(t, "/triggers/deploy/main", "", "{}", event("evt-1"), host(fmt.Sprintf("replica-%d.test", n)))
		wantFresh(t, got, 503, fmt.Sprintf("run %d of ", n+1))
		if key := up.all()[n].Header.Get("X-Run-Key"); key != goldenTriggerKey {
			t.Errorf("the run was started with the key %q, want %q", key, goldenTriggerKey)
		}
	}
}

func TestRecipeTriggerDispatchKeysNeverMeet(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	up := startUpstream(t, answersStatus(202))
	r := readRecipe(t, "trigger-dispatch.md").before(t, up).on(t, server.Addr)
	p, q := r.start(t), r.with(t, "namespace triggers", "namespace trigger").start(t)
	different := []*http.Request{
		p.newPost("/triggers/a", "", "x", event("bc")),
		p.newPost("/triggers/ab", "", "x", event("c")),
		p.newPost("/triggers/a/b", "", "x", event("c")),
		p.newPost("/triggers/a%2Fb", "", "x", event("c")),
		p.newPost("/triggers/a?subscription=1", "", "x", event("bc")),
		p.newPost("/triggers/a?subscription=2", "", "x", event("bc")),
		p.newPost("/triggers/a", "", "x", event("BC")),
		p.newPost("/triggers/a", "", "bc"),
		p.newPost("/triggers/a", "", "x"),
		q.newPost("/triggers/a", "", "x", event("bc")),
	}
	for n, request := range different {
		got, err := try(oneShot, request)
		if err != nil || got.Status != 202 || got.replayed() || got.executionID() == "" {
			t.Errorf("event %d: got %d, replayed: %v, %v; want it dispatched", n+1, got.Status, got.replayed(), err)
		}
	}
	wantLives(t, redisClient(t, server), len(different), 7*day-time.Minute, 7*day)
}

// A sender without event IDs is known by its bodies.
func TestRecipeTriggerDispatchByContent(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	up := startUpstream(t, answersStatus(202))
	p := readRecipe(t, "trigger-dispatch.md").before(t, up).on(t, server.Addr).start(t)
	for n, same := range [][]string{
		{`{"b": 1, "a": "ü"}`, `{"a":"\u00fc","b":1}`, "\n{ \"b\":1,\"a\":\"ü\" }"},
		{`{"b": 2, "a": "ü"}`, `{"a":"ü","b":2}`},
		{"b=1&a=2", "b=1&a=2"},
		{"a=2&b=1"},
	} {
		first := p.post(t, "/triggers/plain", "", same[0])
		if first.Status != 202 || first.replayed() {
			t.Fatalf("%q: got %d, replayed: %v; want it dispatched", same[0], first.Status, first.replayed())
		}
		for _, body := range same {
			wantReplay(t, p.post(t, "/triggers/plain", "", body), first)
		}
		// With an ID the same body is another event.
		if got := p.post(t, "/triggers/plain", "", same[0], event(fmt.Sprint(n))); got.Status != 202 || got.replayed() {
			t.Errorf("%q with an ID: got %d, replayed: %v", same[0], got.Status, got.replayed())
		}
	}
	// An ID that is none is not the body's affair: the event passes.
	for range 2 {
		for _, id := range []string{"", "café", strings.Repeat("x", 300)} {
			if got := p.post(t, "/triggers/plain", "", `{"n": 1}`, event(id)); got.Status != 202 || got.executionID() != "" {
				t.Errorf("the event ID %q got %d %v, want it passed", id, got.Status, got.Header)
			}
		}
	}
	// An empty body says nothing about the event.
	for range 2 {
		if got := p.post(t, "/triggers/plain", "", ""); got.Status != 202 || got.executionID() != "" {
			t.Errorf("an empty event got %d %v, want it passed", got.Status, got.Header)
		}
	}
}

func TestRecipeTriggerDispatchIsRolledBack(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	up := startUpstream(t, inTurn(answersStatus(500), answersStatus(409), noAnswer, answersStatus(202)))
	r := readRecipe(t, "trigger-dispatch.md").before(t, up).on(t, server.Addr)
	a, b := r.start(t), r.start(t)
	wantFresh(t, a.post(t, "/triggers/x", "", "{}", event("1")), 500, "run 1 of ")
	wantFresh(t, b.post(t, "/triggers/x", "", "{}", event("1")), 409, "run 2 of ")
	if got := a.post(t, "/triggers/x", "", "{}", event("1")); got.Status != 502 {
		t.Errorf("a dispatch without an answer got %d", got.Status)
	}
	done := b.post(t, "/triggers/x", "", "{}", event("1"))
	wantFresh(t, done, 202, "run 4 of ")
	wantAttempt(t, up, "", 4, "4")
	wantReplay(t, a.post(t, "/triggers/x", "", "{}", event("1")), done)
}

// Redis goes away between the dispatcher's answer and the rollback.
func TestRecipeTriggerDispatchRollbackFails(t *testing.T) {
	t.Parallel()
	ways := map[string]struct{ away, back func(*redistest.Server) }{
		"killed": {(*redistest.Server).Kill, (*redistest.Server).Restart},
		"hung":   {(*redistest.Server).Pause, (*redistest.Server).Resume},
	}
	for name, way := range ways {
		for _, status := range []int{500, 503, 404} {
			t.Run(fmt.Sprint(name, " ", status), func(t *testing.T) {
				t.Parallel()
				server := redistest.Start(t)
				up := startUpstream(t, inTurn(func(w http.ResponseWriter, r *http.Request, n run) {
					way.away(server)
					w.Header().Set("X-Dispatcher", "full")
					answersStatus(status)(w, r, n)
				}, answersStatus(202)))
				p := readRecipe(t, "trigger-dispatch.md").before(t, up).on(t, server.Addr).start(t)
				failed := p.post(t, "/triggers/x", "", "{}", event("1"))
				wantFresh(t, failed, status, "run 1 of ")
				if failed.Header.Get("X-Dispatcher") != "full" || failed.Header.Get("Content-Type") == "application/problem+json" {
					t.Errorf("the sender got %v, want the dispatcher's own header", failed.Header)
				}
				refused := p.post(t, "/triggers/x", "", "{}", event("1"))
				wantProblem(t, refused, 503, "store_unavailable")
				wantRetryAfter(t, refused)
				way.back(server)
				// Until the release is made up for, the store has the run in flight:
				// who comes meanwhile waits for its end, and gets its answer.
				var got reply
				eventually(t, "the event is dispatched again", func() bool {
					got = p.post(t, "/triggers/x", "", "{}", event("1"))
					return got.Header.Get("Retry-After") == "" && !got.replayed()
				})
				wantFresh(t, got, 202, "run 2 of ")
				up.wantRuns(t, "", 2)
			})
		}
	}
}

func TestRecipeTriggerDispatchRetentions(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := redisClient(t, server)
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		if asked := n.Header.Get("X-Asked"); asked != "" {
			w.Header().Set("Dedup-Retention", asked)
		}
		answersStatus(202)(w, r, n)
	})
	p := readRecipe(t, "trigger-dispatch.md").before(t, up).on(t, server.Addr).start(t)
	known := make(map[string]bool)
	for _, c := range []struct {
		path, asked string
		most        time.Duration
	}{
		{"/triggers/deploy", "", 7 * day},
		{"/triggers/hourly/report", "", 2 * time.Hour},
		{"/triggers/deploy", "60", time.Minute},
		{"/triggers/hourly/report", "86400", day},
	} {
		got := p.post(t, c.path, "", "{}", event("evt"+c.asked), header("X-Asked", c.asked))
		if got.Status != 202 || got.Header.Get("Dedup-Retention") != "" {
			t.Errorf("%s asking for %q got %d %v", c.path, c.asked, got.Status, got.Header)
		}
		for key, life := range lives(t, client) {
			if !known[key] && (life > c.most || life < c.most-30*time.Second) {
				t.Errorf("%s asking for %q is kept for %s, want %s", c.path, c.asked, life, c.most)
			}
			known[key] = true
		}
	}
	if len(known) != 4 {
		t.Errorf("Redis has the keys %v, want 4", known)
	}
}

// Whatever answers in the place of Redis: nothing is dispatched, nothing is taken
// for a duplicate, and nobody waits for the store's time limit, which is set
// here beyond the patience of the client.
func TestRecipeTriggerDispatchWithAnAnswerOfNoStore(t *testing.T) {
	t.Parallel()
	const unavailable, unreadable = "store_unavailable", "record_unreadable"
	for name, c := range map[string]struct {
		answer  string
		manners bool
		codes   []string
	}{
		"another protocol":         {"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", false, []string{unavailable}},
		"noise":                    {"\x00\xff\xfe\x16\x03\x01\r\n\r\n", false, []string{unavailable}},
		"an error":                 {"-ERR broken\r\n", true, []string{unavailable}},
		"an OK":                    {"+OK\r\n", true, []string{unreadable}},
		"a number":                 {":1\r\n", true, []string{unreadable}},
		"nothing":                  {"$-1\r\n", true, []string{unreadable, unavailable}},
		"an empty list":            {"*0\r\n", true, []string{unreadable}},
		"a word":                   {"*1\r\n$5\r\nfound\r\n", true, []string{unreadable}},
		"found, and no record":     {"*2\r\n$5\r\nfound\r\n:1\r\n", true, []string{unreadable}},
		"found, and a strange one": {"*8\r\n$5\r\nfound\r\n:1\r\n$1\r\nr\r\n$1\r\nt\r\n$1\r\n0\r\n$1\r\n1\r\n$1\r\n9\r\n$1\r\nb\r\n", true, []string{unreadable}},
		"claimed, without a lease": {"*2\r\n$7\r\nclaimed\r\n:1\r\n", true, []string{unreadable}},
		"another word":             {"*2\r\n$8\r\nreplayed\r\n:1\r\n", true, []string{unreadable}},
		"a number without an end":  {"*2\r\n$7\r\nclaimed\r\n:x\r\n", true, []string{unavailable}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := startUpstream(t, answersStatus(202))
			p := readRecipe(t, "trigger-dispatch.md").before(t, up).on(t, startFakeRedis(t, c.answer, c.manners)).
				with(t, "store redis ", "store redis {\ntimeout 5m\naddress ", "redis://", "", "\n\t}\n}\n\n(", "\n}\n\t}\n}\n\n(",
					"mode webhook", "mode webhook\nlease 15m").start(t)
			for range 2 {
				got := p.post(t, "/triggers/x", "", "{}", event("1"))
				var code string
				for _, code = range c.codes {
					if strings.Contains(got.Body, code) {
						break
					}
				}
				wantProblem(t, got, 503, code)
				wantRetryAfter(t, got)
			}
			if n := len(up.all()); n != 0 {
				t.Errorf("%d events were dispatched", n)
			}
		})
	}
}

// A key that somebody else has written is not taken for a duplicate either.
func TestRecipeTriggerDispatchWithAForeignKey(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := redisClient(t, server)
	up := startUpstream(t, answersStatus(202))
	p := readRecipe(t, "trigger-dispatch.md").before(t, up).on(t, server.Addr).with(t, "store redis ", "local_copies off\n\t\tstore redis ").start(t)
	p.post(t, "/triggers/x", "", "{}", event("1"))
	for key := range lives(t, client) {
		if err := client.Set(context.Background(), key, "1", 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	got := p.post(t, "/triggers/x", "", "{}", event("1"))
	wantProblem(t, got, 503, "record_unreadable")
	wantRetryAfter(t, got)
	up.wantRuns(t, "", 1)
}

// The key of a page's event, as Redis has it, is the same in every version.
func TestRecipeTriggerDispatchKeyIsStable(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	up := startUpstream(t, answersStatus(202))
	p := readRecipe(t, "trigger-dispatch.md").before(t, up).on(t, server.Addr).start(t)
	p.post(t, "/triggers/deploy/main", "", "{}", event("evt-1"), host("Triggers.Test:8080"))
	var keys []string
	for key := range lives(t, redisClient(t, server)) {
		keys = append(keys, key)
	}
	if !slices.Equal(keys, []string{recordIn(goldenTriggerKey)}) {
		t.Errorf("Redis has the keys %q, want %s", keys, recordIn(goldenTriggerKey))
	}
}
