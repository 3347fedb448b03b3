package redis

import (
	"context"
	"fmt"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// claimCall is one call of Claim. It sends commands in rounds until the claim is written, or the
// record that it finds decides. Its timeout limits it, not a number of rounds: a round fails because
// another caller has changed the record, and on a busy key many rounds may fail in a row.
type claimCall struct {
	store *Store
	claim idempotency.Claim
	name  string // of the key's record
	// started is the start of the call. The deadline of a script counts from it.
	started time.Time
	// bySet reports whether the next round is a plain SET, which is enough for a new key.
	bySet bool
	// isWritten reports whether the claim is written, but with the times of a wrong clock.
	isWritten bool
	// previous is the record that the claim may replace; nil for none.
	previous *found
	// inDoubt is the record that the server may have written, or may still write, although the
	// call fails.
	inDoubt *idempotency.Record
	// wasOverdue reports whether the server has refused the claim once because its deadline
	// had passed.
	wasOverdue bool
	// incomplete is the revision of a complete record whose response was not found.
	incomplete string
}

// Claim implements [idempotency.Store]. It takes one round trip if there is no record, or a complete
// one with its response. It takes two to wait for a run in flight, to replace a record, or to read a
// response that is stored beside its record.
func (s *Store) Claim(ctx context.Context, c idempotency.Claim) (idempotency.Claimed, error) {
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	call := s.newClaimCall(c)
	claimed, err := call.run(ctx)
	if err != nil {
		return idempotency.Claimed{Record: call.inDoubt}, s.fail("claim", err)
	}
	s.credentials.accept()
	return claimed, nil
}

// newClaimCall returns a call that starts with a plain SET, unless the claim needs a deadline on the
// server. A SET that the server executes late locks the key until the lease ends. With Hold, it would
// lock the key until an operator releases it; with MaxAttempts, it would count an attempt that never
// ran.
func (s *Store) newClaimCall(c idempotency.Claim) *claimCall {
	return &claimCall{
		store: s, claim: c, name: s.names.record(c.Key), started: time.Now(),
		bySet: !c.Hold && c.MaxAttempts == 0 && !c.Force,
	}
}

func (c *claimCall) run(ctx context.Context) (idempotency.Claimed, error) {
	c.store.inbox.openIfSubscribed()
	for ctx.Err() == nil {
		round := c.scriptRound
		if c.bySet {
			round = c.setRound
		}
		claimed, done, err := round(ctx)
		if done || err != nil {
			return claimed, err
		}
	}
	return idempotency.Claimed{}, fmt.Errorf("other callers kept changing the record: %w", ctx.Err())
}

// setRound makes one round with a SET. If that decides nothing, the next rounds use scripts.
func (c *claimCall) setRound(ctx context.Context) (_ idempotency.Claimed, done bool, err error) {
	c.bySet = false
	attempt := c.claim.Record(nil, processTime())
	value, err := encodeValue(valueBuffer(), c.claim.Key, attempt, 0)
	if err != nil {
		return idempotency.Claimed{}, false, err
	}
	copy(value[atRevision:atLease], claimRevision)
	var sent *request
	var repeated bool
	err = try(ctx, func() error {
		sent = newRequest(ctx, "set", c.name, value, "nx", "get", "px", toMillis(c.claim.Life()))
		sent.value, sent.lease, sent.life = value, c.claim.Lease, c.claim.Life()
		err := c.store.send(ctx, c.name, sent)
		if mayBeApplied(err) {
			c.inDoubt, repeated = attempt, true
		}
		return err
	})
	switch {
	case isNil(err):
		c.inDoubt = attempt // the claim is written, even if this call fails
		if !repeated {
			defer reuse(value)
		}
		claimed, done := c.acceptSet(attempt, value, sent.now)
		return claimed, done, nil
	case err != nil && c.store.needsScript(err):
		return idempotency.Claimed{}, false, nil
	case err != nil:
		return idempotency.Claimed{}, false, readError(c.name, err)
	}
	if sent.now == 0 {
		return idempotency.Claimed{}, false, nil // the script returns the time
	}
	stored, ok := sent.Val().(string)
	if !ok {
		return idempotency.Claimed{}, false, unexpectedReply(c.name, sent.Val())
	}
	f, err := decodeFound(c.claim.Key, c.name, []byte(stored), sent.now)
	if err != nil {
		return idempotency.Claimed{}, false, err
	}
	if repeated && f.record != nil && f.record.Token == c.claim.Token && f.sameRecord(value) {
		claimed, done := c.acceptSet(attempt, []byte(stored), sent.now) // the earlier attempt has written it
		return claimed, done, nil
	}
	return c.decide(ctx, f, false)
}

// needsScript reports whether a script may succeed after a SET got this error. A server that is out
// of memory, or has fewer replicas than it requires, still executes scripts that only read. In a
// cluster, scripts follow redirects.
func (s *Store) needsScript(err error) bool {
	return s.isRedirect(err) || hasCode(err, "OOM") || hasCode(err, "MISCONF") || hasCode(err, "NOREPLICAS")
}

// acceptSet accepts a claim that a SET has written. The times in its value are by this process's
// estimate of the server's clock. If they differ from the server's time by more than a quarter of the
// lease, because a clock was set or this process was suspended, the next round writes the claim again
// by a script, with the server's own time.
func (c *claimCall) acceptSet(attempt *idempotency.Record, value []byte, now int64) (_ idempotency.Claimed, done bool) {
	p, _ := splitValue(value) // which this call has written, or decoded
	lease := toMillis(c.claim.Lease)
	if wrong := p.lease - now - lease; wrong > lease/4 || wrong < -lease/4 {
		c.isWritten = true
		return idempotency.Claimed{}, false
	}
	attempt.LeaseUntil, attempt.Expires = fromMillis(p.lease), fromMillis(p.expiry)
	return idempotency.Claimed{Verdict: idempotency.Proceed, Record: attempt, Now: fromMillis(now)}, true
}

// scriptRound makes one round with claim.lua. done is false if another round is needed.
func (c *claimCall) scriptRound(ctx context.Context) (_ idempotency.Claimed, done bool, err error) {
	attempt := c.record()
	answer, err := c.runScript(ctx, attempt)
	if err != nil {
		return idempotency.Claimed{}, false, err
	}
	switch answer.word {
	case replyClaimed:
		claimed, err := c.readClaimed(attempt, answer)
		return claimed, true, err
	case replyAbsent:
		c.previous, c.isWritten = nil, false
		return idempotency.Claimed{}, false, nil
	case replyOverdue:
		if c.wasOverdue {
			return idempotency.Claimed{}, false, errOverdue
		}
		c.wasOverdue = true // the reply has corrected the estimate of the server's clock
		return idempotency.Claimed{}, false, nil
	default:
		value, err := answer.value(c.name)
		if err != nil {
			return idempotency.Claimed{}, false, err
		}
		f, err := decodeFound(c.claim.Key, c.name, value, answer.now)
		if err != nil {
			return idempotency.Claimed{}, false, err
		}
		c.isWritten = false
		return c.decide(ctx, f, true)
	}
}

// record returns the record that the claim writes in place of the previous one.
func (c *claimCall) record() *idempotency.Record {
	if c.previous == nil {
		return c.claim.Record(nil, processTime())
	}
	return c.claim.Record(c.previous.record, processTime())
}

// runScript runs claim.lua, with one retry.
func (c *claimCall) runScript(ctx context.Context, attempt *idempotency.Record) (answer reply, err error) {
	s := c.store
	channel, repeated := "", ""
	if c.claim.Waits {
		channel = s.inbox.name
	}
	stored, err := appendRecord(nil, c.claim.Key, attempt)
	if err != nil {
		return reply{}, err
	}
	revision := newRevision()
	if c.previous == nil && !c.isWritten {
		copy(revision[:], claimRevision)
	}
	keepResponse, minExpiry := "", int64(0)
	if attempt.Previous != nil {
		keepResponse, minExpiry = "1", attempt.Previous.Expires.UnixMilli()
	}
	until := c.started.Add(idempotency.ClaimTimeout)
	err = try(ctx, func() (err error) {
		answer, err = s.runScript(ctx, claimScript, []string{c.name}, c.claim.Token, stored, revision[:],
			toMillis(c.claim.Lease), toMillis(c.claim.Life()), until, channel, c.replaces(), repeated, keepResponse, minExpiry)
		if mayBeApplied(err) {
			c.inDoubt = attempt
		}
		repeated = "1"
		return err
	})
	return answer, err
}

// replaces returns the version that the claim may replace, in the form that claim.lua takes. A record
// with the claim's own token may have any revision, because only this call writes it.
func (c *claimCall) replaces() string {
	switch {
	case c.isWritten:
		return c.claim.Token
	case c.previous == nil:
		return ""
	case c.previous.record != nil && c.previous.record.State == idempotency.InFlight && c.previous.record.Token == c.claim.Token:
		return c.claim.Token
	default:
		return c.previous.version
	}
}

// readClaimed reads the reply of claim.lua to a claim that it has written.
func (c *claimCall) readClaimed(attempt *idempotency.Record, answer reply) (idempotency.Claimed, error) {
	c.inDoubt = attempt // the claim is written, even if the rest of the reply is unexpected
	if len(answer.rest) != 2 {
		return idempotency.Claimed{}, answer.unexpected(c.name)
	}
	lease, ok1 := answer.rest[0].(int64)
	expiry, ok2 := answer.rest[1].(int64)
	if !ok1 || !ok2 {
		return idempotency.Claimed{}, answer.unexpected(c.name)
	}
	attempt.LeaseUntil, attempt.Expires = fromMillis(lease), fromMillis(expiry)
	claimed := idempotency.Claimed{Verdict: idempotency.Proceed, Record: attempt, Now: fromMillis(answer.now)}
	if c.previous != nil && !c.previous.withdrawn {
		claimed.Previous = c.previous.record
	}
	return claimed, nil
}

// decide applies the claim table to the record that was found. registered reports whether the script
// that found it has also registered this process as a waiter.
func (c *claimCall) decide(ctx context.Context, f *found, registered bool) (_ idempotency.Claimed, done bool, err error) {
	c.previous = nil
	claimed := idempotency.Claimed{
		Verdict: idempotency.Decide(f.record, c.claim, f.now),
		Record:  f.record,
		Now:     f.now,
	}
	switch claimed.Verdict {
	case idempotency.Proceed:
		c.previous = f
		return idempotency.Claimed{}, false, nil
	case idempotency.WaitForRun:
		if c.claim.Waits && !registered && f.record.State == idempotency.InFlight {
			return idempotency.Claimed{}, false, nil // the script registers this process
		}
		return claimed, true, nil
	case idempotency.ReplayKept:
		if f.record.LargeBody > 0 {
			return claimed, true, nil
		}
		claimed.Response, err = c.store.keptResponse(ctx, c.claim.Key, f)
		if err != nil || claimed.Response != nil {
			return claimed, true, err
		}
		if c.incomplete == f.version {
			return idempotency.Claimed{}, false, unreadable(c.name, "it is complete, but its response %s is gone",
				c.store.names.response(c.claim.Key, f.record.Token))
		}
		// The record may have expired or been forgotten between the two reads.
		c.incomplete = f.version
		return idempotency.Claimed{}, false, nil
	default:
		return claimed, true, nil
	}
}
