package engine_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"

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
	wantEnd(t, a.run(req), created("paid"), resultKept)
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

// What the copies say they take is what the heap grows by, and not less.
func TestCopiesTakeWhatTheySay(t *testing.T) {
	for name, response := range map[string]func() *idempotency.Response{
		"small": func() *idempotency.Response { return &idempotency.Response{Status: 204} },
		"headers": func() *idempotency.Response {
			r := &idempotency.Response{Status: 201, Header: map[string][]string{}, Body: make([]byte, 512)}
			for n := range 12 {
				r.Header[fmt.Sprint("X-Field-", n)] = []string{strings.Repeat("v", 30)}
			}
			return r
		},
		"large": func() *idempotency.Response { return &idempotency.Response{Status: 200, Body: make([]byte, 64<<10)} },
	} {
		t.Run(name, func(t *testing.T) {
			const n = 500
			copies := engine.NewCopies(1 << 30)
			a, b := newCopying(t, &forgetful{newShared(t)}, nil), newCopying(t, &forgetful{newShared(t)}, copies)
			grown := func(r *replica) int64 {
				before := heap()
				for i := range n {
					wantEnd(t, r.run(numbered(i)), response(), resultKept)
				}
				return heap() - before
			}
			without := grown(a)
			took, said := grown(b)-without, copies.Bytes()
			t.Logf("a copy takes %d bytes of heap, and %d by its own account", took/n, said/n)
			if took > said || said > 2*took {
				t.Errorf("%d copies take %d bytes of heap, and %d by their own account", n, took, said)
			}
			runtime.KeepAlive(a)
			runtime.KeepAlive(b)
		})
	}
}

// The same of copies of what the store has answered, whose body may be part of all that the
// store had read.
func TestCopiesOfWhatWasReadTakeWhatTheySay(t *testing.T) {
	const n = 500
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
		before := heap()
		for i := range n {
			as[engine.Replay](t, r.begin(numbered(i)))
		}
		return heap() - before
	}
	without := grown(first)
	took, said := grown(again)-without, copies.Bytes()
	t.Logf("a copy takes %d bytes of heap, and %d by its own account", took/n, said/n)
	if took > said || said > 2*took {
		t.Errorf("%d copies take %d bytes of heap, and %d by their own account", n, took, said)
	}
	runtime.KeepAlive(first)
	runtime.KeepAlive(again)
}

// forgetful is a store that keeps nothing of what is settled.
type forgetful struct{ idempotency.Store }

func (f *forgetful) Settle(ctx context.Context, key idempotency.Key, record *idempotency.Record, s idempotency.Settlement) error {
	s.Retention, s.Response = 0, nil
	return f.Store.Settle(ctx, key, record, s)
}

// heap returns how many bytes of the heap are in use.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A duplicate that is answered from a copy costs next to nothing.
func TestAllocationsOfACopy(t *testing.T) {
	a := newCopying(t, newShared(t), engine.NewCopies(someCopies))
	req := someRequest()
	wantEnd(t, a.run(req), created("paid"), resultKept)
	if n := testing.AllocsPerRun(100, func() { as[engine.Replay](t, a.begin(req)) }); n > 4 {
		t.Errorf("a duplicate makes %v allocations, want at most 4", n)
	} else {
		t.Logf("a duplicate makes %v allocations", n)
	}
}
