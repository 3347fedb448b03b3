package engine

import (
	"errors"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Run is a request that has claimed its key, and may now be carried out. Whoever has
// the Run carries the request out, and then calls End, exactly once.
type Run struct {
	engine  *Engine
	flight  *flight
	claim   idempotency.Claim
	policy  idempotency.Policy
	timeout time.Duration
	record  *idempotency.Record
	lease   lease
	// givenUpAt is when the lease is renewed no more, though the run has not ended; zero
	// for never.
	givenUpAt time.Time
	// warned is when the log was last told that the lease could not be renewed.
	warned time.Time
	// lapsed names the run whose claim this one has taken over, "" for none.
	lapsed string
	// facts are what the caller knows of the run's end, for the log.
	facts []zap.Field
	// holder holds the room of the response until the engine no longer needs it.
	holder Holder
	// wasLost says that the store has lost the claim once, and with it what the run was
	// to replace. The claim may have been written again.
	wasLost atomic.Bool
	// settling is when the run ended, and its end was first to be stored. Its retention counts
	// from then, to the second.
	settling time.Time
}

// newRun returns the run of a claim. Its lease is not renewed yet.
func (e *Engine) newRun(f *flight, c idempotency.Claim, req Request, got idempotency.Claimed) *Run {
	c.Follows = got.Record.Follows
	r := &Run{
		engine: e, flight: f, claim: c, policy: req.Policy, timeout: req.Timeout, record: got.Record,
	}
	if got.Previous != nil && got.Previous.State == idempotency.InFlight && got.Previous.Token != c.Token {
		r.lapsed = got.Previous.ExecutionID
		e.options.Observer.TookOver()
		r.logger().Warn("lapsed: took over a claim whose lease was not renewed",
			zap.String("lapsed_execution_id", got.Previous.ExecutionID),
			zap.Time("lease_until", got.Previous.LeaseUntil))
	}
	if r.timeout > 0 {
		r.givenUpAt = time.Now().Add(r.timeout + c.Lease)
	}
	return r
}

// Record returns a copy of the record that the claim has written.
func (r *Run) Record() *idempotency.Record {
	record := *r.record
	return &record
}

// ExecutionID names the run to the upstream and to clients.
func (r *Run) ExecutionID() string { return r.record.ExecutionID }

// Token is the token of the run's claim, which nobody else knows.
func (r *Run) Token() string { return r.record.Token }

// ParentID names the run that a forced run repeats; "" for other runs.
func (r *Run) ParentID() string { return r.record.ParentID }

// Lapsed names the run whose claim this one has taken over, because its lease was not
// renewed; "" for none.
func (r *Run) Lapsed() string { return r.lapsed }

// Attempt says which run of the key this is, counted from 1. Runs that certainly did
// not reach the upstream are not counted.
func (r *Run) Attempt() int { return r.record.Attempt }

// replaces returns the record that a forced run is meant to replace. It returns nil
// for other runs. It also returns nil if the store has lost the claim: then the
// store has lost that record too.
func (r *Run) replaces() *idempotency.Record {
	if r.wasLost.Load() {
		return nil
	}
	return r.record.Replaces
}

// current returns the record of the run as the store has it, or had it last. Nobody may
// change it.
func (r *Run) current() *idempotency.Record {
	replaces := r.replaces()
	if replaces == r.record.Replaces {
		return r.record
	}
	record := r.Record()
	record.Replaces = replaces
	return record
}

// Stream says that the response of the run is coming, and that duplicates in this
// process can follow it as it comes: they get a [Follow] with live. Nil is nothing to
// follow.
func (r *Run) Stream(live any) {
	r.engine.mu.Lock()
	defer r.engine.mu.Unlock()
	r.flight.live = live
	r.flight.tellLocked()
}

// Holder holds the room of a response.
type Holder interface {
	// Unkeep says that one who needed the response no longer does.
	Unkeep()
}

// HeldBy sets whom to tell, once, when the engine no longer needs the response that End
// was given: the caller can then give its room back. That is when End returns or, if the
// store fails, when the end is stored or given up. A local copy may keep the response for
// longer, under a limit of its own, so its bytes must never be used again for something
// else. HeldBy must be called before End.
func (r *Run) HeldBy(holder Holder) { r.holder = holder }

func (r *Run) responseDone() {
	if r.holder != nil {
		r.holder.Unkeep()
		r.holder = nil
	}
}

// Explain sets what the caller knows of the run and its end, for the log line that says
// what has become of the claim. Explain must be called before End.
func (r *Run) Explain(facts ...zap.Field) { r.facts = facts }

// End settles the claim of the run. The caller says how the run ended, except for
// Attempt and Replaces, which End sets itself. Without an error the settlement is
// stored. Errors:
//   - [idempotency.ErrFenced]: another request has taken the key over, or
//     [Engine.Abandon] has ended the run. Nothing was stored.
//   - [idempotency.ErrGone]: the store has lost the claim. The key was to be
//     released, which needs no record, so nothing was stored.
//   - Any other error: the engine goes on trying to store the settlement. Until then
//     it answers the duplicates that this process gets.
func (r *Run) End(end idempotency.End) (idempotency.Settlement, error) {
	if !r.lease.end() {
		r.responseDone()
		return idempotency.Settlement{}, idempotency.ErrFenced
	}
	return r.end(end)
}

func (r *Run) end(end idempotency.End) (idempotency.Settlement, error) {
	r.engine.beginStoring(r.flight)
	told, trying := false, false
	defer func() {
		if !trying {
			r.responseDone()
		}
		if !told { // the store has panicked: the requests that wait must ask it again
			r.engine.end(r.flight, over, idempotency.Claimed{}, nil)
			r.engine.addUnsettled(-1)
			r.engine.options.Observer.RunEnded(ResultLost)
		}
	}()
	read := r.engine.beginReading()
	r.settling = read.asked
	s, err := r.settle(&end)
	told = true
	switch {
	case err == nil, errors.Is(err, idempotency.ErrGone):
		ended := r.ended(s, time.Now())
		if err == nil {
			r.copyRun(read, s, ended)
		}
		r.engine.end(r.flight, over, ended, nil)
	case errors.Is(err, idempotency.ErrFenced):
		// The requests that waited must ask the store, to get the answer of the run
		// that has taken the key over, as all other requests do.
		r.engine.end(r.flight, over, idempotency.Claimed{}, nil)
	default:
		r.logger().Error("the run's end could not be stored; trying on",
			zap.String("state", string(s.State)), zap.Error(err))
		trying = true
		r.settleLater(end, s)
		return s, err
	}
	r.engine.addUnsettled(-1)
	r.report(s, err)
	return s, err
}

// settle concludes what becomes of the claim, and stores it, with no second try. A response
// that the store could never keep is left out of the end, now and later: to wait for room
// would be no use.
func (r *Run) settle(end *idempotency.End) (idempotency.Settlement, error) {
	for {
		s, err := r.settleWith(*end)
		if !errors.Is(err, idempotency.ErrTooLarge) {
			return s, err
		}
		reduced := end.Response.Reduced()
		if reduced == nil {
			return s, err
		}
		r.logger().Warn("too large: the store has no room for the response, and would not if it kept nothing else; its body is not kept",
			zap.Int("status", reduced.Status), zap.Int("bytes", len(end.Response.Body)))
		end.Response = reduced
		r.responseDone()
	}
}

// settleWith is settle for a response that the store may find too large.
func (r *Run) settleWith(end idempotency.End) (idempotency.Settlement, error) {
	s := r.conclude(end)
	err := r.engine.settle(r, s)
	if errors.Is(err, idempotency.ErrGone) && r.replaces() != nil {
		// With the claim the store has lost the response that stood behind this run:
		// what is to be held, or kept as the last attempt, has to be stored now.
		r.wasLost.Store(true)
		s = r.conclude(end)
		err = r.engine.settle(r, s)
	}
	return s, err
}

// WasLast reports whether no attempt is left after this one.
func (r *Run) WasLast() bool {
	most := r.policy.MaxAttempts
	return most > 0 && r.record.Attempt-r.record.FreedAttempts >= most
}

func (r *Run) conclude(end idempotency.End) idempotency.Settlement {
	end.Attempt = r.record.Attempt - r.record.FreedAttempts
	end.Replaces = r.replaces() != nil
	s := idempotency.Conclude(end, r.policy)
	if ago := time.Since(r.settling).Truncate(time.Second); ago > 0 {
		s.Ago, s.Retention = ago, max(s.Retention-ago, min(s.Retention, leastRetention))
	}
	return s
}

// leastRetention is for an end that could not be stored before its retention was over. It is
// stored all the same: else nobody would know how the run has ended.
const leastRetention = time.Second

// ended returns how the flight has ended: what requests get that waited for the run,
// or that come before the settlement is stored. A forced run that keeps no response
// still has an answer for the requests that waited. So it is returned under the
// record of the run, although the record before counts again in the store.
func (r *Run) ended(s idempotency.Settlement, now time.Time) idempotency.Claimed {
	record := r.current().Settled(s, now)
	if s.State == idempotency.Released && r.replaces() != nil {
		record = r.record
	}
	return idempotency.Claimed{Record: record, Response: s.Response, Now: now}
}

// report counts and logs what has become of the claim of the run.
func (r *Run) report(s idempotency.Settlement, err error) {
	r.engine.options.Observer.RunEnded(resultOf(s, err))
	if err == nil && s.State == idempotency.Complete {
		return
	}
	log := r.logger().With(r.facts...)
	switch {
	case errors.Is(err, idempotency.ErrFenced):
		log.Warn("the run ended after another owner had taken its key over; its response is not stored")
	case errors.Is(err, idempotency.ErrGone):
		log.Warn("the run ended after the store had lost its claim")
	case s.State == idempotency.Held:
		log.Warn("held: whether the run was executed is unknown; an operator has to release the key")
	case s.State == idempotency.Released && r.replaces() != nil:
		log.Info("the forced run kept nothing; the response before it stays", zap.Bool("sent", s.Counted))
	case s.State == idempotency.Released && !s.Counted:
		log.Info("released: the request was not sent")
	case s.State == idempotency.Released && r.WasLast():
		log.Warn("exhausted: whether the last attempt that is allowed was executed is unknown; an operator has to release the key")
	case s.State == idempotency.Released:
		status := 0
		if s.Response != nil {
			status = s.Response.Status
		}
		log.Info("released: the key is free for a retry", zap.Int("status", status))
	}
}

func (r *Run) logger() *zap.Logger {
	return r.engine.log.With(
		zap.Stringer("key", r.claim.Key),
		zap.String("execution_id", r.record.ExecutionID),
		zap.Int("attempt", r.record.Attempt),
		zap.String("provider", r.claim.Provider),
		r.engine.loggedID(r.claim.DeliveryID, r.claim.SealedBy))
}

// loggedID returns a delivery ID as a field of a log line, unless it is sealed. What
// the store encrypts does not stand in the log either.
func (e *Engine) loggedID(deliveryID, sealedBy string) zap.Field {
	if e.store.Sealer() != nil || sealedBy != "" {
		return zap.Skip()
	}
	return zap.String("delivery_id", deliveryID)
}
