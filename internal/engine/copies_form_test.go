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
)

// A copy of a run's end answers with what the store would answer with, to the last field.
func TestCopyOfARunIsWhatTheStoreHas(t *testing.T) {
	header := map[string][]string{"Set-Cookie": {"a=1", "b=2"}, "X-Removed": {}, "Etag": {`"17"`}, "X-Bytes": {"\xff\x00 é"}}
	responses := map[string]*idempotency.Response{
		"no body":       {Status: 204},
		"an empty body": {Status: 200, Body: []byte{}},
		"a header":      {Status: 201, Header: header, Body: []byte("paid")},
		"omitted":       {Status: 200, Header: header, Omitted: true},
		"7 KiB":         {Status: 200, Body: []byte(strings.Repeat("x", 7<<10))},
		"over 8 KiB":    {Status: 200, Body: []byte(strings.Repeat("x", 8<<10+1))},
		"7 KiB, large header": {Status: 200, Body: []byte(strings.Repeat("x", 7<<10)), Header: map[string][]string{
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
					withCopies(t, func(t *testing.T, a, b *replica) {
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
						copied, stored := a.begin(req), b.begin(req)
						a.wantAsked("a duplicate", asked)
						b.wantAsked("its first request", 1)
						if !reflect.DeepEqual(copied, stored) {
							t.Errorf("the copy answers\n%+v %+v\nand the store\n%+v %+v",
								as[engine.Replay](t, copied).Record, as[engine.Replay](t, copied).Response,
								as[engine.Replay](t, stored).Record, as[engine.Replay](t, stored).Response)
						}
					})
				})
			}
		}
	}
}

// All that come at once for the first time get the same answer. From then on the copy stays
// decoded.
func TestFirstDuplicatesTogether(t *testing.T) {
	copies := engine.NewCopies(someCopies)
	a, req := newCopying(t, newShared(t), copies), someRequest()
	run := a.run(req)
	wantEnd(t, run, usual(512), resultKept)
	encoded := copies.Bytes()
	const n = 16
	var decisions [n]engine.Decision
	var all sync.WaitGroup
	begin := make(chan struct{})
	for i := range n {
		all.Go(func() {
			<-begin
			decisions[i] = a.begin(req)
		})
	}
	close(begin)
	all.Wait()
	for _, d := range decisions {
		wantReplay(t, d, run.ExecutionID(), usual(512), false)
	}
	decoded := copies.Bytes()
	if decoded <= encoded {
		t.Errorf("the copy took %d bytes, and %d after its duplicates", encoded, decoded)
	}
	first, second := as[engine.Replay](t, a.begin(req)), as[engine.Replay](t, a.begin(req))
	if first.Record != second.Record || first.Response != second.Response {
		t.Error("a later duplicate decodes the copy again")
	}
	if now := copies.Bytes(); now != decoded {
		t.Errorf("later duplicates changed the copy from %d to %d bytes", decoded, now)
	}
	a.wantAsked("after the run", 1)
}

// A large body is not there twice, and a small one keeps no large buffer.
func TestBodyOfACopy(t *testing.T) {
	copies := engine.NewCopies(someCopies)
	a := newCopying(t, newShared(t), copies)
	for n, c := range []struct {
		body []byte
		same bool
	}{{make([]byte, 10, 64<<10), false}, {make([]byte, 10<<10), true}} {
		wantEnd(t, a.run(numbered(n)), &idempotency.Response{Status: 200, Body: c.body}, resultKept)
		got := as[engine.Replay](t, a.begin(numbered(n))).Response.Body
		if same := &got[0] == &c.body[0]; same != c.same || len(got) != len(c.body) {
			t.Errorf("a body of %d bytes: the copy has %d, the same %v, want %v", len(c.body), len(got), same, c.same)
		}
	}
}

// Where the limit has room for a copy only as long as it is encoded, that one answers.
func TestCopyThatIsTooLargeWhenDecoded(t *testing.T) {
	copies := engine.NewCopies(600) // decoded it takes about 1,000
	a, req := newCopying(t, newShared(t), copies), someRequest()
	run := a.run(req)
	wantEnd(t, run, created("paid"), resultKept)
	held := copies.Bytes()
	for range 3 {
		wantReplay(t, a.begin(req), run.ExecutionID(), created("paid"), false)
	}
	a.wantAsked("after the run", 1)
	if now := copies.Bytes(); held == 0 || now != held {
		t.Errorf("the copy took %d bytes, and %d after its duplicates", held, now)
	}
}

// A response that no store could give back is no copy either: the store says what is wrong.
func TestCopyOfWhatIsNoResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		copies := engine.NewCopies(someCopies)
		a, req := newCopying(t, newShared(t), copies), someRequest()
		run := a.run(req)
		wantEnd(t, run, &idempotency.Response{Status: 1000}, resultKept)
		wantRefusal(t, a.begin(req), engine.ReasonUnreadable, "")
		a.wantAsked("after the run", 2)
		if n := copies.Bytes(); n != 0 {
			t.Errorf("the copies take %d bytes", n)
		}
	})
}
