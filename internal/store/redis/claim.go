package redis

import (
	"context"
	"fmt"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// claimCall is one call of Claim. It asks the server again until the claim is written, or the
// record that was found decides. It is limited by its time and not by a number of rounds: each
// round that fails because the record changed is one in which another caller succeeded, and on
// a busy key that may be many in a row.
type claimCall struct {
	store *Store
	claim idempotency.Claim
	name  string // of the key's record
	// called is when the call began. The deadline of a script counts from here.
	called time.Time
	// bySet reports whether the next round is a plain SET, which is all a fresh key needs.
	bySet bool
	// isWritten reports whether the claim is written, but with times of a wrong clock.
	isWritten bool
	// previous is what the claim may replace, nil for nothing.
	previous *found
	// inDoubt is the record that may be written, or may be written later, although the call
	// fails.
	inDoubt *idempotency.Record
	// wasOverdue reports whether the server has refused the claim once because its deadline
	// had passed.
	wasOverdue bool
	// listens reports whether it makes no difference to wait for the inbox: it was open
	// before the server was asked, or it cannot be opened.
	listens bool
	// incomplete is the revision of a complete record whose response was not found.
	incomplete string
}

// Claim implements [idempotency.Store]. It takes one round trip if there is no record or a
// complete one. It takes two to wait for a run in flight, to replace a record, and to read a
// response that is beside the record.
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

// newClaimCall returns a call that begins with a plain SET, unless the server must have a
// deadline for the claim. A SET that arrives late locks the key until its lease ends, and no
// longer. Under Hold it would lock it until an operator comes, and under MaxAttempts it would
// count an attempt that never ran.
func (s *Store) newClaimCall(c idempotency.Claim) *claimCall {
	return &claimCall{
		store: s, claim: c, name: s.names.record(c.Key), called: time.Now(),
		bySet: !c.Hold && c.MaxAttempts == 0 && !c.Force,
	}
}

func (c *claimCall) run(ctx context.Context) (idempotency.Claimed, error) {
	c.store.inbox.openIfSubscribed()
	c.listens = c.claim.Waits && c.store.inbox.open()
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
	return idempotency.Claimed{}, fmt.Errorf("the record changed again and again while it was claimed: %w", ctx.Err())
}

// setRound asks the server once, without a script. What it leaves open is left to scripts.
func (c *claimCall) setRound(ctx context.Context) (_ idempotency.Claimed, done bool, err error) {
	c.bySet = false
	attempt := c.claim.Record(nil, processTime())
	value, err := encodeValue(valueBuffer(), c.claim.Key, attempt, 0)
	if err != nil {
		return idempotency.Claimed{}, false, err
	}
	var sent *request
	var repeated bool
	err = try(ctx, func() error {
		sent = newRequest(ctx, "set", c.name, value, "nx", "get", "px", toMillis(c.claim.Life()))
		sent.value, sent.lease, sent.life = value, c.claim.Lease, c.claim.Life()
		maybeApplied, err := c.store.send(ctx, c.name, sent)
		if maybeApplied {
			c.inDoubt, repeated = attempt, true
		}
		return err
	})
	switch {
	case isNil(err):
		c.inDoubt = attempt // the claim is written, whatever follows
		if !repeated {
			defer reuse(value)
		}
		return c.takenAt(attempt, value, sent.now)
	case err != nil && c.store.needsScript(err):
		return idempotency.Claimed{}, false, nil
	case err != nil:
		return idempotency.Claimed{}, false, readError(c.name, err)
	}
	if sent.now == 0 {
		return idempotency.Claimed{}, false, nil // the script has the time
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
		return c.takenAt(attempt, []byte(stored), sent.now) // by the attempt before
	}
	return c.decide(ctx, f, false)
}

// needsScript reports whether a script may succeed where a SET got this error. Without memory,
// or without the replicas that the server wants, a script still reads. In a cluster, scripts
// follow redirects.
func (s *Store) needsScript(err error) bool {
	return s.isRedirect(err) || hasCode(err, "OOM") || hasCode(err, "MISCONF") || hasCode(err, "NOREPLICAS")
}

// takenAt takes a claim that is written with the times in its value. Those are estimates of
// the server's clock. If the server's time shows that they are wrong by more than a quarter
// of the lease, a script writes the claim again with the server's own time: a clock was set, or
// this process was suspended.
func (c *claimCall) takenAt(attempt *idempotency.Record, value []byte, now int64) (_ idempotency.Claimed, done bool, err error) {
	p, err := splitValue(value)
	if err != nil {
		return idempotency.Claimed{}, false, unreadable(c.name, "%w", err)
	}
	lease := toMillis(c.claim.Lease)
	if wrong := p.lease - now - lease; wrong > lease/4 || wrong < -lease/4 {
		c.isWritten = true
		return idempotency.Claimed{}, false, nil
	}
	attempt.LeaseUntil, attempt.Expires = fromMillis(p.lease), fromMillis(p.expiry)
	return idempotency.Claimed{Verdict: idempotency.Proceed, Record: attempt, Now: fromMillis(now)}, true, nil
}

// scriptRound asks the server once, by the script. It is not done if the server has to be asked
// again.
func (c *claimCall) scriptRound(ctx context.Context) (_ idempotency.Claimed, done bool, err error) {
	attempt := c.record()
	answer, err := c.runScript(ctx, attempt)
	if err != nil {
		return idempotency.Claimed{}, false, err
	}
	switch answer.word {
	case replyClaimed:
		claimed, err := c.taken(attempt, answer)
		return claimed, true, err
	case replyAbsent:
		c.previous, c.isWritten = nil, false
		return idempotency.Claimed{}, false, nil
	case replyOverdue:
		if c.wasOverdue {
			return idempotency.Claimed{}, false, errOverdue
		}
		c.wasOverdue = true // the reply has the server's time
		return idempotency.Claimed{}, false, nil
	case replyFound:
		value, ok := answer.value(1)
		if !ok {
			return idempotency.Claimed{}, false, answer.unexpected(c.name)
		}
		f, err := decodeFound(c.claim.Key, c.name, value, answer.now)
		if err != nil {
			return idempotency.Claimed{}, false, err
		}
		c.isWritten = false
		return c.decide(ctx, f, true)
	default:
		return idempotency.Claimed{}, false, answer.unexpected(c.name)
	}
}

// record returns the record that the claim writes over what it found.
func (c *claimCall) record() *idempotency.Record {
	if c.previous == nil {
		return c.claim.Record(nil, processTime())
	}
	return c.claim.Record(c.previous.record, processTime())
}

// deadlineArg is the place of the deadline in the commands that run claim.lua and free.lua: its
// sixth argument, after the command's name, the hash, the number of keys and the key.
const deadlineArg = 4 + 5

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
	keepResponse, minExpiry := "", int64(0)
	if attempt.Previous != nil {
		keepResponse, minExpiry = "1", attempt.Previous.Expires.UnixMilli()
	}
	prepare := func(sent *request) {
		sent.until, sent.deadlineArg = c.called.Add(s.executeWithin), deadlineArg
	}
	err = try(ctx, func() (err error) {
		var maybeApplied bool
		answer, maybeApplied, err = s.runScript(ctx, claimScript, []string{c.name}, prepare, c.claim.Token, stored, revision[:],
			toMillis(c.claim.Lease), toMillis(c.claim.Life()), nil, channel, c.replaces(), repeated, keepResponse, minExpiry)
		if maybeApplied {
			c.inDoubt = attempt
		}
		repeated = "1"
		return err
	})
	return answer, err
}

// replaces names what the claim may replace, in the form of claim.lua. A record with the
// claim's own token may have any revision: only this call writes it.
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

// taken reads the reply to a claim that the script has written.
func (c *claimCall) taken(attempt *idempotency.Record, answer reply) (idempotency.Claimed, error) {
	c.inDoubt = attempt // it is written, even if the rest of the reply is unexpected
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

// decide applies the claim table to what was found. registered reports whether the waiter was
// registered in the same step.
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
			return idempotency.Claimed{}, false, nil // the script registers it
		}
		// The run may have ended before the inbox was open, and its message is lost.
		if c.claim.Waits && !c.listens {
			c.listens = true
			c.store.inbox.await(ctx)
			return idempotency.Claimed{}, false, nil
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
		// The record may have expired, or been forgotten, between the two reads.
		c.incomplete = f.version
		return idempotency.Claimed{}, false, nil
	default:
		return claimed, true, nil
	}
}
