// Package engine is what one process does around the keys of one store. If a process
// has several requests with the same key at the same time, only the first one asks
// the store, and the others follow what it learns: together they are a flight
// (flight.go). For a run the engine renews the lease (lease.go) and stores the
// end, again and again if the store fails (settlement.go). It also watches the runs of
// other replicas (watcher.go), and withdraws claims whose reply was lost
// (withdrawal.go). What it knows to be complete it answers from local copies
// (copies.go).
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
	// that was released or is held.
	Logger *zap.Logger
	// NewToken returns the token of a new claim. It cannot be guessed, and no two replicas
	// ever make the same one.
	NewToken func() string
	// NewExecutionID returns the public name of a new run.
	NewExecutionID func() string
	// Room returns an error while no new run may begin because there is no room for what
	// it would hold; nil for no such limit. It must not call the engine.
	Room func() error
	// Copies are the local copies of this process; nil for none. Those of an engine are
	// evicted when it is closed.
	Copies *Copies
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
	inProcess   bool         // the store is an inProcess
	timeout     atomic.Int64 // a time.Duration

	copies      *ownCopies
	flights     flights
	withdrawals withdrawals
	// unsettled counts the requests that are claiming, the runs in flight, and the ends
	// of runs that are not stored yet. observed counts those that are [Request.Observed].
	unsettled, observed tally

	// ctx ends when the engine is closed, and with it the work in the background.
	ctx        context.Context
	cancel     context.CancelFunc
	background sync.WaitGroup
	// storing ends, with ctx or before it, when ends that are not stored yet are given up.
	retryCtx    context.Context
	stopRetries context.CancelFunc
	// closing is a lock: no work may be added to background while Close begins to
	// wait for it.
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
	e.retryCtx, e.stopRetries = context.WithCancel(ctx)
	_, e.inProcess = store.(inProcess)
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
	// Label is what the run counts under ([Observer.RunEnded]).
	Label string
	// Fingerprint is from [idempotency.Fingerprint]; empty if none is taken.
	Fingerprint string
	// Within is the execution ID that the request came in with ([idempotency.Claim]);
	// empty for most requests.
	Within string
	// Force runs again on purpose although a response is kept.
	Force  bool
	Policy idempotency.Policy
	// Observed reports whether the request is carried out whatever the engine decides. It is in
	// no count but those of the store's operations, and takes no place from other runs
	// ([Limits.InFlight]).
	Observed bool
	// Timeout is the time limit of the run, 0 for none. If a run goes on for longer,
	// for example because its client does not read a stream to the end, its lease is
	// no longer renewed, and another request can take the key over.
	Timeout time.Duration
	// Wait is how long the request waits while another one runs. With 0 it is
	// refused at once.
	Wait time.Duration
	// OnWait is called once when the request begins to wait for a run; it may be nil, and
	// must not block.
	OnWait func()
}

// newClaim returns the claim of a request, still without token and execution ID. Only a
// request that asks the store needs these, and it needs new ones each time.
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

// Claim decides what a request does, and waits if it has to wait for a run. It
// returns a [*Run], which the caller must settle, a [Replay], a [Follow] or a
// [Refusal]. The only error is that of the context: the client has disconnected.
func (e *Engine) Claim(ctx context.Context, req Request) (Decision, error) {
	limit := waitLimit{until: time.Now().Add(req.Wait), onWait: req.OnWait}
	defer limit.stop()
	for {
		c := e.newClaim(req) // anew in each round: the encryption keys may have changed
		if decision := e.decideByCopy(c); decision != nil {
			return decision, nil
		}
		m := e.flights.join(c.Key)
		if m.part == first {
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

// claimForFlight asks the store, for the first request of a flight. It returns a run if the
// request may run. Otherwise it returns nil, and the flight shows all its requests,
// the first one too, what to do.
func (e *Engine) claimForFlight(f *flight, c idempotency.Claim, req Request) *Run {
	counted, answered := false, false
	defer func() {
		if counted {
			e.tally(req.Observed).add(-1)
		}
		if !answered { // the store has panicked: the others must not wait for a reply
			f.end(runOver, idempotency.Claimed{}, errors.New("the store failed"))
		}
	}()
	if found, err := e.admitClaim(c, req.Observed); err != nil {
		answered = true
		f.end(runOver, found, err)
		return nil
	}
	counted = true
	c.Token, c.ExecutionID = e.options.NewToken(), e.options.NewExecutionID()
	read := e.copies.snapshot()
	f.startPoll()
	got, err := e.storeClaim(c, req.Observed)
	answered = true
	if err != nil && got.Record != nil { // the reply was lost, and the claim perhaps written
		e.withdrawals.add(c, got.Record)
	}
	e.copies.keepClaimed(c.Key, read, got, err)
	switch {
	case err != nil:
		f.end(runOver, e.copies.stale(c.Key, err), err)
	case got.Verdict == idempotency.ReplayKept && got.Response == nil && got.Record.LargeBody == 0:
		// A store must not answer so. Without this error, the requests would ask it
		// again and again.
		f.end(runOver, idempotency.Claimed{}, &idempotency.UnreadableError{
			Where: c.Key.String(), Err: idempotency.ErrResponseMissing,
		})
	case got.Verdict == idempotency.Proceed:
		counted = false // from now on the run is
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
		f.end(runOver, got, nil)
	}
	return nil
}

// storeClaim asks the store for a claim. One that is refused because the store is full counts.
func (e *Engine) storeClaim(c idempotency.Claim, observed bool) (idempotency.Claimed, error) {
	call := e.startCall(context.Background(), OperationClaim, e.Timeout())
	got, err := e.store.Claim(call.ctx, c)
	if errors.Is(err, idempotency.ErrFull) {
		e.observer(observed).Overloaded(LimitMemoryStore)
	}
	return got, call.done(err)
}

// lookup returns the record of a key as it is stored.
func (e *Engine) lookup(ctx context.Context, key idempotency.Key) (*idempotency.Record, time.Time, error) {
	call := e.startCall(ctx, OperationLookup, e.Timeout())
	record, now, err := e.store.Lookup(call.ctx, key)
	return record, now, call.done(err)
}

// observer returns what is notified of a request.
func (e *Engine) observer(observed bool) Observer {
	if observed {
		return noopObserver{}
	}
	return e.options.Observer
}

// tally returns where a request counts while it is not settled.
func (e *Engine) tally(observed bool) *tally {
	if observed {
		return &e.observed
	}
	return &e.unsettled
}

// Timeout is the time limit for one operation of the store.
func (e *Engine) Timeout() time.Duration { return time.Duration(e.timeout.Load()) }

// withTimeout limits how long the store may take. An inProcess store never blocks, and needs no
// limit.
func (e *Engine) withTimeout(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if e.inProcess {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, timeout)
}

// Close ends the work in the background and closes the store. It does not wait for
// runs: [Engine.Drain] and [Engine.Finish] do.
func (e *Engine) Close() error {
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
		go f() // the engine is closed and its request is still there; f returns by itself
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
