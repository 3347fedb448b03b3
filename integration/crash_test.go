package integration

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

func TestKilledOwnerIsTakenOverOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	up := startUpstream(t, inTurn(untilGone, answers201))
	// A waiter waits longer than the lease, and not twice as long: who is not
	// served within one lease is refused.
	c := conf{store: storeAt(server.Addr), site: lines(dedupBlock("lease 2s", "wait 4s"), proxyTo(up))}
	a, b := start(t, c), start(t, c)

	first := a.postLater("/", "k", "body")
	up.awaitRuns(t, "k", 1)
	a.kill(t)
	if <-first.done; first.err == nil {
		t.Fatalf("the killed process answered %d", first.got.Status)
	}
	all := b.postMany(20, "/", "k", "body")
	c2 := start(t, c)
	all = append(all, c2.postMany(20, "/", "k", "body")...)
	got := replies(t, all)
	allAlike(t, got)
	wantAnswer(t, got[0], 201, "run 2 of k")
	up.wantRuns(t, "k", 2)
	wantAttempt(t, up, "k", 2, "2")

	takenOver := func(p *caddy) int {
		return len(p.log.find(func(e entry) bool {
			return strings.HasPrefix(e.text("logger"), "dedup") && strings.Contains(e.text("msg"), "took over") &&
				e.text("execution_id") == got[0].executionID()
		}))
	}
	eventually(t, "a takeover is logged", func() bool { return takenOver(b)+takenOver(c2) > 0 })
	if n := takenOver(b) + takenOver(c2); n != 1 {
		t.Errorf("%d takeovers are logged, want 1", n)
	}
}

func TestKilledOwnerIsHeld(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	up := startUpstream(t, inTurn(untilGone, answers201))
	c := conf{store: storeAt(server.Addr), site: lines(dedupBlock("lease 1500ms", "on_unknown hold"), proxyTo(up))}
	a := start(t, c)
	c.site = lines(dedupBlock("lease 1500ms"), proxyTo(up)) // the claim's own choice counts, and not that of the one that finds it
	b := start(t, c)

	first := a.postLater("/", "k", "body")
	begun := up.awaitRuns(t, "k", 1)
	a.kill(t)
	<-first.done
	for range 2 {
		held := wantProblem(t, b.post(t, "/", "k", "body"), 409, "outcome_unknown")
		if held.ExecutionID != begun.Header.Get("Dedup-Execution-Id") {
			t.Errorf("the refusal names execution %q, want %q", held.ExecutionID, begun.Header.Get("Dedup-Execution-Id"))
		}
	}
	up.wantRuns(t, "k", 1)
}

func TestPausedOwnersLateResponseIsNotStored(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	first, next := newGate(t), newGate(t)
	up := startUpstream(t, inTurn(first.before(answers201), next.before(answers201)))
	c := conf{store: storeAt(server.Addr), site: lines(dedupBlock("lease 1500ms"), proxyTo(up))}
	a, b := start(t, c), start(t, c)

	late := a.postLater("/", "k", "body")
	up.awaitRuns(t, "k", 1)
	a.pause(t)
	takenOver := b.postLater("/", "k", "body")
	up.awaitRuns(t, "k", 2)

	// The late one ends while the one that took over runs.
	first.open()
	a.resume(t)
	<-late.done
	if late.err != nil || late.got.Status != 201 {
		t.Errorf("the late client got %d, %v; want an answer", late.got.Status, late.err)
	}
	a.awaitLog(t, "that the late response is not stored", func(e entry) bool {
		return strings.HasPrefix(e.text("logger"), "dedup") && e.text("level") == "warn" && strings.Contains(e.text("msg"), "response is not stored")
	})
	next.open()
	second := takenOver.reply(t)
	wantFresh(t, second, 201, "run 2 of k")
	wantAttempt(t, up, "k", 2, "2")
	for _, p := range []*caddy{a, b, a} {
		wantReplay(t, p.post(t, "/", "k", "body"), second)
	}
	up.wantRuns(t, "k", 2)
}

func TestFileStoreSurvivesKill(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		if strings.HasPrefix(n.Key, "cut") && n.N == 1 {
			untilGone(w, r, n)
			return
		}
		answers201(w, r, n)
	})
	c := conf{store: "store file", site: lines(
		"handle /hold {", dedupBlock("on_unknown hold", "wait off"), proxyTo(up), "}",
		"handle {", dedupBlock("wait off"), proxyTo(up), "}")}
	p := start(t, c)
	const kept = 20
	var firsts []reply
	for n := range kept {
		firsts = append(firsts, p.post(t, "/", strconv.Itoa(n), "body"))
	}
	p.postLater("/", "cut", "body")
	p.postLater("/hold", "cut and held", "body")
	up.awaitRuns(t, "cut", 1)
	up.awaitRuns(t, "cut and held", 1)
	p.kill(t)

	c.dir = p.conf.dir
	q := start(t, c)
	for n, first := range firsts {
		wantReplay(t, q.post(t, "/", strconv.Itoa(n), "body"), first)
		up.wantRuns(t, strconv.Itoa(n), 1)
	}
	// Nobody waits for the leases of the process that was killed.
	wantFresh(t, q.post(t, "/", "cut", "body"), 201, "run 2 of cut")
	up.wantRuns(t, "cut", 2)
	wantProblem(t, q.post(t, "/hold", "cut and held", "body"), 409, "outcome_unknown")
	up.wantRuns(t, "cut and held", 1)
}
