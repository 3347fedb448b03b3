package engine_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// numbered returns someRequest with a key of its own.
func numbered(n int) engine.Request {
	req := someRequest()
	req.Key = idempotency.Identity{ID: fmt.Sprint(n)}.Key()
	return req
}

// asks reports whether a duplicate asks the store.
func (r *replica) asks(req engine.Request) bool {
	r.t.Helper()
	before := r.link.count("claim")
	as[engine.Replay](r.t, r.begin(req))
	return r.link.count("claim") > before
}

func TestCopiesHaveALimit(t *testing.T) {
	copies := engine.NewCopies(100 << 10)
	a := newCopying(t, newShared(t), copies)
	for n := range 10 {
		wantEnd(t, a.run(numbered(n)), created(strings.Repeat("x", 20<<10)), resultKept)
		if a.asks(numbered(0)) { // used again and again
			t.Fatalf("the copy that was last used is gone after %d more", n)
		}
		if held := copies.Bytes(); held > 100<<10 || held < min(int64(n+1), 4)*20<<10 {
			t.Fatalf("after %d responses of 20 KiB the copies take %d bytes", n+1, held)
		}
	}
	for n, want := range map[int]bool{9: false, 8: false, 0: false, 3: true} {
		if got := a.asks(numbered(n)); got != want {
			t.Errorf("a duplicate of the response number %d asks the store: %v, want %v", n, got, want)
		}
	}
	held := copies.Bytes()
	wantEnd(t, a.run(numbered(10)), created(strings.Repeat("x", 100<<10)), resultKept)
	if copies.Bytes() != held {
		t.Errorf("a response that is larger than the limit changed the copies from %d to %d bytes", held, copies.Bytes())
	}
	if !a.asks(numbered(10)) {
		t.Error("a response that is larger than the limit is copied")
	}
	copies.SetLimit(40 << 10)
	if held := copies.Bytes(); held > 40<<10 || held < 20<<10 {
		t.Errorf("with a limit of 40 KiB the copies take %d bytes", held)
	}
	copies.SetLimit(0)
	if held := copies.Bytes(); held != 0 {
		t.Errorf("turned off, the copies take %d bytes", held)
	}
	for _, c := range []struct {
		limit int64
		asks  [2]bool
	}{{0, [2]bool{true, true}}, {100 << 10, [2]bool{true, false}}} {
		copies.SetLimit(c.limit)
		if got := [2]bool{a.asks(numbered(9)), a.asks(numbered(9))}; got != c.asks {
			t.Errorf("with a limit of %d two duplicates ask the store: %v, want %v", c.limit, got, c.asks)
		}
	}
}

// New keys come all the time, and most of them are never asked for.
func TestNewKeysLeaveRoomForWhatIsAskedFor(t *testing.T) {
	const limit, body = 200 << 10, 512
	copies := engine.NewCopies(limit)
	a := newCopying(t, newShared(t), copies)
	run := func(from, to int) {
		for n := from; n < to; n++ {
			wantEnd(t, a.run(numbered(n)), created(strings.Repeat("x", body)), resultKept)
		}
	}
	run(0, 10)
	for n := range 10 {
		if a.asks(numbered(n)) {
			t.Fatalf("the first duplicate of the key number %d asks the store", n)
		}
	}
	run(10, 1000)
	if held := copies.Bytes(); held > limit/2 || held < limit/3 {
		t.Errorf("after 1,000 keys the copies take %d bytes of %d", held, limit)
	}
	for n, want := range map[int]bool{0: false, 9: false, 10: true, 999: false, 950: false} {
		if got := a.asks(numbered(n)); got != want {
			t.Errorf("a duplicate of the key number %d asks the store: %v, want %v", n, got, want)
		}
	}
	copies.SetLimit(0)
	copies.SetLimit(limit)
	run(1000, 1001)
	copies.SetLimit(copies.Bytes()) // of which three eighths are too little for one
	if a.asks(numbered(1000)) {
		t.Error("the only copy that there is room for is let go")
	}
}

// The limit is that of a process. Two of its stores may have the same key.
func TestStoresShareTheLimitAndNothingElse(t *testing.T) {
	copies := engine.NewCopies(someCopies)
	a, b := newCopying(t, newShared(t), copies), newCopying(t, newShared(t), copies)
	req := someRequest()
	first, second := a.run(req), b.run(req)
	wantEnd(t, first, created("first"), resultKept)
	one := copies.Bytes()
	wantEnd(t, second, created("second"), resultKept)
	if both := copies.Bytes(); both <= one {
		t.Errorf("two copies take %d bytes, one %d", both, one)
	}
	wantReplay(t, a.begin(req), first.ExecutionID(), created("first"), false)
	wantReplay(t, b.begin(req), second.ExecutionID(), created("second"), false)
	if err := a.Free(context.Background(), req.Key, idempotency.Seen{}); err != nil {
		t.Fatal(err)
	}
	as[*engine.Run](t, a.begin(req))
	if b.asks(req) {
		t.Error("a key that was freed in one store lost its copy of the other")
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if held := copies.Bytes(); held != 0 {
		t.Errorf("a closed engine leaves copies of %d bytes", held)
	}
}

func TestKeptResponse(t *testing.T) {
	a := newCopying(t, newShared(t), engine.NewCopies(someCopies))
	req := someRequest()
	run := a.run(req)
	wantEnd(t, run, created("paid"), resultKept)
	first, err := a.KeptResponse(context.Background(), req.Key, run.Record())
	if err != nil || first == nil || string(first.Body) != "paid" {
		t.Errorf("before a duplicate: %+v, %v", first, err)
	}
	replay := as[engine.Replay](t, a.begin(req))
	got, err := a.KeptResponse(context.Background(), req.Key, replay.Record)
	if err != nil || got != replay.Response || a.link.count("response") != 0 {
		t.Errorf("got %+v, %v, and the store was asked %d times", got, err, a.link.count("response"))
	}
	other := *replay.Record
	other.Token = "of another run"
	if got, err := a.KeptResponse(context.Background(), req.Key, &other); got != nil || err != nil {
		t.Errorf("for another run: %+v, %v", got, err)
	}
}

// usual returns a response with a usual header and a body of this size.
func usual(size int) *idempotency.Response {
	r := &idempotency.Response{Status: 201, Header: map[string][]string{}, Body: make([]byte, size)}
	for n := range 12 {
		r.Header[fmt.Sprint("X-Field-", n)] = []string{strings.Repeat("v", 30)}
	}
	return r
}

// named is a response with so many header fields, each with so many values.
func named(fields, values int) *idempotency.Response {
	r := &idempotency.Response{Status: 200, Header: map[string][]string{}}
	for n := range fields {
		r.Header[fmt.Sprint("N", n)] = slices.Repeat([]string{"v"}, values)
	}
	return r
}

// What the copies say they take is what the memory of the process grows by, and not less.
// Until its first duplicate, a copy is no object of the heap, or two and its large body.
func TestCopiesTakeWhatTheySay(t *testing.T) {
	few := map[string][]string{"Content-Type": {"application/json"}, "Location": {"/orders/17"}, "Etag": {`"17"`}}
	for name, c := range map[string]struct {
		response func() *idempotency.Response
		most     int64 // bytes, until the first duplicate
		objects  int64
	}{
		"empty":   {func() *idempotency.Response { return &idempotency.Response{Status: 204} }, 300, 0},
		"usual":   {func() *idempotency.Response { r := usual(512); r.Header = few; return r }, 900, 0},
		"headers": {func() *idempotency.Response { return usual(512) }, 1350, 0},
		"7 KiB":   {func() *idempotency.Response { return usual(7 << 10) }, 8300, 0},
		"part of a buffer": {func() *idempotency.Response {
			return &idempotency.Response{Status: 200, Body: make([]byte, 512, 64<<10)}
		}, 850, 0},
		"many values": {func() *idempotency.Response {
			return &idempotency.Response{Status: 200, Header: map[string][]string{"X": make([]string, 2000)}}
		}, 2500, 0},
		"many names":            {func() *idempotency.Response { return named(500, 0) }, 3400, 0},
		"names and values":      {func() *idempotency.Response { return named(57, 1) }, 750, 0},
		"large":                 {func() *idempotency.Response { return usual(64 << 10) }, 66 << 10, 3},
		"just over whole pages": {func() *idempotency.Response { return usual(33 << 10) }, 42 << 10, 3},
		"large header": {func() *idempotency.Response {
			return &idempotency.Response{Status: 200, Header: map[string][]string{"X": {strings.Repeat("v", 20<<10)}}}
		}, 26 << 10, 2},
	} {
		// In a time of its own: on a slow machine the copies would be too old to answer.
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := min(10_000, 64<<20/c.most)
				if len(c.response().Header) > 12 || c.most > 2000 {
					n = min(n, 1000) // decoded they are much larger
				}
				copies := engine.NewCopies(1 << 30)
				a, b, req := newBenchmarked(t, nil), newBenchmarked(t, copies), someRequest()
				grown := func(do func(i int)) (bytes, objects int64) {
					before, were := heap()
					for i := range n {
						do(int(i))
					}
					bytes, objects = heap()
					return bytes - before, objects - were
				}
				runs := func(e *engine.Engine) func(int) {
					return func(i int) { runWith(t, e, req, i, c.response()) }
				}
				without, alone := grown(runs(a))
				took, objects := grown(runs(b))
				took, objects = took-without, objects-alone
				wantSaid(t, took, copies.Bytes(), n)
				if took > n*c.most+noise || objects > n*c.objects+n/2 {
					t.Errorf("%d copies take %d bytes and %d objects, want at most %d and %d each", n, took, objects, c.most, c.objects)
				}
				more, _ := grown(func(i int) { as[engine.Replay](t, beginWith(t, b, req, i)) })
				wantSaid(t, took+more, copies.Bytes(), n)
				runtime.KeepAlive(a)
				runtime.KeepAlive(b)
			})
		})
	}
}

// noise is by how many bytes the memory grows or shrinks by what other tests leave behind.
const noise = 1 << 20

// wantSaid checks what n copies say that they take against what they took.
func wantSaid(t *testing.T, took, said, n int64) {
	t.Helper()
	t.Logf("a copy takes %d bytes, and %d by its own account", took/n, said/n)
	if took > said+noise || said > 2*took {
		t.Errorf("%d copies take %d bytes, and %d by their own account", n, took, said)
	}
}

// The same of copies of what the store has answered, whose body may be part of all that the
// store had read.
func TestCopiesOfWhatWasReadTakeWhatTheySay(t *testing.T) {
	const n = 1000
	response := &idempotency.Response{Status: 201, Header: map[string][]string{}, Body: make([]byte, 512)}
	for n := range 12 {
		response.Header[fmt.Sprint("X-Field-", n)] = []string{strings.Repeat("v", 300)}
	}
	store, copies := newShared(t), engine.NewCopies(1<<30)
	first, again := newCopying(t, store, nil), newCopying(t, store, copies)
	for i := range n {
		wantEnd(t, first.run(numbered(i)), response, resultKept)
	}
	grown := func(r *replica) int64 {
		before, _ := heap()
		for i := range n {
			as[engine.Replay](t, r.begin(numbered(i)))
		}
		after, _ := heap()
		return after - before
	}
	without := grown(first)
	wantSaid(t, grown(again)-without, copies.Bytes(), n)
	runtime.KeepAlive(first)
	runtime.KeepAlive(again)
}

// nothing is a store that lets all run and keeps nothing, so that only copies answer.
type nothing struct{ idempotency.Store }

func (nothing) Claim(_ context.Context, c idempotency.Claim) (idempotency.Claimed, error) {
	now := time.Now()
	return idempotency.Claimed{Verdict: idempotency.Proceed, Now: now, Record: &idempotency.Record{
		State: idempotency.InFlight, Token: c.Token, ExecutionID: c.ExecutionID, Attempt: 1, Origin: c.Origin,
		Fingerprint: c.Fingerprints[0], Claimed: now, LeaseUntil: now.Add(c.Lease), Expires: now.Add(c.Life()),
	}}, nil
}

func (nothing) Settle(context.Context, idempotency.Key, *idempotency.Record, idempotency.Settlement) error {
	return nil
}

func (nothing) Subscribe(func(idempotency.Key)) func() { return func() {} }

func (nothing) Close() error { return nil }

// heap returns how many bytes and objects are in use on the heap.
func heap() (bytes, objects int64) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc), int64(m.HeapObjects)
}
