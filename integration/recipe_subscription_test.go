package integration

import (
	"context"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

func message(id string) option { return header("X-Message-Id", id) }

func TestRecipeSubscriptionWindow(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	up := startUpstream(t, answersStatus(202))
	r := readRecipe(t, "subscription-window.md").before(t, up).on(t, server.Addr)
	a, b := r.start(t), r.start(t)

	first := a.post(t, "/subscriptions/orders", "", "m", message("4711"))
	wantFresh(t, first, 202, "run 1 of ")
	told := up.all()[0].Header
	if !uuidV7.MatchString(first.executionID()) || told.Get("Dedup-Execution-Id") != first.executionID() || told.Get("Dedup-Attempt") != "1" {
		t.Errorf("the subscriber was told %v, the broker %q", told, first.executionID())
	}
	for _, p := range []*caddy{a, b} {
		again := p.post(t, "/subscriptions/orders", "", "m", message("4711"))
		wantReplay(t, again, reply{Status: 200, Header: first.Header})
	}
	// Each subscription has its own messages.
	wantFresh(t, b.post(t, "/subscriptions/payments", "", "m", message("4711")), 202, "run 2 of ")
	wantFresh(t, b.post(t, "/subscriptions/orders", "", "m", message("4712")), 202, "run 3 of ")
	wantLives(t, redisClient(t, server), 3, 4*time.Minute, 300*time.Second)

	// The others have not opted in, and no message has to have an ID.
	for n := range 2 {
		for path, id := range map[string]string{"/subscriptions/mail": "4711", "/subscriptions/orders": ""} {
			options := []option{message(id)}
			if id == "" {
				options = nil
			}
			got := a.post(t, path, "", "m", options...)
			if got.Status != 202 || got.replayed() || got.executionID() != "" {
				t.Errorf("push %d to %s got %d %v, want it passed", n, path, got.Status, got.Header)
			}
		}
	}
	if n := len(up.all()); n != 7 {
		t.Errorf("the subscribers ran %d times, want 7", n)
	}
}

func TestRecipeSubscriptionWindowCloses(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	up := startUpstream(t, answersStatus(202))
	r := readRecipe(t, "subscription-window.md").before(t, up).on(t, server.Addr).with(t, "retention 300s", "retention 1s\nlease 1500ms")
	a, b := r.start(t), r.start(t)
	first := a.post(t, "/subscriptions/orders", "", "m", message("4711"))
	// Duplicates do not prolong the window: otherwise this would never end.
	var got reply
	eventually(t, "the message is new again", func() bool {
		got = b.post(t, "/subscriptions/orders", "", "m", message("4711"))
		return !got.replayed()
	})
	wantFresh(t, got, 202, "run 2 of ")
	if got.executionID() == first.executionID() {
		t.Error("the second run has the ID of the first")
	}
	client := redisClient(t, server)
	eventually(t, "the store is empty", func() bool { return client.DBSize(context.Background()).Val() == 0 })
}

func TestRecipeSubscriptionWindowHasOneWinner(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	g := newGate(t)
	up := startUpstream(t, g.before(answersStatus(202)))
	r := readRecipe(t, "subscription-window.md").before(t, up).on(t, server.Addr)
	a, b := r.start(t), r.start(t)
	impatient := r.with(t, "retention 300s", "retention 300s\nin_flight reject").start(t)

	all := append(a.postMany(10, "/subscriptions/orders", "", "m", message("4711")),
		b.postMany(10, "/subscriptions/orders", "", "m", message("4711"))...)
	winner := up.awaitRuns(t, "", 1).Header.Get("Dedup-Execution-Id")
	a.awaitWaiting(t, 9, all...)
	b.awaitWaiting(t, 9, all...)
	refused := impatient.post(t, "/subscriptions/orders", "", "m", message("4711"))
	wantRetryAfter(t, refused)
	if told := wantProblem(t, refused, 503, "request_in_flight"); told.ExecutionID != winner || winner == "" {
		t.Errorf("the refusal names execution %q, the winner is %q", told.ExecutionID, winner)
	}
	g.open()
	got := replies(t, all)
	allAlike(t, got)
	wantAnswer(t, got[0], 202, "run 1 of ")
	if got[0].executionID() != winner {
		t.Errorf("the answers name execution %q, the winner is %q", got[0].executionID(), winner)
	}
	up.wantRuns(t, "", 1)
}

// A subscriber that fails gets the message again.
func TestRecipeSubscriptionWindowFails(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	up := startUpstream(t, inTurn(answersStatus(500), answersStatus(400), answersStatus(202)))
	p := readRecipe(t, "subscription-window.md").before(t, up).on(t, server.Addr).start(t)
	wantFresh(t, p.post(t, "/subscriptions/orders", "", "m", message("1")), 500, "run 1 of ")
	wantFresh(t, p.post(t, "/subscriptions/orders", "", "m", message("1")), 400, "run 2 of ")
	third := p.post(t, "/subscriptions/orders", "", "m", message("1"))
	wantFresh(t, third, 202, "run 3 of ")
	wantReplay(t, p.post(t, "/subscriptions/orders", "", "m", message("1")), reply{Status: 200, Header: third.Header})
}
