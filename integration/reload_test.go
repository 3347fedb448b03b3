package integration

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

func TestReloadWithARunInFlight(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store string) {
		g := newGate(t)
		up := startUpstream(t, g.before(answers201))
		p := start(t, conf{store: store, site: lines(`header X-Configuration 1`, "dedup", proxyTo(up))})

		first := p.postLater("/", "k", "body")
		up.awaitRuns(t, "k", 1)
		oldWaiter := p.postLater("/", "k", "body")
		p.awaitWaiting(t, 1, oldWaiter)
		p.reload(t, lines(`header X-Configuration 2`, "dedup", proxyTo(up)))
		newWaiter := p.postLater("/", "k", "body")
		p.awaitWaiting(t, 2, oldWaiter, newWaiter)
		g.open()

		got := first.reply(t)
		wantFresh(t, got, 201, "run 1 of k")
		wantReplay(t, oldWaiter.reply(t), got)
		across := newWaiter.reply(t)
		wantReplay(t, across, got)
		if across.Header.Get("X-Configuration") != "2" {
			t.Errorf("the duplicate was served by configuration %q, want 2", across.Header.Get("X-Configuration"))
		}
		wantReplay(t, p.post(t, "/", "k", "body"), got)
		up.wantRuns(t, "k", 1)

		// The store lives on with the last configuration that uses it.
		p.reload(t, lines(`header X-Configuration 3`, "dedup", proxyTo(up)))
		wantReplay(t, p.post(t, "/", "k", "body"), got)
	})
}

func TestRunEndsAfterDedupWasConfiguredAway(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store string) {
		if store == "store memory" {
			t.Skip("its records go with the last configuration that uses it")
		}
		g := newGate(t)
		up := startUpstream(t, g.before(answers201))
		with := lines("dedup", proxyTo(up))
		p := start(t, conf{store: store, site: with})
		first := p.postLater("/", "k", "body")
		up.awaitRuns(t, "k", 1)
		p.reload(t, proxyTo(up))
		g.open()
		got := first.reply(t)
		wantFresh(t, got, 201, "run 1 of k")
		p.reload(t, with)
		wantReplay(t, p.post(t, "/", "k", "body"), got)
		up.wantRuns(t, "k", 1)
	})
}

func TestGracefulStopWithARunInFlight(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"client stays", "HTTP2 client leaves"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, store := range []string{"file", "redis"} {
				t.Run(store, func(t *testing.T) {
					t.Parallel()
					lines := "store file"
					if store == "redis" {
						lines = redisStore(t)
					}
					stopWithARunInFlight(t, lines, name == "client stays")
				})
			}
		})
	}
}

func stopWithARunInFlight(t *testing.T, store string, stays bool) {
	g := newGate(t)
	up := startUpstream(t, g.before(answers201))
	c := conf{store: store, global: h2c, site: lines("dedup", proxyTo(up))}
	p := start(t, c)

	client, hangUp := oneShot, func() {}
	if !stays {
		client, hangUp = hangingUp(unencryptedHTTP2())
	}
	first := sendLater(client, p.newPost("/", "k", "body"))
	begun := up.awaitRuns(t, "k", 1)
	if !stays {
		hangUp()
		<-first.done
	}
	p.terminate(t)
	p.awaitLog(t, "that it shuts down", func(e entry) bool { return e.text("msg") == "shutting down apps, then terminating" })
	select {
	case <-p.exited:
		t.Fatal("the process ended with a run in flight")
	case <-time.After(longEnough):
	}
	g.open()
	if stays {
		wantFresh(t, first.reply(t), 201, "run 1 of k")
	}
	if code := p.awaitExit(t); code != 0 {
		t.Errorf("the process ended with %d", code)
	}

	c.dir = p.conf.dir
	q := start(t, c)
	got := q.post(t, "/", "k", "body")
	wantReplay(t, got, reply{Status: 201, Body: "run 1 of k", Header: http.Header{
		"Dedup-Execution-Id": begun.Header["Dedup-Execution-Id"]}})
	up.wantRuns(t, "k", 1)
}

// Runs that the grace period cuts off are settled at the exit: no retry waits for a lease.
func TestRunsCutOffAtExitAreSettled(t *testing.T) {
	t.Parallel()
	streams := func(w http.ResponseWriter, r *http.Request, n run) {
		_, _ = io.WriteString(w, "the first bytes")
		_ = http.NewResponseController(w).Flush()
		untilGone(w, r, n)
	}
	for name, c := range map[string]struct {
		store, unknown string
		first          answering
		replaced       bool // dedup is configured away before the exit
	}{
		"file, release":             {"store file", "release", untilGone, false},
		"file, hold":                {"store file", "hold", untilGone, false},
		"redis, hold, streaming":    {redisStore(t), "hold", streams, false},
		"redis, release, streaming": {redisStore(t), "release", streams, false},
		"redis, release, replaced":  {redisStore(t), "release", untilGone, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := startUpstream(t, inTurn(c.first, answers201))
			with := lines(dedupBlock("lease 10m", "wait off", "on_unknown "+c.unknown), proxyTo(up))
			conf := conf{store: c.store, global: "grace_period 1s", site: with}
			p := start(t, conf)
			p.postLater("/", "k", "body")
			up.awaitRuns(t, "k", 1)
			if c.replaced {
				p.reload(t, proxyTo(up))
			}
			p.terminate(t)
			if code := p.awaitExit(t); code != 0 {
				t.Errorf("the process ended with %d", code)
			}
			conf.dir = p.conf.dir
			got := start(t, conf).post(t, "/", "k", "body")
			if c.unknown == "hold" {
				wantProblem(t, got, 409, "outcome_unknown")
			} else {
				wantFresh(t, got, 201, "run 2 of k")
			}
		})
	}
}

// hangingUp returns the client with a function that closes its connection: a
// server that stops waits for an open one, and would hide that nobody waits for
// the run.
func hangingUp(client *http.Client) (*http.Client, func()) {
	conns := make(chan net.Conn, 1)
	client.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err == nil {
			conns <- conn
		}
		return conn, err
	}
	return client, func() { (<-conns).Close() }
}

// A store that hangs must not keep a process from stopping when nothing runs.
func TestStopsWhileTheStoreHangs(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	up := startUpstream(t, answers201)
	p := start(t, conf{store: storeAt(server.Addr), site: lines("dedup", proxyTo(up))})
	wantFresh(t, p.post(t, "/", "first", ""), 201, "run 1 of first")
	server.Pause()
	wantProblem(t, p.post(t, "/", "k", ""), 503, "store_unavailable")
	p.terminate(t)
	if code := p.awaitExit(t); code != 0 {
		t.Errorf("it ended with %d", code)
	}
	server.Resume()
	up.wantRuns(t, "k", 0)
}
