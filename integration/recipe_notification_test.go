package integration

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// notification is the body of a try to deliver one.
func notification(uid, channel string) string {
	return fmt.Sprintf(`{"uid": %q, "channel": %q, "text": "rendered anew, %d"}`, uid, channel, rand.Int())
}

func TestRecipeNotificationDelivery(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	g := newGate(t)
	up := startUpstream(t, g.before(startsRuns))
	r := readRecipe(t, "notification-delivery.md").before(t, up).on(t, server.Addr).with(t, "timeout 20s", "timeout 20s\nlease 1500ms")
	a, b := r.start(t), r.start(t)
	const path = "/notifications"
	deliver := func(p *caddy, uid, fail string) *pending {
		return p.postLater(path, "", notification(uid, "mail"), header("Fail", fail), header("Authorization", fmt.Sprint(rand.Int())))
	}
	want := func(got reply, status int, outcome, attempt string) {
		t.Helper()
		if o, n := got.Header.Get("X-Outcome"), got.Header.Get("X-Attempt"); got.Status != status || o != outcome || n != attempt {
			t.Errorf("the worker got %d, %s as attempt %s; want %d, %s as attempt %s", got.Status, o, n, status, outcome, attempt)
		}
	}

	// Workers at two replicas share one delivery.
	first := deliver(a, "n1", "")
	up.awaitRuns(t, "", 1)
	waiting := []*pending{deliver(a, "n1", ""), deliver(b, "n1", "")}
	a.awaitWaiting(t, 1, waiting...)
	b.awaitWaiting(t, 1, waiting...)
	g.open()
	want(first.reply(t), 201, "executed", "1")
	for _, got := range replies(t, waiting) {
		want(got, 201, "waited", "1")
	}
	want(deliver(b, "n1", "").reply(t), 201, "replayed", "1")
	want(b.post(t, path, "", notification("n1", "phone")), 201, "executed", "1")
	for _, body := range []string{`{"uid": "n1"}`, `{"channel": "mail"}`, `{"uid": null, "channel": "mail"}`, "n1"} {
		wantProblem(t, b.post(t, path, "", body), 400, "idempotency_key_missing")
	}
	up.wantRuns(t, "", 2)

	// Each failure is an attempt, and so is the crash of a replica; the fifth is the last.
	want(deliver(a, "n2", "410").reply(t), 410, "executed", "1")
	crashed := deliver(a, "n2", "hangs")
	up.awaitRuns(t, "", 4)
	a.kill(t)
	<-crashed.done
	a = r.startAs(t, a.conf)
	for n, status := range []int{422, 302, 404} {
		want(deliver(b, "n2", fmt.Sprint(status)).reply(t), status, "executed", fmt.Sprint(3+n))
		wantAttempt(t, up, "", 5+n, fmt.Sprint(3+n))
	}
	for _, p := range []*caddy{a, b} {
		want(deliver(p, "n2", "").reply(t), 404, "replayed", "5")
	}
	for n := range 5 {
		want(deliver(b, "n3", "no answer").reply(t), 502, "executed", fmt.Sprint(1+n))
	}
	exhausted := deliver(a, "n3", "").reply(t)
	wantProblem(t, exhausted, 409, "attempts_exhausted")
	want(exhausted, 409, "exhausted", "5")
	up.wantRuns(t, "", 12)
}
