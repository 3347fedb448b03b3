package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// execution is the body of a call: of a subscription ("" for none named), with a key (""
// if it does not opt in) and a window in seconds.
func execution(subscription, key string, window int) string {
	call := map[string]any{"payload": rand.Int()}
	if subscription != "" {
		call["subscription"] = subscription
	}
	if key != "" {
		call["dedup"] = map[string]any{"key": key, "window_secs": window}
	}
	body, err := json.Marshal(call)
	if err != nil {
		panic(err)
	}
	return string(body)
}

// executes plays the service: it answers with the ID of the execution.
func executes(w http.ResponseWriter, r *http.Request, n run) {
	answersJSON(http.StatusAccepted, `{"execution_id": "ex-%d"}`, n.N)(w, r, n)
}

const executePath = "/api/execute"

func TestRecipeSubscriptionWindow(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	up := startUpstream(t, executes)
	r := readRecipe(t, "subscription-window.md").before(t, up).on(t, server.Addr)
	a, b := r.start(t), r.start(t)

	first := a.post(t, executePath, "", execution("orders", "4711", 300), host("a.test"))
	wantFresh(t, first, 202, `{"execution_id": "ex-1"}`)
	told := up.all()[0].Header
	if !uuidV7.MatchString(first.executionID()) || told.Get("Dedup-Execution-Id") != first.executionID() || told.Get("Dedup-Attempt") != "" {
		t.Errorf("the service was told %v, the caller %q", told, first.executionID())
	}
	// Whatever else is in the body, and at whichever replica.
	for _, p := range []*caddy{a, b} {
		wantReplay(t, p.post(t, executePath, "", execution("orders", "4711", 300), host("b.test")), first)
	}
	// Each subscription has its own keys, wherever it is named.
	for n, got := range []reply{
		b.post(t, executePath, "", execution("payments", "4711", 300)),
		b.post(t, executePath, "", execution("", "4711", 300)),
		b.post(t, executePath, "", execution("", "4711", 300), header("X-Subscription-Id", "orders")),
		b.post(t, executePath, "", execution("orders", "4712", 300)),
		b.post(t, executePath, "", execution("orders", "4711", 300), header("Authorization", "Bearer other")),
		b.post(t, executePath+"?subscription=orders", "", execution("", "4711", 300)),
	} {
		wantFresh(t, got, 202, fmt.Sprintf(`{"execution_id": "ex-%d"}`, n+2))
	}
	wantLives(t, redisClient(t, server), 7, 4*time.Minute, 300*time.Second)

	// The others have not opted in.
	for n := range 2 {
		for path, body := range map[string]string{executePath: execution("orders", "", 0), "/api/other": execution("orders", "4711", 300), executePath + "?": "no JSON"} {
			got := a.post(t, path, "", body)
			if got.Status != 202 || got.replayed() || got.executionID() != "" {
				t.Errorf("call %d to %s got %d %v, want it passed", n, path, got.Status, got.Header)
			}
		}
	}
	if n := len(up.all()); n != 13 {
		t.Errorf("the service executed %d calls, want 13", n)
	}
}

func TestRecipeSubscriptionWindowCloses(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	up := startUpstream(t, executes)
	r := readRecipe(t, "subscription-window.md").before(t, up).on(t, server.Addr).with(t, "retention 300s", "retention 300s\nlease 1500ms")
	a, b := r.start(t), r.start(t)
	first := a.post(t, executePath, "", execution("orders", "4711", 1))
	// Duplicates do not prolong the window: otherwise this would never end.
	var got reply
	eventually(t, "the key is new again", func() bool {
		got = b.post(t, executePath, "", execution("orders", "4711", 1))
		return !got.replayed()
	})
	wantFresh(t, got, 202, `{"execution_id": "ex-2"}`)
	if got.executionID() == first.executionID() {
		t.Error("the second run has the ID of the first")
	}
	client := redisClient(t, server)
	eventually(t, "the store is empty", func() bool { return client.DBSize(context.Background()).Val() == 0 })
}

// The window is what the call asks for, within bounds; one that makes no sense is the
// page's.
func TestRecipeSubscriptionWindowIsBounded(t *testing.T) {
	t.Parallel()
	for asked, want := range map[string]time.Duration{
		"60": time.Minute, `"60"`: time.Minute, "86400": day, "864000": day, "-1": 300 * time.Second, `"soon"`: 300 * time.Second, "null": 300 * time.Second,
	} {
		t.Run(asked, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			up := startUpstream(t, executes)
			p := readRecipe(t, "subscription-window.md").before(t, up).on(t, server.Addr).start(t)
			body := fmt.Sprintf(`{"subscription": "orders", "dedup": {"key": "4711", "window_secs": %s}}`, asked)
			wantFresh(t, p.post(t, executePath, "", body), 202, `{"execution_id": "ex-1"}`)
			wantLives(t, redisClient(t, server), 1, want-30*time.Second, want)
		})
	}
}

func TestRecipeSubscriptionWindowHasOneWinner(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	g := newGate(t)
	up := startUpstream(t, g.before(executes))
	r := readRecipe(t, "subscription-window.md").before(t, up).on(t, server.Addr)
	a, b := r.start(t), r.start(t)
	impatient := r.with(t, "retention 300s", "retention 300s\nwait off").start(t)

	body := execution("orders", "4711", 300)
	all := append(a.postMany(10, executePath, "", body), b.postMany(10, executePath, "", body)...)
	winner := up.awaitRuns(t, "", 1).Header.Get("Dedup-Execution-Id")
	a.awaitWaiting(t, 9, all...)
	b.awaitWaiting(t, 9, all...)
	refused := impatient.post(t, executePath, "", body)
	wantRetryAfter(t, refused)
	if told := wantProblem(t, refused, 409, "request_in_flight"); told.ExecutionID != winner || winner == "" {
		t.Errorf("the refusal names execution %q, the winner is %q", told.ExecutionID, winner)
	}
	g.open()
	got := replies(t, all)
	allAlike(t, got)
	wantAnswer(t, got[0], 202, `{"execution_id": "ex-1"}`)
	if got[0].executionID() != winner {
		t.Errorf("the answers name execution %q, the winner is %q", got[0].executionID(), winner)
	}
	up.wantRuns(t, "", 1)
}

// An execution that failed opens no window.
func TestRecipeSubscriptionWindowFails(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	up := startUpstream(t, inTurn(answersStatus(500), answersStatus(400), executes))
	p := readRecipe(t, "subscription-window.md").before(t, up).on(t, server.Addr).start(t)
	body := execution("orders", "1", 300)
	wantFresh(t, p.post(t, executePath, "", body), 500, "run 1 of ")
	wantFresh(t, p.post(t, executePath, "", body), 400, "run 2 of ")
	third := p.post(t, executePath, "", body)
	wantFresh(t, third, 202, `{"execution_id": "ex-3"}`)
	wantReplay(t, p.post(t, executePath, "", body), third)
}
