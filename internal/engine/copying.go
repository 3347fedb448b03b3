package engine

import (
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// decideByCopy answers a request from a copy that the store has confirmed not long ago. Nil
// means that the store must be asked. A request within another run ([idempotency.Claim.Within])
// always asks: the run may be a forced one of this key on another replica, which the copy
// would answer.
func (e *Engine) decideByCopy(c idempotency.Claim) Decision {
	if c.Within != "" {
		return nil
	}
	found, age := e.copies.find(c.Key)
	if found == nil || age >= CopyBound {
		return nil
	}
	if found = e.copies.decoded(found); found == nil {
		return nil
	}
	switch idempotency.Decide(found.record, c, found.now(age)) {
	case idempotency.ReplayKept:
		return Replay{Record: found.record, Response: found.response}
	case idempotency.RefuseReused:
		return refusalBeside(ReasonReused, found.record)
	default:
		return nil
	}
}

// copyWhileAway returns the copy of a key, however old it is, if the store could not be
// asked. It says nothing to a request that would run.
func (e *Engine) copyWhileAway(key idempotency.Key, err error) idempotency.Claimed {
	if !away(err) {
		return idempotency.Claimed{}
	}
	found, age := e.copies.find(key)
	if found = e.copies.decoded(found); found == nil {
		return idempotency.Claimed{}
	}
	return idempotency.Claimed{Record: found.record, Response: found.response, Now: found.now(age)}
}

// away reports whether an error says nothing of the key: the store could not be asked.
func away(err error) bool { return refusalFor(err).Reason == ReasonUnavailable }

// copyClaimed notes what the store has answered to a claim: the copy of the key is that, or
// there is none any more.
func (e *Engine) copyClaimed(read reading, got idempotency.Claimed, err error) {
	switch {
	case err != nil && away(err):
	case err == nil && got.Verdict == idempotency.ReplayKept:
		e.copyFound(read, got)
	case err == nil && got.Verdict == idempotency.RefuseReused && e.copies.is(read.of.key, got.Record):
	default:
		e.copies.drop(read.of.key)
	}
}

// copyFound keeps a copy of what the store has answered, if that is complete.
func (e *Engine) copyFound(read reading, found idempotency.Claimed) {
	if found.Record == nil || found.Record.State != idempotency.Complete || found.Response == nil {
		return
	}
	if e.store.Readable(found.Record) {
		form := copyForm{record: found.Record, response: found.Response}
		e.copies.keep(read, form, found.Record.Expires.Sub(found.Now), sizeOfRead(found.Record, found.Response))
	}
}

// inProcess is a store in the memory of this process. It ends with the process ([Engine.Drain]),
// and is never away, so that a copy only saves the first duplicate some work. That one makes
// it: most keys have none, and to copy all of them took a tenth of a first delivery.
type inProcess interface{ InProcess() }

// copyKept keeps a copy of the response of a run, which is stored now.
func (r *Run) copyKept(read reading, s idempotency.Settlement, ended idempotency.Claimed) {
	copies := r.engine.copies
	if r.engine.inProcess || s.Response == nil || !copies.all.holds(int64(sizeOfEncoded+len(s.Response.Body))) {
		return
	}
	if s.State != idempotency.Complete || !r.engine.store.Readable(ended.Record) {
		return
	}
	var room [roomToEncode]byte
	form, life := encode(room[:0], r.claim.Key, ended.Record, s.Response), s.Retention+s.Ago-read.asked.Sub(r.settling)
	if body := s.Response.Body; roomFor(len(form.parts) + len(body)) {
		copies.keepEncoded(read, form, body, life)
	} else {
		large := form.withLarge(body)
		copies.keep(read, large, life, sizeOf(large))
	}
}
