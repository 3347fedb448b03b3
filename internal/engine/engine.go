// Package engine is what one process does around the keys of one store. Of all
// requests that it holds for a key at the same time one asks the store, and the
// others follow what becomes of it: together they are a flight (flight.go). Around
// that it renews leases (renewals.go), stores the ends of runs, again where a store
// fails (retry.go), follows the runs of other replicas (watch.go), and takes back
// claims whose reply was lost (withdraw.go).
//
// The rules that it applies are those of package idempotency.
package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/seal"
)

// Options are what an engine is made of besides its store.
type Options struct {
	// Timeout limits one operation of the store.
	Timeout time.Duration
	// Logger gets takeovers, released and held keys, and every claim that was lost
	// or could not be settled.
	Logger *zap.Logger
	// NewToken makes an owner token: unguessable, unique over all replicas.
	NewToken func() string
	// NewExecutionID makes the public name of a run.
	NewExecutionID func() string
}

// Settings are what may change while the store is open.
type Settings struct {
	Limits Limits
	// Sealer encrypts what the store keeps; nil encrypts nothing.
	Sealer *seal.Sealer
}

// Engine owns what one process does around the keys of one store. All methods may
// be called concurrently.
type Engine struct {
	store       *seal.Store
	options     Options
	log         *zap.Logger
	unsubscribe func()

	// ctx ends what goes on in the background when the engine is closed.
	ctx        context.Context
	cancel     context.CancelFunc
	background sync.WaitGroup
	// closing keeps new background work and Close apart.
	closing sync.Mutex

	mu          sync.Mutex
	limits      Limits
	overloads   Overloads
	flights     map[idempotency.Key]*flight
	withdrawals []*withdrawal
	// unsettled counts runs and responses still to be stored, inDoubt claims still
	// to be withdrawn.
	unsettled, inDoubt tally
	// waiting counts requests that follow a flight, claiming those that ask the
	// store.
	waiting, claiming int
}

// New returns an engine over a store, without limits and without encryption until
// [Engine.Configure]. Closing it closes the store.
func New(store idempotency.Store, options Options) *Engine {
	ctx, cancel := context.WithCancel(context.Background())
	e := &Engine{
		store:   seal.Around(store, nil),
		options: options,
		log:     options.Logger,
		ctx:     ctx,
		cancel:  cancel,
		flights: make(map[idempotency.Key]*flight),
	}
	e.unsubscribe = store.Subscribe(e.wake)
	return e
}

// Configure changes the settings, for all requests from now on.
func (e *Engine) Configure(s Settings) {
	e.mu.Lock()
	e.limits = s.Limits
	e.mu.Unlock()
	e.store.Use(s.Sealer)
}

// Request is what the engine has to know of a request.
type Request struct {
	Key    idempotency.Key
	Origin idempotency.Origin
	// Fingerprint is that of [idempotency.Fingerprint], plain; empty if none is
	// taken.
	Fingerprint string
	// SameRun is the execution ID that the request came in with, if any.
	SameRun string
	// Force runs again on purpose where a response is kept.
	Force  bool
	Policy idempotency.Policy
	// Timeout is the limit of one run. A run that is not ended by then (its
	// client reads a stream no further, say) is no longer renewed. 0: no limit.
	Timeout time.Duration
	// Wait is how long a duplicate waits for the run in flight; 0 refuses it at
	// once.
	Wait time.Duration
}

// claimOf returns the request's claim, but for token and execution ID, which it
// gets when it asks the store.
func (e *Engine) claimOf(req Request) idempotency.Claim {
	return idempotency.Claim{
		Key:          req.Key,
		SameRun:      req.SameRun,
		Fingerprints: e.store.Sealer().Fingerprints(req.Key, req.Fingerprint),
		Origin:       req.Origin,
		Terms:        req.Policy.Terms,
		Waits:        req.Wait > 0,
		Force:        req.Force,
	}
}

// Begin decides what a request does. It returns a [*Run], which must be ended,
// a [Replay], a [Refusal] or a [SameRun]. The error is that of the context: the
// client is gone and there is nobody to answer.
func (e *Engine) Begin(ctx context.Context, req Request) (Decision, error) {
	limit := time.NewTimer(req.Wait)
	defer limit.Stop()
	c := e.claimOf(req)
	for {
		f, part, err := e.join(c.Key)
		if err != nil {
			return refusalFor(err), nil
		}
		if part == first {
			if run := e.claim(ctx, f, c, req); run != nil {
				return run, nil
			}
		}
		decision, err := e.follow(ctx, f, part, c, limit.C)
		e.leave(f, part)
		if decision != nil || err != nil {
			return decision, err
		}
	}
}

// claim asks the store for the first request of a flight. It returns a run if
// the request may run; else the flight, as it then stands, tells the first
// request and all others what to do.
func (e *Engine) claim(ctx context.Context, f *flight, c idempotency.Claim, req Request) *Run {
	told := false
	defer func() {
		if !told { // a panic in the store must not leave the others waiting for ever
			e.end(f, over, idempotency.Claimed{}, errors.New("the store failed"))
		}
	}()
	c.Token, c.ExecutionID = e.options.NewToken(), e.options.NewExecutionID()
	got, err := e.ask(ctx, c)
	told = true
	switch {
	case err != nil:
		e.end(f, over, idempotency.Claimed{}, err)
	case got.Verdict == idempotency.ReplayKept && got.Response == nil:
		// Against the contract of stores; asking again and again would never end.
		e.end(f, over, idempotency.Claimed{}, &idempotency.UnreadableError{
			Where: c.Key.String(), Err: errors.New("it is complete and has no response"),
		})
	case got.Verdict == idempotency.Proceed:
		e.fly(f, got.Record, false)
		return e.newRun(f, c, req, got)
	case got.Verdict == idempotency.WaitForRun && c.Waits:
		e.fly(f, got.Record, true)
		e.goBackground(func() { e.watch(f, got.Record, got.Now) })
	default:
		e.end(f, over, got, nil)
	}
	return nil
}

// ask claims in the store, under its own time limit: that the client went away
// must not leave the claim in doubt. A claim that may have been executed though
// its reply was lost is withdrawn.
func (e *Engine) ask(ctx context.Context, c idempotency.Claim) (idempotency.Claimed, error) {
	if err := e.beginClaim(); err != nil {
		return idempotency.Claimed{}, err
	}
	defer e.endClaim()
	ctx, cancel := e.operation(context.WithoutCancel(ctx))
	defer cancel()
	got, err := e.store.Claim(ctx, c)
	if err != nil && got.Record != nil {
		e.withdraw(c, got.Record)
	}
	return got, err
}

// operation returns the context for one operation of the store.
func (e *Engine) operation(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, e.options.Timeout)
}

// Close ends the background work, without waiting for runs, and closes the
// store.
func (e *Engine) Close() error {
	e.closing.Lock()
	e.cancel()
	e.closing.Unlock()
	e.unsubscribe()
	e.background.Wait()
	return e.store.Close()
}

func (e *Engine) goBackground(f func()) {
	e.closing.Lock()
	defer e.closing.Unlock()
	if e.ctx.Err() != nil {
		go f() // of a request that outlives the engine: it ends by itself, and Close waits no more
		return
	}
	e.background.Go(f)
}

// pause waits, and reports false when the engine is closed.
func (e *Engine) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-e.ctx.Done():
		return false
	}
}
