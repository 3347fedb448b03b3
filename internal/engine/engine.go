// Package engine coordinates what one process does with the keys of one store. Requests
// of one key that arrive together are a flight: the first one asks the store, and the
// others use its result (flight.go). For a run the engine renews the lease (lease.go),
// and stores the settlement, with retries while the store fails (settlement.go). It watches
// the runs of other replicas (watcher.go), withdraws claims whose reply was lost
// (withdrawal.go), and answers duplicates from local copies (copies.go).
//
// Package idempotency has the rules; the engine only applies them.
package engine

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/seal"
)

// Options are what an engine needs besides its store.
type Options struct {
	// Timeout is the time limit for one operation of the store, until
	// [Settings.Timeout] is set.
	Timeout time.Duration
	// Logger logs each claim that was taken over, lost or not settled, and each key
	// that was released or held.
	Logger *zap.Logger
	// NewToken returns the token of a new claim: unguessable, and unique over all replicas.
	NewToken func() string
	// NewExecutionID returns the public name of a new run.
	NewExecutionID func() string
	// Room returns an error while there is no memory for another run; nil for no such
	// limit. It must not call the engine.
	Room func() error
	// Copies are the local copies of this process; nil for none. Close evicts those of its
	// engine.
	Copies *Copies
	// Unstored limits the bodies that are not stored; nil for no limit.
	Unstored *Unstored
	// Observer is notified of what the engine does; nil for none.
	Observer Observer
}

// Settings are what can change while the store is open.
type Settings struct {
	Limits Limits
	// Timeout is the time limit for one operation of the store; 0 leaves it as it is.
	Timeout time.Duration
	// Sealer encrypts what the store keeps; nil encrypts nothing.
	Sealer *seal.Sealer
}

// Engine does what the package comment says, for one store. All methods may be called
// concurrently.
type Engine struct {
	store       *seal.Store
	options     Options
	log         *zap.Logger
	unsubscribe func()
	inProcess   bool                 // the store is an inProcess
	impaired    idempotency.Impaired // the store, if it is one; else nil
	refusals    refusals
	timeout     atomic.Int64 // a time.Duration
	shared      atomic.Pointer[sharedContext]

	copies      *ownCopies
	flights     flights
	withdrawals withdrawals
	// unsettled counts the requests that are claiming, the runs in flight, and the ends
	// of runs that are not stored yet. observed counts those that are [Request.Observed], and inner those
	// that are [Request.Inner].
	unsettled, observed, inner tally

	// ctx ends when the engine is closed, and with it the work in the background.
	ctx        context.Context
	cancel     context.CancelFunc
	background sync.WaitGroup
	// retries is the context of the attempts to store what could not be stored. Settlements that are
	// not stored when it ends are given up. Close ends it, too.
	retries  atomic.Pointer[retries]
	retrying atomic.Int64 // runs
	// dropBodies ends bodies: what is not stored by then is stored without its body.
	bodies     context.Context
	dropBodies context.CancelCauseFunc
	failing    failing
	// closing guards background: nothing may be added to it once Close waits for it.
	closing sync.Mutex
}

// New returns an engine for a store. It has no limits and no encryption until
// [Engine.Configure] sets them. [Engine.Close] closes the store too.
func New(store idempotency.Store, options Options) *Engine {
	if options.Observer == nil {
		options.Observer = noopObserver{}
	}
	if options.Copies == nil {
		options.Copies = NewCopies(0)
	}
	ctx, cancel := context.WithCancel(context.Background())
	e := &Engine{
		store:   seal.Around(store, nil),
		options: options,
		log:     options.Logger,
		ctx:     ctx,
		cancel:  cancel,
	}
	e.flights.byKey = make(map[idempotency.Key]*flight)
	e.withdrawals.engine = e
	e.copies = &ownCopies{options.Copies, e.store, ctx}
	e.startRetries()
	e.bodies, e.dropBodies = context.WithCancelCause(ctx)
	_, e.inProcess = store.(inProcess)
	e.impaired, _ = store.(idempotency.Impaired)
	e.timeout.Store(int64(options.Timeout))
	e.unsubscribe = store.Subscribe(e.wake)
	return e
}

// Configure changes the settings, for all requests from now on.
func (e *Engine) Configure(s Settings) {
	e.flights.mu.Lock()
	e.flights.limits = s.Limits
	e.flights.mu.Unlock()
	if s.Timeout > 0 {
		e.timeout.Store(int64(s.Timeout))
	}
	before := e.store.Sealer()
	e.store.Use(s.Sealer)
	if !slices.Equal(before.KeyIDs(), s.Sealer.KeyIDs()) {
		e.copies.invalidateAll() // what was opened with a removed key is no longer shown
	}
}

// Request is what the engine needs to know about a request.
type Request struct {
	Key    idempotency.Key
	Origin idempotency.Origin
	// Label is passed to [Observer.RunEnded].
	Label string
	// Fingerprint is that of [idempotency.Fingerprint] or [idempotency.NotedFingerprint]; empty for none.
	Fingerprint string
	// Within is [idempotency.Claim.Within].
	Within string
	// Force runs the request again although a response is kept.
	Force  bool
	Policy idempotency.Policy
	// Observed reports whether the request reaches the upstream whatever the engine decides. Only
	// the store's operations count it, and it has a limit of its own ([Limits.InFlight]).
	Observed bool
	// Inner reports whether the request is part of a run of this process, which counts in its place.
	Inner bool
	// Timeout is the time limit of the run, 0 for none. The engine does not renew the lease of a
	// run that takes longer, for example because its client does not read a stream to the
	// end. Then another request can take the key over.
	Timeout time.Duration
	// Wait is how long the request waits for the run of another one. With 0 it is refused at
	// once.
	Wait time.Duration
	// OnWait is called once, when the request starts to wait for a run. It may be nil, and must
	// not block.
	OnWait func()
}

// newClaim returns the claim of a request, without token and execution ID: each call of the store
// needs new ones.
func (e *Engine) newClaim(req Request) idempotency.Claim {
	return idempotency.Claim{
		Key:          req.Key,
		Within:       req.Within,
		Fingerprints: e.store.Sealer().Fingerprints(req.Key, req.Fingerprint),
		Origin:       req.Origin,
		Terms:        req.Policy.Terms,
		Waits:        req.Wait > 0,
		Force:        req.Force,
	}
}

// Claim decides what a request does. It waits while another request runs, for [Request.Wait] at
// most. It returns a [*Run], which the caller must settle, a [Replay], a [Follow] or a
// [Refusal]. Its only error is the context's.
func (e *Engine) Claim(ctx context.Context, req Request) (Decision, error) {
	limit := waitLimit{until: time.Now().Add(req.Wait), onWait: req.OnWait}
	defer limit.stop()
	for {
		c := e.newClaim(req) // in each round, because the encryption keys may have changed
		if decision := e.decideByCopy(c); decision != nil {
			return decision, nil
		}
		m := e.flights.join(c.Key)
		if m.first {
			if run := e.claimForFlight(m.flight, c, req); run != nil {
				return run, nil
			}
		}
		decision, err := e.follow(ctx, &m, c, &limit)
		m.leave()
		if decision != nil || err != nil {
			return decision, err
		}
	}
}

// claimForFlight claims the key for the first request of a flight. It returns a run if the
// request may run. Otherwise it returns nil, and the state of the flight decides for all its
// requests, including the first.
func (e *Engine) claimForFlight(f *flight, c idempotency.Claim, req Request) *Run {
	counted, answered := false, false
	defer func() {
		if counted {
			e.tally(req.Observed, req.Inner).add(-1)
		}
		if !answered { // the store has panicked
			f.end(closed, idempotency.Claimed{}, errors.New("the store failed"))
		}
	}()
	if found, err := e.admitClaim(c, req); err != nil {
		answered = true
		f.end(closed, found, err)
		return nil
	}
	counted = true
	c.Token, c.ExecutionID = e.options.NewToken(), e.options.NewExecutionID()
	read := e.copies.snapshot()
	f.startPoll()
	got, err := e.storeClaim(c, req.Observed)
	answered = true
	if err != nil && got.Record != nil { // the reply was lost; the claim may have been written
		e.withdrawals.add(c, got.Record)
	}
	e.copies.keepClaimed(c.Key, read, got, err)
	switch {
	case err != nil:
		f.end(closed, e.copies.stale(c.Key, err), err)
	case got.Verdict == idempotency.ReplayKept && got.Response == nil && got.Record.LargeBody == 0:
		// The store contradicts itself. Without this error, the requests would ask it again without end.
		f.end(closed, idempotency.Claimed{}, &idempotency.UnreadableError{
			Where: c.Key.String(), Err: idempotency.ErrResponseMissing,
		})
	case got.Verdict == idempotency.Proceed:
		counted = false // settling the run uncounts it
		run := e.newRun(f, c, req, got)
		run.renewFrom(read.asked)
		if exiting := f.setRun(got.Record, run); exiting {
			e.goBackground(run.abandon)
		}
		return run
	case got.Verdict == idempotency.WaitForRun && c.Waits:
		f.setRun(got.Record, nil)
		e.goBackground(func() { f.watch(e, got.Record, got.Now) })
	default:
		f.end(closed, got, nil)
	}
	return nil
}

// storeClaim asks the store for a claim, and reports a refusal because the store is full.
func (e *Engine) storeClaim(c idempotency.Claim, observed bool) (idempotency.Claimed, error) {
	call := e.startCall(context.Background(), OperationClaim, e.Timeout())
	got, err := e.store.Claim(call.ctx, c)
	if errors.Is(err, idempotency.ErrFull) {
		e.observer(observed).Overloaded(LimitMemoryStore)
	}
	return got, call.done(err)
}

// lookup returns the record of a key as the store has it, which may be sealed.
func (e *Engine) lookup(ctx context.Context, key idempotency.Key) (*idempotency.Record, time.Time, error) {
	call := e.startCall(ctx, OperationLookup, e.Timeout())
	record, now, err := e.store.Lookup(call.ctx, key)
	return record, now, call.done(err)
}

// observer returns the observer for a request.
func (e *Engine) observer(observed bool) Observer {
	if observed {
		return noopObserver{}
	}
	return e.options.Observer
}

// tally returns the counter for a request that is not settled.
func (e *Engine) tally(observed, inner bool) *tally {
	switch {
	case observed:
		return &e.observed
	case inner:
		return &e.inner
	default:
		return &e.unsettled
	}
}

// Timeout returns the time limit for one operation of the store.
func (e *Engine) Timeout() time.Duration { return time.Duration(e.timeout.Load()) }

// withTimeout is context.WithTimeout, except that an inProcess store needs no timeout: it never
// blocks. The claims of all requests, and the settlements of most, have no other end than the same
// timeout, so those that start at about the same time share a context and its timer.
func (e *Engine) withTimeout(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	switch {
	case e.inProcess:
		return ctx, func() {}
	case ctx == context.Background() && timeout == e.Timeout():
		return e.sharedTimeout(timeout), func() {}
	default:
		return context.WithTimeout(ctx, timeout)
	}
}

// sharedContext is the context of the operations that start before a time, with one timeout.
type sharedContext struct {
	context.Context
	timeout time.Duration
	until   time.Time
}

// sharedTimeout returns a context that ends after the timeout, or up to 2 % of it earlier.
func (e *Engine) sharedTimeout(timeout time.Duration) context.Context {
	now := time.Now()
	if s := e.shared.Load(); s != nil && s.timeout == timeout && now.Before(s.until) {
		return s.Context
	}
	ctx, cancel := context.WithDeadline(context.Background(), now.Add(timeout))
	_ = cancel // not before the deadline: other operations have the context too
	e.shared.Store(&sharedContext{ctx, timeout, now.Add(timeout / 50)})
	return ctx
}

// Close stops the background work and closes the store. It does not wait for runs:
// [Engine.Drain] and [Engine.Finish] do.
func (e *Engine) Close() error {
	e.stopRetries(errExiting)
	e.closing.Lock()
	e.cancel()
	e.closing.Unlock()
	e.unsubscribe()
	e.background.Wait()
	e.copies.invalidateAll()
	return e.store.Close()
}

// goBackground runs f in a goroutine for which Close waits. f must return soon after
// e.ctx has ended.
func (e *Engine) goBackground(f func()) {
	e.closing.Lock()
	defer e.closing.Unlock()
	if e.ctx.Err() != nil {
		go f() // a request has outlived its engine; f returns soon
		return
	}
	e.background.Go(f)
}

// pause waits for d, and returns true. If the context ends before that, it returns false at
// once.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
