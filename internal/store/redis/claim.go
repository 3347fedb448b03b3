package redis

import (
	"context"
	"errors"
	"fmt"
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
	// called is when the call began. The deadline counts from here.
	called time.Time
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
}

// Claim implements [idempotency.Store]. Over nothing, and over a run in flight
// or a small response, it is one round trip; over a record that it may replace,
// or with a large response to replay, two.
func (s *Store) Claim(ctx context.Context, c idempotency.Claim) (idempotency.Claimed, error) {
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	call := s.newClaimCall(c)
	claimed, err := call.run(ctx)
	if err != nil {
		return idempotency.Claimed{Record: call.doubtful}, s.fail("claim", err)
	}
	return claimed, nil
}

func (s *Store) newClaimCall(c idempotency.Claim) *claimCall {
	return &claimCall{store: s, claim: c, name: s.names.record(c.Key), called: time.Now()}
}

func (c *claimCall) run(ctx context.Context) (idempotency.Claimed, error) {
	c.listened = c.claim.Waits && c.store.inbox.open()
	for ctx.Err() == nil {
		claimed, done, err := c.round(ctx)
		if done || err != nil {
			return claimed, err
		}
	}
	return idempotency.Claimed{}, fmt.Errorf("the record changed again and again while it was claimed: %w", ctx.Err())
}

// round asks the server once. It is not done where the server has to be asked again.
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
		c.previous = nil
		return idempotency.Claimed{}, false, nil
	case replyOverdue:
		if c.overdue {
			return idempotency.Claimed{}, false, errors.New("the claim reached the server too late, or its clock jumps")
		}
		c.overdue = true // the refusal has told the server's time
		return idempotency.Claimed{}, false, nil
	case replyFound:
		f, err := decodeFound(c.claim.Key, c.name, answer)
		if err != nil {
			return idempotency.Claimed{}, false, err
		}
		return c.decide(ctx, f)
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
	keys := []string{c.name}
	stored := encodeRecord(c.claim.Key, attempt)
	keepResponse, notBefore := "", int64(0)
	if attempt.Replaces != nil {
		keepResponse, notBefore = "1", attempt.Replaces.Expires.UnixMilli()
	}
	until := &deadline{at: c.called.Add(s.patience)}
	err = try(ctx, func() (err error) {
		if err := ctx.Err(); err != nil {
			return err
		}
		answer, err = s.runScript(ctx, claimScript, keys, c.claim.Token, stored,
			toMillis(c.claim.Lease), toMillis(c.claim.Life()), until, channel, c.replaces(), repeated,
			keepResponse, notBefore)
		if until.doubt {
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
	if c.previous != nil {
		claimed.Previous = c.previous.record
	}
	return claimed, nil
}

// decide applies the claim table to what was found.
func (c *claimCall) decide(ctx context.Context, f *found) (_ idempotency.Claimed, done bool, err error) {
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
	if f.response != nil {
		return decodeResponse(key, token, c.name, f.response)
	}
	name := c.store.names.response(key, token)
	var stored []byte
	err := try(ctx, func() (err error) {
		stored, err = c.store.client.Get(ctx, name).Bytes()
		return err
	})
	switch {
	case errors.Is(err, goredis.Nil):
		return nil, nil
	case err != nil:
		return nil, wrongType(name, err)
	default:
		return decodeResponse(key, token, name, stored)
	}
}
