package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// claimCall is one call of Claim. It asks the server again and again until the claim
// is written, or until the record that is found says what to do. Only its time limits how
// often: whenever the record has changed between a look and the write, another caller has
// got its way, and on a busy key that can happen to one caller many times in a row.
type claimCall struct {
	store *Store
	claim idempotency.Claim
	// name is that of the key's record.
	name string
	// called is when the call began. The deadline of a script counts from here.
	called time.Time
	// light says that the next question is a plain SET: all that a fresh key needs.
	light bool
	// own says that the claim is written, with times that are not those of the server's
	// clock.
	own bool
	// previous is what the claim may replace, nil for nothing.
	previous *found
	// doubtful is the record of an attempt that got no reply. It may have been
	// written, or may still be.
	doubtful *idempotency.Record
	// overdue says that the server has refused the claim once because its deadline had
	// passed.
	overdue bool
	// listened says that it is no use to wait for the inbox: it was open before the
	// server was asked, or it could not be opened.
	listened bool
	// incomplete is the revision of a complete record whose response was not found.
	incomplete string

	// first is the plain SET, with its arguments and the value that it writes. The call
	// has room for them: on the common way it needs no other command.
	first request
	args  [7]any
	value bytesArg
	px    int64
	// direct says that the first command was executed and was all. Nobody else has the
	// call then: a flush that is late still has what it sends.
	direct bool
}

// Claim implements [idempotency.Store]. Over nothing and over a small response it is one
// round trip; over a run in flight that it waits for, over a record that it may replace,
// or with a large response to replay, two.
func (s *Store) Claim(ctx context.Context, c idempotency.Claim) (idempotency.Claimed, error) {
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	call := s.newClaimCall(c)
	claimed, err := call.run(ctx)
	if err != nil {
		return idempotency.Claimed{Record: call.doubtful}, s.fail("claim", err)
	}
	s.options.logins.accept()
	if call.direct {
		*call = claimCall{value: roomOf(call.value)}
		claimCalls.Put(call)
	}
	return claimed, nil
}

// newClaimCall returns a call that begins with a plain SET, unless the claim needs a
// deadline at the server. A SET that arrives late locks a key until its lease ends, but
// no longer. Under Hold it would do so until an operator comes, and under MaxAttempts an
// attempt would count that never ran.
func (s *Store) newClaimCall(c idempotency.Claim) *claimCall {
	call := claimCalls.Get().(*claimCall)
	call.store, call.claim, call.name, call.called = s, c, s.names.record(c.Key), time.Now()
	call.light = !c.Hold && c.MaxAttempts == 0 && !c.Force
	return call
}

// claimCalls are zero but for the room of a value.
var claimCalls = sync.Pool{New: func() any { return new(claimCall) }}

func (c *claimCall) run(ctx context.Context) (idempotency.Claimed, error) {
	c.store.inbox.use()
	c.listened = c.claim.Waits && c.store.inbox.open()
	for ctx.Err() == nil {
		ask := c.round
		if c.light {
			ask = c.lightRound
		}
		claimed, done, err := ask(ctx)
		if done || err != nil {
			return claimed, err
		}
	}
	return idempotency.Claimed{}, fmt.Errorf("the record changed again and again while it was claimed: %w", ctx.Err())
}

// lightRound asks the server once, without a script. Whatever it does not answer is left
// to scripts.
func (c *claimCall) lightRound(ctx context.Context) (_ idempotency.Claimed, done bool, err error) {
	c.light = false
	attempt := c.claim.Record(nil, processTime())
	value, err := encodeValue(c.value, c.claim.Key, attempt, 0)
	if err != nil {
		return idempotency.Claimed{}, false, err
	}
	c.value, c.px = value, toMillis(c.claim.Life())
	c.args = [...]any{"set", c.name, &c.value, "nx", "get", "px", &c.px}
	sent := &c.first
	var asked, repeated bool
	err = try(ctx, func() error {
		if asked {
			sent = new(request)
		}
		asked = true
		sent.begin(ctx, c.args[:])
		sent.claims, sent.value, sent.lease, sent.life = true, value, c.claim.Lease, c.claim.Life()
		_, doubt, err := c.store.send(ctx, c.name, sent, nil)
		if doubt {
			c.doubtful, repeated = attempt, true
		}
		return err
	})
	switch {
	case isNil(err):
		c.doubtful = attempt // the claim holds, whatever comes
		claimed, done, err := c.takenAt(attempt, value, sent.now)
		c.direct = done && sent == &c.first
		return claimed, done, err
	case err != nil && c.store.leftToScripts(err):
		return idempotency.Claimed{}, false, nil
	case err != nil:
		return idempotency.Claimed{}, false, readError(c.name, err)
	}
	if sent.now == 0 {
		return idempotency.Claimed{}, false, nil // by the script, which has its own time
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

// leftToScripts reports whether a script may do what a SET may not: without room, or
// without the replicas that the server wants, a script still reads. In a cluster, other
// ways lead to the server that has the key.
func (s *Store) leftToScripts(err error) bool {
	return s.elsewhere(err) || hasCode(err, "OOM") || hasCode(err, "MISCONF") || hasCode(err, "NOREPLICAS")
}

// takenAt takes a claim that holds, with the times in its value. They were set by an
// estimate of the server's clock. If the server's time says that this was wrong by more
// than a part of the lease, a script writes them once more, by that clock itself: the
// clock was set, or this process was suspended.
func (c *claimCall) takenAt(attempt *idempotency.Record, value []byte, now int64) (_ idempotency.Claimed, done bool, err error) {
	p, err := splitValue(value)
	if err != nil {
		return idempotency.Claimed{}, false, unreadable(c.name, "%w", err)
	}
	lease := toMillis(c.claim.Lease)
	if wrong := p.lease - now - lease; wrong > lease/4 || wrong < -lease/4 {
		c.own = true
		return idempotency.Claimed{}, false, nil
	}
	attempt.LeaseUntil, attempt.Expires = fromMillis(p.lease), fromMillis(p.expiry)
	return idempotency.Claimed{Verdict: idempotency.Proceed, Record: attempt, Now: fromMillis(now)}, true, nil
}

// round asks the server once, by the script. It is not done where the server has to be
// asked again.
func (c *claimCall) round(ctx context.Context) (_ idempotency.Claimed, done bool, err error) {
	attempt := c.record()
	answer, err := c.ask(ctx, attempt)
	if err != nil {
		return idempotency.Claimed{}, false, err
	}
	switch answer.word {
	case replyClaimed:
		claimed, err := c.taken(attempt, answer)
		return claimed, true, err
	case replyAbsent:
		c.previous, c.own = nil, false
		return idempotency.Claimed{}, false, nil
	case replyOverdue:
		if c.overdue {
			return idempotency.Claimed{}, false, errors.New("the claim reached the server too late, or its clock jumps")
		}
		c.overdue = true // the refusal has told the server's time
		return idempotency.Claimed{}, false, nil
	case replyFound:
		value, ok := answer.value(1)
		if !ok {
			return idempotency.Claimed{}, false, answer.unexpectedReply(c.name)
		}
		f, err := decodeFound(c.claim.Key, c.name, value, answer.now)
		if err != nil {
			return idempotency.Claimed{}, false, err
		}
		c.own = false
		return c.decide(ctx, f, true)
	default:
		return idempotency.Claimed{}, false, answer.unexpectedReply(c.name)
	}
}

// record returns the record that the claim writes over what it found.
func (c *claimCall) record() *idempotency.Record {
	if c.previous == nil {
		return c.claim.Record(nil, processTime())
	}
	return c.claim.Record(c.previous.record, processTime())
}

// ask runs the script, with one retry.
func (c *claimCall) ask(ctx context.Context, attempt *idempotency.Record) (answer reply, err error) {
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
	keepResponse, notBefore := "", int64(0)
	if attempt.Replaces != nil {
		keepResponse, notBefore = "1", attempt.Replaces.Expires.UnixMilli()
	}
	const deadlineArg = 4 + 5 // after the name, the hash, the number of keys and the key
	arm := func(to *request) {
		to.claims, to.until, to.deadlineArg = true, c.called.Add(s.patience), deadlineArg
	}
	err = try(ctx, func() (err error) {
		var doubt bool
		answer, _, doubt, err = s.runScript(ctx, claimScript, []string{c.name}, arm, c.claim.Token, stored, revision[:],
			toMillis(c.claim.Lease), toMillis(c.claim.Life()), nil, channel, c.replaces(), repeated, keepResponse, notBefore)
		if doubt {
			c.doubtful = attempt
		}
		repeated = "1"
		return err
	})
	return answer, err
}

// replaces names what the claim may replace, in the form of claim.lua. A record with
// the claim's own token may have any revision: nobody but this call writes it.
func (c *claimCall) replaces() string {
	switch {
	case c.own:
		return c.claim.Token
	case c.previous == nil:
		return ""
	case c.previous.record != nil && c.previous.record.State == idempotency.InFlight && c.previous.record.Token == c.claim.Token:
		return c.claim.Token
	default:
		return c.previous.revision
	}
}

// taken reads the reply to a claim that holds.
func (c *claimCall) taken(attempt *idempotency.Record, answer reply) (idempotency.Claimed, error) {
	c.doubtful = attempt // the claim holds, even if the rest of the reply is unexpected
	if len(answer.rest) != 2 {
		return idempotency.Claimed{}, answer.unexpectedReply(c.name)
	}
	lease, ok1 := answer.rest[0].(int64)
	expiry, ok2 := answer.rest[1].(int64)
	if !ok1 || !ok2 {
		return idempotency.Claimed{}, answer.unexpectedReply(c.name)
	}
	attempt.LeaseUntil, attempt.Expires = fromMillis(lease), fromMillis(expiry)
	claimed := idempotency.Claimed{Verdict: idempotency.Proceed, Record: attempt, Now: fromMillis(answer.now)}
	if c.previous != nil && !c.previous.withdrawn {
		claimed.Previous = c.previous.record
	}
	return claimed, nil
}

// decide applies the claim table to what was found. registered says that who waits was
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
			return idempotency.Claimed{}, false, nil // by the script
		}
		// The run may have ended before the inbox was open: we were not told then.
		if c.claim.Waits && !c.listened {
			c.listened = true
			c.store.inbox.await(ctx)
			return idempotency.Claimed{}, false, nil
		}
		return claimed, true, nil
	case idempotency.ReplayKept:
		claimed.Response, err = c.kept(ctx, f)
		if err != nil || claimed.Response != nil {
			return claimed, true, err
		}
		if c.incomplete == f.revision {
			return idempotency.Claimed{}, false, unreadable(c.name, "it is complete, but its response %s is gone",
				c.store.names.response(c.claim.Key, f.record.Token))
		}
		// The record may have expired, or been forgotten, between our two looks.
		c.incomplete = f.revision
		return idempotency.Claimed{}, false, nil
	default:
		return claimed, true, nil
	}
}

// kept returns the response of a complete record, nil if it is not there.
func (c *claimCall) kept(ctx context.Context, f *found) (*idempotency.Response, error) {
	key, token := c.claim.Key, f.record.Token
	if f.response != nil && !f.beside {
		return decodeResponse(key, token, c.name, f.response)
	}
	name := c.store.names.response(key, token)
	var stored []byte
	err := try(ctx, func() (err error) {
		get := goredis.NewStringCmd(ctx, "get", name)
		if err = c.store.client.Process(ctx, get); err == nil {
			stored, err = get.Bytes()
		}
		return err
	})
	switch {
	case isNil(err):
		return nil, nil
	case err != nil:
		return nil, wrongType(name, err)
	default:
		return decodeParts(key, token, name, f.response, stored)
	}
}
