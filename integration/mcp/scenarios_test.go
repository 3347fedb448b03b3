package mcp

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

const (
	legacy = "2025-11-25"
	modern = "2026-07-28"
)

// suite is a client before its SDK's server.
type suite struct {
	*client
	*relay                // between the client and the replicas
	replica, other *front // the client is connected to the first one
	server         *relay // before the server
	work           *payments
	// What the SDK does in front of such a server: it says by a message that it cancels a call; the server has
	// sessions, can ask, and answers by streams, which the client resumes.
	saysCancelled, hasSession, asks, streams bool
}

// on says what the payments of a test's key come to, and returns the key.
func (s *suite) on(t *testing.T, does script) (key string) {
	key = strings.ReplaceAll(t.Name(), "/", ".")
	s.work.on(key, does)
	return key
}

func (s *suite) wantRuns(t *testing.T, key string, n int) {
	t.Helper()
	if got := s.work.runs(key); got != n {
		t.Errorf("the tool ran %d times, want %d", got, n)
	}
}

// want fails unless it is the result of a run, replayed or not.
func want(t *testing.T, got answer, run int, replayed bool) {
	t.Helper()
	if got.run() != run || got.replayed() != replayed || got.Result.IsError {
		t.Errorf("got %v, want run %d, replayed: %t", got, run, replayed)
	}
}

func TestClients(t *testing.T) {
	need(t, "node")
	need(t, "npm")
	program, packages, work, store := buildBinary(t), installPackages(t), startPayments(t), startRedis(t)
	behind, servers := make(map[string]*relay), make(map[string]string)
	for name, address := range map[string]string{
		"v1": startServer(t, packages, "v1_server.mjs", work.url),
		"v2": startServer(t, packages, "v2_server.mjs", work.url),
		"go": startGoServer(t, work.url),
	} {
		behind[name] = startRelay(t, address)
		servers[name] = behind[name].addr()
	}
	replicas := []*front{startFront(t, program, "redis "+store, servers), startFront(t, program, "redis "+store, servers)}
	for _, c := range []struct {
		name, sdk string
		connect   func(t *testing.T, url string) *client
		modern    bool
	}{
		{"v1", "v1", func(t *testing.T, url string) *client { return startClient(t, packages, "v1_client.mjs", url) }, false},
		{"v2/legacy", "v2", func(t *testing.T, url string) *client { return startClient(t, packages, "v2_client.mjs", url) }, false},
		{"v2", "v2", func(t *testing.T, url string) *client { return startClient(t, packages, "v2_client.mjs", url, modern) }, true},
		{"go/legacy", "go", func(t *testing.T, url string) *client { return connectGo(t, url, legacy) }, false},
		{"go", "go", func(t *testing.T, url string) *client { return connectGo(t, url, modern) }, true},
	} {
		for _, kind := range []string{"json", "stateless", "stateful", "events"} {
			if c.modern && (kind == "stateful" || kind == "events") {
				continue // the version has none
			}
			t.Run(c.name+"/"+kind, func(t *testing.T) {
				between := startRelay(t, replicas[0].addr)
				s := &suite{
					client: c.connect(t, "http://"+between.addr()+"/"+c.name+"/"+kind), relay: between,
					replica: replicas[0], other: replicas[1], server: behind[c.sdk], work: work,
					saysCancelled: c.name != "v2", hasSession: !c.modern && kind != "stateless", streams: kind != "json",
					asks: kind == "stateful" || kind == "events" || c.modern,
				}
				for scenario, run := range scenarios {
					t.Run(scenario, func(t *testing.T) { run(t, s) })
				}
			})
		}
	}
}

var scenarios = map[string]func(*testing.T, *suite){
	"two at once": func(t *testing.T, s *suite) {
		g := newGate(t)
		key := s.on(t, func(payment) outcome { <-g.opened; return outcome{} })
		first := s.begin(t, key, 1)
		s.work.awaitBegun(t, key)
		second := s.begin(t, key, 1)
		s.replica.awaitWaiting(t)
		g.open()
		want(t, first.answer(t), 1, false)
		want(t, second.answer(t), 1, true)
		s.wantRuns(t, key, 1)
	},
	"failed, then done": func(t *testing.T, s *suite) {
		key := s.on(t, func(p payment) outcome { return outcome{Failed: p.n == 1} })
		if got := s.call(t, key, 1); got.run() != 1 || !got.Result.IsError || got.replayed() {
			t.Errorf("got %v, want the error of run 1", got)
		}
		want(t, s.call(t, key, 1), 2, false)
		want(t, s.call(t, key, 1), 2, true)
		s.wantRuns(t, key, 2)
	},
	// The timeout of a call cancels it.
	"cancelled, then repeated": func(t *testing.T, s *suite) { s.cancelled(t, func() {}) },
	"cancelled through another replica": func(t *testing.T, s *suite) {
		s.set(s.replica.addr, "notifications/cancelled", s.other.addr)
		defer s.set(s.replica.addr, "", "")
		s.cancelled(t, func() {})
	},
	"cancelled, closed and reopened": func(t *testing.T, s *suite) {
		s.cancelled(t, func() {
			s.reopen(t)
			if s.hasSession {
				s.awaitPost(t, post{http.MethodDelete, http.StatusAccepted})
			}
		})
	},
	"cut, and resumed":                    func(t *testing.T, s *suite) { s.cutOff(t, s.replica) },
	"cut, and resumed on another replica": func(t *testing.T, s *suite) { s.cutOff(t, s.other) },
	// The client resumes until the run has failed, and stays connected.
	"cut on both sides": func(t *testing.T, s *suite) {
		g := newGate(t)
		key := s.on(t, func(p payment) outcome { <-g.opened; return outcome{} })
		first := s.begin(t, key, 1)
		s.awaitRun(t, key, first)
		s.relay.cut()
		if s.streams {
			s.replica.awaitWaiting(t)
		}
		s.server.cut()
		if got := first.answer(t).Error; got == nil || s.streams && got.Data.Code != "upstream_failed" {
			t.Errorf("got %+v, want upstream_failed", got)
		}
		g.open()
		s.work.on(key+".next", nil)
		want(t, s.call(t, key+".next", 1), 1, false)
	},
	// Each round of the newer version is a request of its own, with another state.
	"asks twice": func(t *testing.T, s *suite) {
		if !s.asks {
			t.Skip("the server has no place to ask")
		}
		key := s.on(t, func(p payment) outcome {
			switch {
			case p.state == "":
				return outcome{State: fmt.Sprintf("first-%d", p.n)}
			case strings.HasPrefix(p.state, "first"):
				return outcome{State: fmt.Sprintf("second-%d", p.n)}
			}
			return outcome{}
		})
		want(t, s.call(t, key, 1), 1, false)
		want(t, s.call(t, key, 1), 1, true)
		s.wantRuns(t, key, 1)
	},
	"refused, and connected": func(t *testing.T, s *suite) {
		key := s.on(t, nil)
		want(t, s.call(t, key, 1), 1, false)
		if got := s.call(t, key, 2).Error; got == nil || got.Code != 422 || got.Data.Code != "idempotency_key_reused" || got.Data.Status != 422 {
			t.Errorf("got %+v, want 422 idempotency_key_reused", got)
		}
		want(t, s.call(t, key, 1), 1, true)
		want(t, s.call(t, key+".next", 1), 1, false)
		s.wantRuns(t, key, 1)
	},
}

// cancelled cancels a call that runs, and repeats it after meanwhile.
func (s *suite) cancelled(t *testing.T, meanwhile func()) {
	t.Helper()
	g := newGate(t)
	key := s.on(t, func(p payment) outcome {
		select {
		case <-g.opened:
		case <-p.ctx.Done(): // the tool is cancelled
		}
		return outcome{Failed: p.ctx.Err() != nil}
	})
	first := s.begin(t, key, 1)
	s.awaitRun(t, key, first)
	s.cancel(t, first.n)
	if got := first.answer(t); got.Error == nil {
		t.Errorf("got %v, want an error", got)
	}
	if s.saysCancelled {
		s.awaitPost(t, post{"notifications/cancelled", http.StatusAccepted})
	}
	meanwhile()
	second := s.begin(t, key, 1)
	s.replica.awaitWaiting(t)
	g.open()
	want(t, second.answer(t), 1, true)
	want(t, s.call(t, key, 1), 1, true)
	s.wantRuns(t, key, 1)
}

// cutOff cuts the connections of a call that runs. Then the client reaches a replica.
func (s *suite) cutOff(t *testing.T, replica *front) {
	t.Helper()
	g := newGate(t)
	key := s.on(t, func(p payment) outcome { <-g.opened; return outcome{} })
	first := s.begin(t, key, 1)
	s.awaitRun(t, key, first)
	s.set(replica.addr, "", "")
	defer s.set(s.replica.addr, "", "")
	s.relay.cut()
	if !s.streams {
		if got := first.answer(t); got.Error == nil {
			t.Errorf("got %v, want an error", got)
		}
		first = s.begin(t, key, 1)
	}
	replica.awaitWaiting(t)
	g.open()
	want(t, first.answer(t), 1, true)
	want(t, s.call(t, key, 1), 1, true)
	s.wantRuns(t, key, 1)
}

// awaitRun waits until a call runs, and its client knows.
func (s *suite) awaitRun(t *testing.T, key string, this *call) {
	t.Helper()
	s.work.awaitBegun(t, key)
	if s.streams {
		await(t, "the client has progress", this.runs)
	}
}
