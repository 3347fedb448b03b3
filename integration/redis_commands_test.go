package integration

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

func TestRoundTripsToRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	g := newGate(t)
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		if n.Key == "slow" {
			<-g.opened
		}
		answers201(w, r, n)
	})
	p := start(t, conf{store: storeAt(server.Addr), dedup: "local_copies off", site: lines("dedup", proxyTo(up))})
	copying := start(t, conf{store: storeAt(server.Addr), site: lines("dedup", proxyTo(up))})
	p.post(t, "/", "warm", "") // a process's first request learns the server's clock
	copying.post(t, "/", "warm too", "")
	// Each process listens for what others do, from its first request on.
	eventually(t, "both listen", func() bool {
		n := redisClient(t, server).PubSubNumSub(t.Context(), "dedup:copies").Val()["dedup:copies"]
		return n == 2
	})
	m := startMonitor(t, server)
	// Each flush with a claim asks for the time first, and each flush ends with a WAIT.
	want := func(what string, commands ...string) {
		t.Helper()
		got := m.since(t)
		if fmt.Sprint(got) != fmt.Sprint(commands) {
			t.Errorf("%s cost the commands %v, want %v", what, got, commands)
		}
	}

	first := p.post(t, "/", "k", "")
	want("a first delivery", "time", "set", "wait", "evalsha", "wait")
	wantReplay(t, p.post(t, "/", "k", ""), first)
	want("a duplicate of a kept response", "time", "set", "wait")

	owner := p.postLater("/", "slow", "")
	up.awaitRuns(t, "slow", 1)
	want("a claim", "time", "set", "wait")
	waiters := p.postMany(10, "/", "slow", "")
	p.awaitWaiting(t, 10, waiters...)
	want("ten waiters of a local run")
	g.open()
	allAlike(t, append(replies(t, waiters), owner.reply(t)))
	want("the end of a run with ten local waiters", "evalsha", "wait")

	p.post(t, "/", "", "")
	want("a request without key")

	copied := copying.post(t, "/", "copied", "")
	want("a first delivery with local copies", "time", "set", "wait", "evalsha", "wait")
	wantReplay(t, copying.post(t, "/", "copied", ""), copied)
	want("a duplicate that a local copy answers")
}
