package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

func event(id string) option { return header("X-Event-Id", id) }

// goldenTriggerKey is that of the event evt-1 of /triggers/deploy/main, in the page's
// namespace. If it changes, everybody's records are lost with an update.
const goldenTriggerKey = "e90d22880fa6920c0ed9f6984aa6eb8ef14fe9a043900f95b73e6f8468f74a9d"

// triggerService plays a trigger service. It starts a run for each subscription in an event's body,
// through its egress, and if one fails it says so: by its status, or in its answer.
func triggerService(egress string) answering {
	return func(w http.ResponseWriter, r *http.Request, n run) {
		var subscriptions []string
		_ = json.Unmarshal([]byte(n.Body), &subscriptions) // other bodies have none
		for _, name := range subscriptions {
			start, err := http.NewRequest("POST", "http://"+egress+"/", strings.NewReader(fmt.Sprintf(`{"subscription": %q}`, name)))
			if err != nil {
				panic(err)
			}
			start.Header.Set("X-Run-Key", r.Header.Get("X-Run-Key"))
			if answer, err := try(oneShot, start); err != nil || answer.Status != 202 {
				if n.Header.Get("X-Event-Id") == "says so" {
					answersJSON(200, `{"status": "RETRY"}`)(w, r, n)
				} else {
					answersStatus(503)(w, r, n)
				}
				return
			}
		}
		answersStatus(202)(w, r, n)
	}
}

func TestRecipeTriggerDispatch(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := redisClient(t, server)
	egress := []int{freeport.Of(t), freeport.Of(t)}
	runs := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		status := 202
		if strings.Contains(n.Body, "fails") && n.Header.Get("Dedup-Attempt") == "" {
			status = 503
		}
		answersStatus(status)(w, r, n)
	})
	var redisDown sync.Once
	service, reserved := triggerService(fmt.Sprintf("127.0.0.1:%d", egress[0])), make(chan int64, 1)
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		switch n.Header.Get("X-Event-Id") {
		case "evt-1":
			reserved <- client.Exists(t.Context(), recordIn(goldenTriggerKey)).Val()
		case "unlucky":
			fails := false
			redisDown.Do(func() { server.Kill(); fails = true })
			if fails {
				answersStatus(503)(w, r, n)
				return
			}
		}
		service(w, r, n)
	})
	r := readRecipe(t, "trigger-dispatch.md").before(t, up).with(t, "localhost:3001", runs.addr).on(t, server.Addr)
	replica := func(n int) recipe { return r.with(t, "\n:8081 {", fmt.Sprintf("\n:%d {", egress[n])) }
	a, b := replica(0).start(t), replica(1).start(t)
	fire := func(p *caddy, path, id, body string, options ...option) reply {
		return p.post(t, path, "", body, append(options, event(id))...)
	}

	// The claim is in Redis first, and the key is that of the event and its path.
	first := fire(a, "/triggers/deploy/main", "evt-1", "{}")
	if first.Status != 202 || <-reserved != 1 || up.all()[0].Header.Get("X-Run-Key") != goldenTriggerKey {
		t.Errorf("the event got %d with the key %q", first.Status, up.all()[0].Header.Get("X-Run-Key"))
	}
	a, b = replica(0).restart(t, a), replica(1).restart(t, b)
	for _, p := range []*caddy{a, b} {
		wantReplay(t, fire(p, "/triggers/deploy/main", "evt-1", "other", header("Authorization", "x"), host("b.test")), first)
	}
	fresh := func(name string, got reply, protected bool) {
		t.Helper()
		if got.Status != 202 || got.replayed() || got.executionID() != "" != protected {
			t.Errorf("%s got %d %v, want it dispatched, protected: %v", name, got.Status, got.Header, protected)
		}
	}
	fresh("another path", fire(a, "/triggers/deploy", "evt-2", "{}"), true)
	fresh("another query", fire(a, "/triggers/deploy?subscription=2", "evt-2", "{}"), true)
	fresh("a body without ID", a.post(t, "/triggers/deploy", "", `{"b": 1, "a": 2}`), true)
	if again := b.post(t, "/triggers/deploy", "", `{"a":2,"b":1}`); !again.replayed() {
		t.Errorf("the same body got %d %v", again.Status, again.Header)
	}
	for range 2 {
		fresh("an ID that is none", fire(a, "/triggers/deploy", "", "{}"), false)
		fresh("another route", a.post(t, "/other", "", "{}"), false)
	}

	// Only the run that failed is started again.
	for _, id := range []string{"by status", "says so"} {
		before := len(runs.all())
		want := map[string]int{"by status": 503, "says so": 200}[id]
		if got := fire(a, "/triggers/x", id, `["build", "fails", "deploy"]`); got.Status != want || got.replayed() {
			t.Errorf("%s: got %d %q, want %d", id, got.Status, got.Body, want)
		}
		done := fire(b, "/triggers/x", id, `["build", "fails", "deploy"]`)
		fresh(id, done, true)
		wantReplay(t, fire(a, "/triggers/x", id, "[]"), done)
		var started []string
		for _, r := range runs.all()[before:] {
			started = append(started, r.Body)
		}
		if got := strings.Join(started, " "); got != `{"subscription": "build"} {"subscription": "fails"} {"subscription": "fails"} {"subscription": "deploy"}` {
			t.Errorf("%s: the runs started are %s", id, got)
		}
	}

	// Redis goes away between the dispatch and its end.
	if got := fire(a, "/triggers/x", "unlucky", "[]"); got.Status != 503 || got.Header.Get("Retry-After") != "" {
		t.Errorf("the failed dispatch got %d %v, want its own answer", got.Status, got.Header)
	}
	for _, id := range []string{"unlucky", "new"} {
		refused := fire(a, "/triggers/x", id, "[]")
		wantProblem(t, refused, 503, "store_unavailable")
		wantRetryAfter(t, refused)
	}
	server.Restart()
	eventually(t, "the event is dispatched again", func() bool {
		got := fire(a, "/triggers/x", "unlucky", "[]")
		return got.Status == 202 && !got.replayed()
	})
}
