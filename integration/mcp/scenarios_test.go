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
	front *front
	work  *payments
	// What the SDK does: it says by a message that it cancels a call; its server can ask.
	saysCancelled, asks bool
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
	redis := startRedis(t)
	program, packages, work := buildBinary(t), installPackages(t), startPayments(t)
	servers := map[string]string{
		"v1": startServer(t, packages, "v1_server.mjs", work.url),
		"v2": startServer(t, packages, "v2_server.mjs", work.url),
		"go": startGoServer(t, work.url),
	}
	for store, line := range map[string]string{"file": "file", "redis": "redis " + redis} {
		f := startFront(t, program, line, servers)
		at := func(path string) string { return "http://" + f.addr + "/" + path }
		for _, form := range []string{"json", "sse"} {
			asks := form == "sse" // in one object, a server has no place to ask
			for name, s := range map[string]*suite{
				"v1":        {client: startClient(t, packages, "v1_client.mjs", at("v1/"+form)), saysCancelled: true, asks: asks},
				"v2/legacy": {client: startClient(t, packages, "v2_client.mjs", at("v2/legacy/"+form)), saysCancelled: true, asks: asks},
				"v2":        {client: startClient(t, packages, "v2_client.mjs", at("v2/"+form), modern), asks: true},
				"go/legacy": {client: connectGo(t, at("go/legacy/"+form), legacy), saysCancelled: true, asks: asks},
				"go":        {client: connectGo(t, at("go/"+form), modern), saysCancelled: true, asks: true},
			} {
				s.front, s.work = f, work
				for scenario, run := range scenarios {
					if scenario == "asks twice" && !s.asks {
						continue
					}
					t.Run(fmt.Sprintf("%s/%s/%s/%s", store, name, form, scenario), func(t *testing.T) { run(t, s) })
				}
			}
		}
	}
}

var scenarios = map[string]func(*testing.T, *suite){
	"repeated": func(t *testing.T, s *suite) {
		key := s.on(t, nil)
		want(t, s.call(t, key, 1), 1, false)
		want(t, s.call(t, key, 1), 1, true)
		s.wantRuns(t, key, 1)
	},
	"two at once": func(t *testing.T, s *suite) {
		g := newGate(t)
		key := s.on(t, func(payment) outcome { <-g.opened; return outcome{} })
		first := s.begin(t, key, 1)
		s.work.awaitBegun(t, key)
		second := s.begin(t, key, 1)
		s.front.awaitWaiting(t)
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
	"cancelled, then repeated": func(t *testing.T, s *suite) {
		g := newGate(t)
		key := s.on(t, func(p payment) outcome {
			select {
			case <-g.opened:
			case <-p.ctx.Done(): // the tool is cancelled
			}
			return outcome{Failed: p.ctx.Err() != nil}
		})
		first := s.begin(t, key, 1)
		s.work.awaitBegun(t, key)
		s.cancel(t, first.n)
		if got := first.answer(t); got.Error == nil {
			t.Errorf("got %v, want an error", got)
		}
		if s.saysCancelled {
			s.awaitPost(t, post{"notifications/cancelled", http.StatusAccepted})
		}
		second := s.begin(t, key, 1)
		s.front.awaitWaiting(t)
		g.open()
		want(t, second.answer(t), 1, true)
		want(t, s.call(t, key, 1), 1, true)
		s.wantRuns(t, key, 1)
	},
	// Each round of the newer version is a request of its own, with another state.
	"asks twice": func(t *testing.T, s *suite) {
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
