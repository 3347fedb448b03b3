package engine

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// ErrNoRecord is the error of [Engine.Await] for a key without a record.
var ErrNoRecord = errors.New("the key has no record")

// Await returns what a request gets that waits for the run of a key for as long as that lasts, and that never
// runs itself: a [Replay], a [Follow] or a [Refusal]. Its other errors are the context's.
func (e *Engine) Await(ctx context.Context, key idempotency.Key) (Decision, error) {
	limit := waitLimit{until: time.Now().Add(idempotency.MaxRetention)}
	defer limit.stop()
	for {
		var decision Decision
		var err error
		m := e.flights.join(key)
		if m.first {
			decision, err = e.lookupForFlight(ctx, m.flight)
		}
		if decision == nil && err == nil {
			decision, err = e.follow(ctx, &m, idempotency.Claim{Key: key, Waits: true}, &limit)
		}
		m.leave()
		if decision != nil || err != nil {
			return decision, err
		}
	}
}

// lookupForFlight looks a key up for the first request of a flight that never runs. It returns nil if a run is
// in flight elsewhere. Otherwise the others of the flight ask the store themselves.
func (e *Engine) lookupForFlight(ctx context.Context, f *flight) (Decision, error) {
	watched := false
	defer func() {
		if !watched {
			f.askAgain()
		}
	}()
	f.startPoll()
	record, now, err := e.Lookup(ctx, f.key)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return refusalFor(err), nil
	case record == nil:
		return nil, ErrNoRecord
	case record.State == idempotency.InFlight && !record.Lapsed(now):
		watched = true
		f.setRun(record, nil)
		e.goBackground(func() { f.watch(e, record, now) })
		return nil, nil
	case record.State == idempotency.Complete:
		return Replay{Record: record, Waited: true}, nil
	case record.State == idempotency.Held:
		return Refusal{Reason: ReasonHeld, Record: record}, nil
	}
	response, err := e.response(ctx, f.key, record.Token)
	if response == nil || err != nil { // it is kept for a few seconds only
		response = &idempotency.Response{Status: cmp.Or(record.Status, 502), Failed: true}
	}
	return Replay{Record: record, Response: response, Waited: true}, nil
}
