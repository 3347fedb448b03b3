package engine_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/memory"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// Shared by the tests of all stores and of the engine.
var must, wantErr = storetest.Must, storetest.WantErr

// The durations of the engine tests, on the fake clock of testing/synctest.
const (
	storeTimeout = 500 * time.Millisecond
	someLease    = 30 * time.Second
	someWait     = 5 * time.Second
)

// newShared returns the store that all replicas of a test share.
func newShared(t *testing.T) idempotency.Store {
	store := memory.New(64 << 20)
	t.Cleanup(func() { _ = store.Close() })
	return store
}

// replica is one process: an engine with its own link to the shared store.
type replica struct {
	*engine.Engine
	t        *testing.T
	link     *link
	copies   *engine.Copies
	logged   *observer.ObservedLogs
	room     atomic.Pointer[error]
	observer countingObserver
}

// setRoom sets why the replica has no room for new runs; nil if it has.
func (r *replica) setRoom(err error) { r.room.Store(&err) }

var tokenNumber, runNumber atomic.Int64

// newReplica returns a replica that asks the store about each request.
func newReplica(t *testing.T, store idempotency.Store) *replica {
	t.Helper()
	return newReplicaWithCopies(t, store, nil)
}

// newReplicaWithCopies returns a replica with local copies.
func newReplicaWithCopies(t *testing.T, store idempotency.Store, copies *engine.Copies) *replica {
	t.Helper()
	r := &replica{t: t, link: newLink(store), copies: copies}
	return r.open(r.link, func(*engine.Options) {})
}

// open opens the engine of a replica over a store, with options that may be changed.
func (r *replica) open(store idempotency.Store, change func(*engine.Options)) *replica {
	r.setRoom(nil)
	options := someOptions()
	options.Room = func() error { return *r.room.Load() }
	options.Copies, options.Observer = r.copies, &r.observer
	core, logged := observer.New(zap.InfoLevel)
	options.Logger, r.logged = zap.New(core), logged
	change(&options)
	r.Engine = engine.New(store, options)
	r.t.Cleanup(func() { _ = r.Close() })
	return r
}

func someOptions() engine.Options {
	return engine.Options{
		Timeout:        storeTimeout,
		Logger:         zap.NewNop(),
		NewToken:       func() string { return fmt.Sprint("token ", tokenNumber.Add(1)) },
		NewExecutionID: func() string { return fmt.Sprint("run ", runNumber.Add(1)) },
	}
}

// someRequest returns a request with the default settings of the API mode.
func someRequest() engine.Request {
	releases, err := idempotency.ParseStatuses("5xx", "409")
	if err != nil {
		panic(err)
	}
	return engine.Request{
		Key:         idempotency.Identity{Namespace: "test", Kind: "header", ID: "one"}.Key(),
		Fingerprint: "body:one",
		Policy: idempotency.Policy{
			Terms:     idempotency.Terms{Lease: someLease, Retention: 24 * time.Hour},
			ReleaseOn: releases,
		},
		Wait: someWait,
	}
}

func withKey(req engine.Request, id string) engine.Request {
	req.Key = idempotency.Identity{ID: id}.Key()
	return req
}

// nth returns someRequest with the nth key.
func nth(n int) engine.Request { return withKey(someRequest(), fmt.Sprint("key ", n)) }

// lose makes the store lose the record of a key and its response, as a server without persistence
// does in a restart.
func lose(t *testing.T, store idempotency.Store, req engine.Request) {
	t.Helper()
	record, _, err := store.Lookup(context.Background(), req.Key)
	must(t, err)
	// The retention of this settlement is 0, so the record expires at once.
	must(t, store.Settle(context.Background(), req.Key, record, idempotency.Settlement{State: idempotency.Complete}))
	// Another replica may have claimed the key by now.
	left, _, err := store.Lookup(context.Background(), req.Key)
	if err != nil || left != nil && left.Token == record.Token {
		t.Fatalf("the store still has %+v, %v", left, err)
	}
}

// forcing returns a forced request.
func forcing(req engine.Request) engine.Request {
	req.Force = true
	return req
}

// claim returns the decision on a request whose client stays connected.
func (r *replica) claim(req engine.Request) engine.Decision {
	r.t.Helper()
	d, err := r.Claim(context.Background(), req)
	if err != nil {
		r.t.Fatalf("claim: %v", err)
	}
	return r.whole(req, d)
}

// whole returns the decision with its response, which it reads if that is large.
func (r *replica) whole(req engine.Request, d engine.Decision) engine.Decision {
	replay, ok := d.(engine.Replay)
	if !ok || replay.Response != nil {
		return d
	}
	var err error
	if replay.Response, err = r.KeptResponse(context.Background(), req.Key, replay.Record); err != nil {
		r.t.Errorf("the response of a replay: %v", err)
	}
	return replay
}

// run claims, and fails the test if the request may not run.
func (r *replica) run(req engine.Request) *engine.Run {
	r.t.Helper()
	return as[*engine.Run](r.t, r.claim(req))
}

// waiter is a request that waits for its decision in the background.
type waiter struct {
	t     *testing.T
	leave context.CancelCauseFunc // its client disconnects
	done  chan struct{}
	d     engine.Decision
	err   error
	// took is how long the decision took on the fake clock.
	took time.Duration
}

func (r *replica) claimLater(ctx context.Context, req engine.Request) *waiter {
	return r.later(ctx, req, r.Claim)
}

// later has a request decided on in the background.
func (r *replica) later(ctx context.Context, req engine.Request, decide func(context.Context, engine.Request) (engine.Decision, error)) *waiter {
	ctx, leave := context.WithCancelCause(ctx)
	w := &waiter{t: r.t, leave: leave, done: make(chan struct{})}
	start := time.Now()
	go func() {
		defer close(w.done)
		w.d, w.err = decide(ctx, req)
		w.d = r.whole(req, w.d)
		w.took = time.Since(start)
	}()
	return w
}

func (w *waiter) decided() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// decision waits for the decision.
func (w *waiter) decision() engine.Decision {
	w.t.Helper()
	select {
	case <-w.done:
	case <-time.After(time.Hour):
		w.t.Fatal("the request is left waiting")
	}
	if w.err != nil {
		w.t.Fatalf("claim: %v", w.err)
	}
	return w.d
}

// drain waits until every run is settled and every claim in doubt is withdrawn. It fails
// the test if that takes more than an hour.
func (r *replica) drain() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	if err := r.Drain(ctx); err != nil {
		r.t.Fatal(err)
	}
}

// as returns a decision as its concrete type, and fails the test if it has another one.
func as[D engine.Decision](t *testing.T, d engine.Decision) D {
	t.Helper()
	got, ok := d.(D)
	if !ok {
		t.Fatalf("the decision is %T %+v, want %T", d, d, got)
	}
	return got
}

// wantRefusal checks that a decision is a refusal with this reason and this execution ID.
func wantRefusal(t *testing.T, d engine.Decision, reason engine.Reason, executionID string) {
	t.Helper()
	got := as[engine.Refusal](t, d)
	if run, _ := got.Run(); got.Reason != reason || run != executionID {
		t.Errorf("refused with %q of %q (%v), want %q of %q", got.Reason, run, got.Err, reason, executionID)
	}
}

// wantReplay checks that a decision is the replay of this response of this run.
func wantReplay(t *testing.T, d engine.Decision, executionID string, response *idempotency.Response, waited bool) {
	t.Helper()
	got := as[engine.Replay](t, d)
	switch {
	case got.Response == nil:
		t.Errorf("the replay has no response")
	case got.Response.Status != response.Status || string(got.Response.Body) != string(response.Body) || got.Response.Failed != response.Failed ||
		got.Response.Omitted != response.Omitted:
		t.Errorf("replayed %+v, want %+v", got.Response, response)
	case got.Record.ExecutionID != executionID:
		t.Errorf("the replay names %q, want %q", got.Record.ExecutionID, executionID)
	case got.Response.Omitted && !maps.EqualFunc(got.Response.Header, response.Header, slices.Equal):
		t.Errorf("replayed with the header %v, want %v", got.Response.Header, response.Header)
	case got.Waited != waited:
		t.Errorf("waited is %v, want %v", got.Waited, waited)
	}
}

// created returns a response that is kept.
func created(body string) *idempotency.Response {
	return &idempotency.Response{Status: 201, Body: []byte(body)}
}

// broken returns a response that releases the key.
func broken(body string) *idempotency.Response {
	return &idempotency.Response{Status: 500, Body: []byte(body)}
}

// failed returns the error that the client of a run gets if no upstream has answered.
func failed(status int) *idempotency.Response {
	return &idempotency.Response{Status: status, Failed: true}
}

// result is how a run was settled.
type result string

const (
	resultKept     result = "kept"
	resultReleased result = "released"
	resultHeld     result = "held"
	resultNotSent  result = "unsent"
	resultFenced   result = "fenced"
	resultLost     result = "lost"
	// resultTrying: the engine goes on trying to store the end of the run.
	resultTrying result = "trying"
)

// ended settles a run and returns the result.
func ended(run *engine.Run, end idempotency.End) result { return resultOf(run.Settle(end, nil)) }

func resultOf(s idempotency.Settlement, err error) result {
	switch {
	case errors.Is(err, idempotency.ErrFenced):
		return resultFenced
	case errors.Is(err, idempotency.ErrGone):
		return resultLost
	case err != nil:
		return resultTrying
	case s.State == idempotency.Complete:
		return resultKept
	case s.State == idempotency.Held:
		return resultHeld
	case !s.Counted:
		return resultNotSent
	default:
		return resultReleased
	}
}

// end settles a run with a whole response.
func end(run *engine.Run, response *idempotency.Response) result {
	return ended(run, idempotency.End{How: idempotency.Answered, Response: response})
}

// wantEnd settles a run with a whole response and checks the result.
func wantEnd(t *testing.T, run *engine.Run, response *idempotency.Response, want result) {
	t.Helper()
	wantStored(t, run, response, want, nil)
}

// wantStored is wantEnd with an onStored function.
func wantStored(t *testing.T, run *engine.Run, response *idempotency.Response, want result, onStored func()) {
	t.Helper()
	storetest.Equal(t, resultOf(run.Settle(idempotency.End{How: idempotency.Answered, Response: response}, onStored)), want, "the run ended")
}

// stored returns the record of the key as the shared store has it.
func (r *replica) stored(req engine.Request) *idempotency.Record {
	r.t.Helper()
	record, _, err := r.link.to().Lookup(context.Background(), req.Key)
	if err != nil {
		r.t.Fatal(err)
	}
	return record
}

// wantState checks state and attempts of the record of the key.
func (r *replica) wantState(req engine.Request, state idempotency.State, attempt int) {
	r.t.Helper()
	switch record := r.stored(req); {
	case record == nil:
		r.t.Errorf("the store has no record, want one %s", state)
	case record.State != state || record.Attempt != attempt:
		r.t.Errorf("the record is %s with attempt %d, want %s with attempt %d", record.State, record.Attempt, state, attempt)
	}
}
