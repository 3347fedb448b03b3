// Package engine is what one process does around the keys of one store: of all
// requests that it holds for a key at the same time one asks the store, and the
// others follow what becomes of it. The rules that it applies are those of package
// idempotency.
package engine

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"go.uber.org/zap"
)

// Options are what an engine is made of besides its store.
type Options struct {
	// Timeout limits one operation of the store.
	Timeout time.Duration
	// Logger gets takeovers, releases, and every claim that was lost or could
	// not be settled.
	Logger *zap.Logger
	// NewToken makes an owner token: unguessable, unique over all replicas.
	NewToken func() string
	// NewExecutionID makes the public name of a run.
	NewExecutionID func() string
	// OnBusy and OnIdle are called when the engine begins and ends to have work
	// that must outlive the requests: runs, responses still to be stored, claims
	// still to be withdrawn. OnIdle may close the engine. Either may be nil.
	OnBusy, OnIdle func()
}

// Engine owns what one process does around the keys of one store. Of all
// requests that the process holds for a key at the same time, one asks the
// store; the others follow what became of it. All methods may be called
// concurrently.
type Engine struct {
	store       idempotency.Store
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
	flights     map[idempotency.Key]*flight
	withdrawals []*withdrawal
	// unsettled counts runs and responses still to be stored, busy also claims
	// still to be withdrawn.
	unsettled, busy tally
	overloads       Overloads
	// waiting counts requests that follow a flight, claiming those that ask the
	// store.
	waiting, claiming int

	// readers opens what is encrypted for operators' requests.
	readers atomic.Pointer[idempotency.Sealer]
}

// New returns an engine over a store. Closing it closes the store.
func New(store idempotency.Store, options Options) *Engine {
	ctx, cancel := context.WithCancel(context.Background())
	e := &Engine{
		store:   store,
		options: options,
		log:     options.Logger,
		ctx:     ctx,
		cancel:  cancel,
		flights: make(map[idempotency.Key]*flight),
	}
	e.unsubscribe = store.Subscribe(e.wake)
	return e
}

// Policy is what a user chose for the requests of one handler.
type Policy struct {
	// Lease is how long a claim holds without renewal; it is renewed at a third
	// of it.
	Lease time.Duration
	// Retention is how long a record lives from the end of its run.
	Retention time.Duration
	// Timeout is the limit of one run. A run that is not ended by then (its
	// client reads a stream no further, say) is no longer renewed. 0: no limit.
	Timeout time.Duration
	// Wait is how long a duplicate waits for the run in flight; 0 refuses it at
	// once.
	Wait time.Duration
	// Settle says what frees and what holds a key.
	Settle idempotency.SettlePolicy
	// Limits are those of the request's configuration: after a reload, requests
	// of the old one are still held to theirs.
	Limits Limits
}

// Request is what the engine has to know of a request.
type Request struct {
	// Key and Fingerprint are those of the first of the request's names.
	Key         idempotency.Key
	Fingerprint string
	// OtherNames are those under which the operation may have a record, too.
	OtherNames []idempotency.Name
	// Sealer seals and opens what is kept of the key; nil seals nothing.
	Sealer *idempotency.Sealer
	// SameRun is the execution ID that the request came in with, if any.
	SameRun    string
	Provider   string
	DeliveryID string
	// Force runs again on purpose where a response is kept.
	Force  bool
	Policy Policy
}

func (r Request) claim(token, executionID string) idempotency.Claim {
	return idempotency.Claim{
		Key:         r.Key,
		Token:       token,
		ExecutionID: executionID,
		SameRun:     r.SameRun,
		Fingerprint: r.Fingerprint,
		Hold:        r.Policy.Settle.Hold,
		Provider:    r.Provider,
		DeliveryID:  r.DeliveryID,
		Sealer:      r.Sealer,
		Lease:       r.Policy.Lease,
		Retention:   r.Policy.Retention,
		Waits:       r.Policy.Wait > 0,
		Force:       r.Force,
		MaxAttempts: r.Policy.Settle.MaxAttempts,
	}
}

// Begin decides what a request does. It returns a [*Run], which must be ended,
// a [Replay], a [Refusal] or a [SameRun]. The error is that of the context: the
// client is gone and there is nobody to answer.
func (e *Engine) Begin(ctx context.Context, req Request) (Decision, error) {
	limit := time.NewTimer(req.Policy.Wait)
	defer limit.Stop()
	at := req
	for moves := 0; moves < maxMoves; {
		f, first, late, err := e.join(at.Key, at.Policy.Limits)
		if err != nil {
			return about(refusalFor(err), at.Key), nil
		}
		if first {
			if run := e.claim(ctx, f, at); run != nil {
				return run, nil
			}
		}
		decision, err := follow(ctx, f, late, at, limit.C)
		e.leave(f, first)
		if decision != nil || err != nil {
			return about(decision, at.Key), err
		}
		if late {
			// The flight's end is in no store yet, and the request wants another: a
			// forced one, say. It waits for the store like for a run.
			if decision, err := untilGone(ctx, f, limit.C); decision != nil || err != nil {
				return about(decision, at.Key), err
			}
		}
		if at = req.at(f.outcome.elsewhere); at.Key != req.Key {
			moves++
		}
	}
	return Refusal{Reason: ReasonInFlight, Key: req.Key}, nil
}

// claim asks the store for the first request of a flight. It returns a run if
// the request may run; else the flight, as it then stands, tells the first
// request and all others what to do.
func (e *Engine) claim(ctx context.Context, f *flight, req Request) *Run {
	told := false
	defer func() {
		if !told { // a panic in the store must not leave the others waiting for ever
			e.finish(f, outcome{err: errors.New("the store failed")})
		}
	}()
	c := req.claim(e.options.NewToken(), e.options.NewExecutionID())
	got, err := e.ask(ctx, c, req.Policy.Limits)
	var elsewhere *idempotency.Name
	if err == nil && got.Verdict == idempotency.Proceed {
		elsewhere, err = e.elsewhere(c, req, got)
	}
	told = true
	switch {
	case err != nil:
		e.finish(f, outcome{err: err})
	case got.Verdict == idempotency.ReplayKept && got.Response == nil:
		// Against the contract of stores; asking again and again would never end.
		e.finish(f, outcome{err: &idempotency.UnreadableError{Where: c.Key.String(), Err: errors.New("it is complete and has no response")}})
	case elsewhere != nil:
		e.finish(f, outcome{elsewhere: elsewhere})
	case got.Verdict == idempotency.Proceed:
		f.inFlight(got.Record)
		return e.newRun(f, c, req.Policy, got)
	case got.Verdict == idempotency.WaitForRun && c.Waits:
		f.sealer = c.Sealer
		f.inFlight(got.Record)
		e.goBackground(func() { e.watch(f, got.Now) })
	default:
		e.finish(f, outcome{record: got.Record, response: got.Response, now: got.Now})
	}
	return nil
}

// ask claims in the store, under its own time limit: that the client went away
// must not leave the claim in doubt. A claim that may have been executed though
// its reply was lost is withdrawn.
func (e *Engine) ask(ctx context.Context, c idempotency.Claim, limits Limits) (idempotency.Claimed, error) {
	if !c.Operator { // who makes room
		if err := e.beginClaim(limits); err != nil {
			return idempotency.Claimed{}, err
		}
		defer e.endClaim()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.options.Timeout)
	defer cancel()
	got, err := idempotency.Sealed(e.store, c.Sealer).Claim(ctx, c)
	if err != nil && got.Record != nil {
		e.withdraw(c, got.Record)
	}
	return got, err
}

// operation returns the context for one operation of the store that goes on
// without a client.
func (e *Engine) operation() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), e.options.Timeout)
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

// Store returns the engine's store, for operators' requests.
func (e *Engine) Store() idempotency.Store { return idempotency.Sealed(e.store, e.readers.Load()) }

// ReadWith says with which keys operators' requests read what is encrypted. Other
// requests bring their own.
func (e *Engine) ReadWith(sealer *idempotency.Sealer) { e.readers.Store(sealer) }

func (e *Engine) goBackground(f func()) {
	e.closing.Lock()
	defer e.closing.Unlock()
	if e.ctx.Err() != nil {
		go f() // of a request that outlives the engine: it ends by itself, and Close waits no more
		return
	}
	e.background.Go(f)
}
