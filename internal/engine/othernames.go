package engine

import (
	"context"
	"errors"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// While encryption keys are rotated, replicas differ in the name under which they
// claim the same operation (names.go). So a claim under one name is followed by a
// look at the others. What is found there decides:
//
//   - nothing, or a record that was released: the claim stands, and its request
//     runs;
//   - a run in flight under a smaller name, in the order of bytes: the claim is
//     given back, and its request goes on under that name;
//   - a run in flight under a larger name: it may be one whose claim is about to
//     be given back for ours, so it gets namePatience for that, and then as above;
//   - anything else (a response, a held key): the request goes on under that name.
//
// No two replicas run beside each other. Each writes its claim before it looks,
// so at least one of two sees the other's, and who sees a claim in flight does not
// run. Of two that see each other the larger name gives way and the smaller one
// sees that, so that one of them runs.

// namePatience is how long a claim under a larger name may take to be given back.
// A claim of ours is not renewed meanwhile: it is a third of the lease at most.
const namePatience = 250 * time.Millisecond

// maxMoves bounds how often a request goes on under another name.
const maxMoves = 16

// at returns the request as it is under another of its names, and as it is for
// nil.
func (r Request) at(name *idempotency.Name) Request {
	if name == nil || name.Key == r.Key {
		return r
	}
	moved := r
	moved.Key, moved.Fingerprint = name.Key, name.Fingerprint
	moved.OtherNames = []idempotency.Name{{Key: r.Key, Fingerprint: r.Fingerprint}}
	for _, other := range r.OtherNames {
		if other.Key != name.Key {
			moved.OtherNames = append(moved.OtherNames, other)
		}
	}
	return moved
}

// elsewhere returns the name under which a request goes on that has just claimed,
// nil if it may run. With a name, or an error, the claim has been given back.
func (e *Engine) elsewhere(c idempotency.Claim, req Request, got idempotency.Claimed) (*idempotency.Name, error) {
	patience := time.Now().Add(min(namePatience, c.Lease/3))
	for _, name := range req.OtherNames {
		decides, err := e.decides(name, c, got.Previous, patience)
		if decides || err != nil {
			e.giveBack(c, got.Record)
			return &name, err
		}
	}
	return nil, nil
}

// decides reports whether the record under another name decides on a request,
// whose claim took the place of a record of its own (nil: none).
func (e *Engine) decides(name idempotency.Name, c idempotency.Claim, previous *idempotency.Record, patience time.Time) (bool, error) {
	for pause := 2 * time.Millisecond; ; pause *= 2 {
		found, now, err := e.lookup(context.Background(), idempotency.Sealed(e.store, c.Sealer), name.Key)
		if err != nil {
			return false, err
		}
		if found == nil || found.State != idempotency.InFlight || found.Lapsed(now) {
			return recordDecides(found, name, c, previous, now), nil
		}
		isSameRun := c.SameRun != "" && c.SameRun == found.ExecutionID
		if isSameRun || name.Key.Before(c.Key) || !time.Now().Before(patience) || !e.pause(pause) {
			return true, nil
		}
	}
}

// recordDecides is decides for a record that is not in flight.
func recordDecides(found *idempotency.Record, name idempotency.Name, c idempotency.Claim, previous *idempotency.Record, now time.Time) bool {
	switch {
	case found == nil:
		return false
	case found.State == idempotency.Released:
		c.Fingerprint = name.Fingerprint
		return idempotency.Decide(found, c, now) != idempotency.Proceed // but for a limit of attempts it is free
	case found.State == idempotency.Complete && previous != nil && previous.State == idempotency.Complete:
		return false // a forced claim replaces the one that it came upon first
	default:
		return true
	}
}

// giveBack releases a claim under which nothing was sent. Whoever waits for it is
// woken. A record that has no history need not stay.
func (e *Engine) giveBack(c idempotency.Claim, claimed *idempotency.Record) {
	s := idempotency.Settlement{State: idempotency.Released, Retention: c.Retention}
	if claimed.Attempt == 1 {
		s.Retention = c.Lease
	}
	err := e.settleOnce(c, claimed, s)
	if err != nil && !errors.Is(err, idempotency.ErrFenced) && !errors.Is(err, idempotency.ErrGone) {
		e.withdraw(c, claimed)
	}
}
