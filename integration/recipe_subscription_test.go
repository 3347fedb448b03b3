package integration

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// execution is the body of a call that opts in.
func execution(subscription, key string, window int) string {
	return fmt.Sprintf(`{"subscription": %q, "payload": %d, "dedup": {"key": %q, "window_secs": %d}}`, subscription, rand.Int(), key, window)
}

func TestRecipeSubscriptionWindow(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	g := newGate(t)
	up := startUpstream(t, g.before(startsRuns))
	r := readRecipe(t, "subscription-window.md").before(t, up).on(t, server.Addr).with(t, "scope execute\n", "scope execute\nlease 1500ms\n")
	a, b := r.start(t), r.start(t)
	const path = "/api/execute"

	all := []*pending{a.postLater(path, "", execution("orders", "1", 300))}
	up.awaitRuns(t, "", 1)
	waiting := b.postLater(path, "", execution("orders", "1", 300))
	all = append(all, waiting)
	b.awaitWaiting(t, 1, waiting)
	g.open()
	got := replies(t, all)
	allAlike(t, got)
	wantAnswer(t, got[0], 201, `{"id": "run-1", "state": "queued"}`)
	// Whatever the token, the query, the host and the rest of the body.
	for _, p := range []*caddy{a, b} {
		wantAnswer(t, p.post(t, path+"?n=2", "", execution("orders", "1", 60), header("Authorization", "Bearer other"), host("b.test")),
			200, `{"status": "duplicate", "execution_id": "run-1"}`)
	}
	wantLives(t, redisClient(t, server), 1, 4*time.Minute, 300*time.Second)
	for _, status := range []int{500, 404, 302} {
		if got := a.post(t, path, "", execution("orders", "2", 300), header("Fail", fmt.Sprint(status))); got.Status != status {
			t.Errorf("an execution that fails got %d, want %d", got.Status, status)
		}
	}
	executed := func(name string, got reply, protected bool) {
		t.Helper()
		if got.Status != 201 || !strings.Contains(got.Body, "queued") || got.replayed() || got.executionID() != "" != protected {
			t.Errorf("%s got %d %q %v, want it executed, protected: %v", name, got.Status, shorten(got.Body), got.Header, protected)
		}
	}
	executed("the call after failures", b.post(t, path, "", execution("orders", "2", 300)), true)
	executed("another subscription", b.post(t, path, "", execution("payments", "1", 300)), true)
	for range 2 {
		executed("a call without opt-in", a.post(t, path, "", `{"subscription": "orders"}`), false)
		executed("a call without subscription", a.post(t, path, "", `{"dedup": {"key": "1"}}`), false)
		executed("a large call", a.post(t, path, "", `{"payload": "`+strings.Repeat("x", 9<<20)+`"}`), false)
		executed("another route", a.post(t, "/api/other", "", execution("orders", "1", 300)), false)
	}

	// A window closes; duplicates do not prolong it.
	a.post(t, path, "", execution("orders", "short", 1))
	eventually(t, "the key is new again", func() bool {
		return b.post(t, path, "", execution("orders", "short", 1)).Status == 201
	})
	// A replica that crashes has opened none.
	n := len(up.all())
	a.postLater(path, "", execution("orders", "crash", 300), header("Fail", "hangs"))
	up.awaitRuns(t, "", n+1)
	a.kill(t)
	executed("the call after a crash", b.post(t, path, "", execution("orders", "crash", 300)), true)
}
