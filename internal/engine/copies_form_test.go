package engine_test

import (
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// A replay from a copy equals the replay from the store in every field.
func TestReplayFromCopyEqualsReplayFromStore(t *testing.T) {
	header := map[string][]string{"Set-Cookie": {"a=1", "b=2"}, "X-Removed": {}, "Etag": {`"17"`}, "X-Bytes": {"\xff\x00 é"}}
	responses := map[string]*idempotency.Response{
		"no body":       {Status: 204},
		"an empty body": {Status: 200, Body: []byte{}},
		"a header":      {Status: 201, Header: header, Body: []byte("paid")},
		"omitted":       {Status: 200, Header: header, Omitted: true},
		"a large header": {Status: 200, Body: []byte("paid"), Header: map[string][]string{
			"X-Large": {strings.Repeat("h", 10<<10)},
		}},
		"large": {Status: 200, Header: header, Body: []byte(strings.Repeat("x", 100<<10))},
	}
	runs := map[string]func(a *replica, req engine.Request) *engine.Run{
		"the first run": (*replica).run,
		"a retry": func(a *replica, req engine.Request) *engine.Run {
			end(a.run(req), broken("no"))
			return a.run(req)
		},
		"a forced run": func(a *replica, req engine.Request) *engine.Run {
			end(a.run(req), created("old"))
			return a.run(forcing(req))
		},
	}
	for name, response := range responses {
		for how, run := range runs {
			if response.Omitted && how == "a forced run" {
				continue // it is not kept
			}
			for _, keys := range []string{"", "a"} {
				t.Run(name+", "+how+", keys "+keys, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						store := newShared(t)
						a, b := newReplicaWithCopies(t, store, engine.NewCopies(someCopies)), newReplicaWithCopies(t, store, engine.NewCopies(someCopies))
						for _, r := range []*replica{a, b} {
							r.Configure(engine.Settings{Sealer: sealing(t, keys)})
						}
						req := delivered()
						req.Origin.Provider = "github"
						time.Sleep(1234567 * time.Nanosecond) // stores keep whole milliseconds
						r := run(a, req)
						time.Sleep(7654321 * time.Nanosecond)
						wantEnd(t, r, response, resultKept)
						asked := a.link.count("claim")
						copied, stored := as[engine.Replay](t, a.claim(req)), as[engine.Replay](t, b.claim(req))
						copied.Record.LargeBody = stored.Record.LargeBody // the store has that of the sealed response
						if a.link.count("claim") != asked || b.link.count("claim") != 1 {
							t.Error("the store was asked for the copy")
						}
						if !reflect.DeepEqual(copied, stored) {
							t.Errorf("the copy answers\n%+v %+v\nand the store\n%+v %+v",
								copied.Record, copied.Response, stored.Record, stored.Response)
						}
					})
				})
			}
		}
	}
}

// The first duplicates, all at once, get the same response. Later ones share one decoded copy.
func TestConcurrentFirstDuplicates(t *testing.T) {
	copies := engine.NewCopies(someCopies)
	a, req := newReplicaWithCopies(t, newShared(t), copies), someRequest()
	run := a.run(req)
	wantEnd(t, run, typicalResponse(512), resultKept)
	const n = 16
	var decisions [n]engine.Decision
	var all sync.WaitGroup
	begin := make(chan struct{})
	for i := range n {
		all.Go(func() {
			<-begin
			decisions[i] = a.claim(req)
		})
	}
	close(begin)
	all.Wait()
	for _, d := range decisions {
		wantReplay(t, d, run.ExecutionID(), typicalResponse(512), false)
	}
	first, second := as[engine.Replay](t, a.claim(req)), as[engine.Replay](t, a.claim(req))
	if first.Record != second.Record || first.Response != second.Response {
		t.Error("a later duplicate decodes the copy again")
	}
	storetest.Equal(t, a.link.count("claim"), 1, "claims")
}

// A copy shares a large body, and does not keep a large buffer for a small one.
func TestBodyOfACopy(t *testing.T) {
	copies := engine.NewCopies(someCopies)
	a := newReplicaWithCopies(t, newShared(t), copies)
	for n, c := range []struct {
		body []byte
		same bool
	}{{make([]byte, 10, 64<<10), false}, {make([]byte, 10<<10), true}} {
		wantEnd(t, a.run(nth(n)), &idempotency.Response{Status: 200, Body: c.body}, resultKept)
		got := as[engine.Replay](t, a.claim(nth(n))).Response.Body
		if same := &got[0] == &c.body[0]; same != c.same || len(got) != len(c.body) {
			t.Errorf("a body of %d bytes: the copy has %d, the same %v, want %v", len(c.body), len(got), same, c.same)
		}
	}
}
