package engine_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// asks reports whether a duplicate asks the store.
func (r *replica) asks(req engine.Request) bool {
	r.t.Helper()
	before := r.link.count("claim")
	as[engine.Replay](r.t, r.claim(req))
	return r.link.count("claim") > before
}

func TestCopiesHaveALimit(t *testing.T) {
	copies := engine.NewCopies(100 << 10)
	a := newReplicaWithCopies(t, newShared(t), copies)
	for n := range 10 {
		wantEnd(t, a.run(nth(n)), created(strings.Repeat("x", 20<<10)), resultKept)
		if a.asks(nth(0)) { // used again and again
			t.Fatalf("the copy that was last used is gone after %d more", n)
		}
		if held := copies.Bytes(); held > 100<<10 || held < min(int64(n+1), 4)*20<<10 {
			t.Fatalf("after %d responses of 20 KiB the copies take %d bytes", n+1, held)
		}
	}
	for n, want := range map[int]bool{9: false, 8: false, 0: false, 3: true} {
		storetest.Equal(t, a.asks(nth(n)), want, "a duplicate asks the store, of the response", n)
	}
	held := copies.Bytes()
	wantEnd(t, a.run(nth(10)), created(strings.Repeat("x", 100<<10)), resultKept)
	if copies.Bytes() != held {
		t.Errorf("a response that is larger than the limit changed the copies from %d to %d bytes", held, copies.Bytes())
	}
	if !a.asks(nth(10)) {
		t.Error("a response that is larger than the limit is copied")
	}
	copies.SetLimit(40 << 10)
	if held := copies.Bytes(); held > 40<<10 || held < 20<<10 {
		t.Errorf("with a limit of 40 KiB the copies take %d bytes", held)
	}
	copies.SetLimit(0)
	storetest.Equal(t, copies.Bytes(), 0, "bytes that copies take, turned off")
	for _, c := range []struct {
		limit int64
		asks  [2]bool
	}{{0, [2]bool{true, true}}, {100 << 10, [2]bool{true, false}}} {
		copies.SetLimit(c.limit)
		storetest.Equal(t, [2]bool{a.asks(nth(9)), a.asks(nth(9))}, c.asks, "two duplicates ask the store, with the limit", c.limit)
	}
}

// The limit is that of a process. Two of its stores may have the same key.
func TestStoresShareOnlyTheCopyLimit(t *testing.T) {
	copies := engine.NewCopies(someCopies)
	a, b := newReplicaWithCopies(t, newShared(t), copies), newReplicaWithCopies(t, newShared(t), copies)
	req := someRequest()
	first, second := a.run(req), b.run(req)
	wantEnd(t, first, created("first"), resultKept)
	one := copies.Bytes()
	wantEnd(t, second, created("second"), resultKept)
	if both := copies.Bytes(); both <= one {
		t.Errorf("two copies take %d bytes, one %d", both, one)
	}
	wantReplay(t, a.claim(req), first.ExecutionID(), created("first"), false)
	wantReplay(t, b.claim(req), second.ExecutionID(), created("second"), false)
	must(t, a.Release(context.Background(), req.Key, idempotency.Precondition{}))
	as[*engine.Run](t, a.claim(req))
	if b.asks(req) {
		t.Error("a key that was freed in one store lost its copy of the other")
	}
	must(t, b.Close())
	storetest.Equal(t, copies.Bytes(), 0, "bytes that a closed engine leaves")
}

func TestKeptResponse(t *testing.T) {
	a := newReplicaWithCopies(t, newShared(t), engine.NewCopies(someCopies))
	req := someRequest()
	run := a.run(req)
	wantEnd(t, run, created("paid"), resultKept)
	first, err := a.KeptResponse(context.Background(), req.Key, run.Record())
	if err != nil || first == nil || string(first.Body) != "paid" {
		t.Errorf("before a duplicate: %+v, %v", first, err)
	}
	replay := as[engine.Replay](t, a.claim(req))
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

// typicalResponse returns a response with a typical header and a body of this size.
func typicalResponse(size int) *idempotency.Response {
	r := &idempotency.Response{Status: 201, Header: map[string][]string{}, Body: make([]byte, size)}
	for n := range 12 {
		r.Header[fmt.Sprint("X-Field-", n)] = []string{strings.Repeat("v", 30)}
	}
	return r
}

// The memory of the process grows by no more than the counted bytes. Until its first duplicate, a
// copy is four objects, so that it costs the garbage collector little.
func TestCopiesCountTheirBytes(t *testing.T) {
	for name, c := range map[string]struct {
		response func() *idempotency.Response
		n        int
	}{
		"empty":   {func() *idempotency.Response { return &idempotency.Response{Status: 204} }, 10_000},
		"headers": {func() *idempotency.Response { return typicalResponse(512) }, 10_000},
		"large":   {func() *idempotency.Response { return typicalResponse(64 << 10) }, 500},
		"a large header": {func() *idempotency.Response {
			return &idempotency.Response{Status: 200, Header: map[string][]string{"X": {strings.Repeat("v", 20<<10)}}}
		}, 1000},
	} {
		// In synctest, because on a slow machine the copies would be too old to answer.
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				copies := engine.NewCopies(1 << 30)
				e, req := newBenchmarked(t, copies), someRequest()
				before, were := heap()
				for i := range c.n {
					runWith(t, e, req, i, c.response())
				}
				encoded, objects := heap()
				if each := (objects - were) / int64(c.n); each > 4 {
					t.Errorf("a copy is %d objects", each)
				}
				for i := range c.n {
					as[engine.Replay](t, claimWith(t, e, req, i))
				}
				decoded, _ := heap()
				const noise = 1 << 20
				t.Logf("a copy takes %d bytes, decoded %d, and counts %d", (encoded-before)/int64(c.n), (decoded-before)/int64(c.n), copies.Bytes()/int64(c.n))
				if took := decoded - before; took > copies.Bytes()+noise || copies.Bytes() > 2*took {
					t.Errorf("%d copies take %d bytes, and count %d", c.n, took, copies.Bytes())
				}
				runtime.KeepAlive(e)
			})
		})
	}
}

// nothing is a store that lets every request run and keeps nothing, so that only copies answer.
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

// newBenchmarked returns an engine without a store, which costs nothing but itself.
func newBenchmarked(b testing.TB, copies *engine.Copies) *engine.Engine {
	options := someOptions()
	options.Copies = copies
	options.NewToken = func() string { return "ABCDEFGHIJKLMNOPQRSTUVWXYZ" }
	options.NewExecutionID = func() string { return "0199b8a2-7d1c-7000-8000-000000000001" }
	e := engine.New(nothing{}, options)
	b.Cleanup(func() { _ = e.Close() })
	return e
}

// claimWith claims the key with this number. Making the key costs next to nothing.
func claimWith(b testing.TB, e *engine.Engine, req engine.Request, n int) engine.Decision {
	binary.BigEndian.PutUint64(req.Key[:], uint64(n))
	binary.BigEndian.PutUint64(req.Key[len(req.Key)-8:], uint64(n))
	decision, err := e.Claim(context.Background(), req)
	must(b, err)
	return decision
}

func runWith(b testing.TB, e *engine.Engine, req engine.Request, n int, response *idempotency.Response) {
	run, ok := claimWith(b, e, req, n).(*engine.Run)
	if !ok {
		b.Fatal("the first request does not run")
	}
	if got := end(run, response); got != resultKept {
		b.Fatalf("the run ended %q", got)
	}
}

// heap returns how many bytes and objects are in use on the heap.
func heap() (bytes, objects int64) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc), int64(m.HeapObjects)
}
