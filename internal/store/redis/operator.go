package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Free implements [idempotency.Store]. It looks the record up and replaces exactly
// what it saw. While that changes in between, it tries again, as a claim does.
func (s *Store) Free(ctx context.Context, key idempotency.Key, token string, seen idempotency.Seen) (*idempotency.Record, error) {
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	until := time.Now().Add(s.patience)
	for ctx.Err() == nil {
		looked, err := s.lookUp(ctx, key, nil)
		if err != nil {
			return nil, err
		}
		freed, err := looked.record.Freed(token, seen, looked.now)
		if err != nil {
			return nil, err
		}
		answer, err := s.replaceFreed(ctx, key, looked, freed, until)
		if err != nil {
			return nil, s.fail("free", err)
		}
		switch answer.word {
		case replyOK:
			return looked.record, nil
		case replyAbsent:
			return nil, idempotency.ErrGone
		case replyChanged:
		case replyOverdue:
			return nil, s.fail("free", errors.New("the command reached the server too late, or its clock jumps"))
		default:
			return nil, answer.unexpectedReply(s.names.record(key))
		}
	}
	return nil, s.fail("free", fmt.Errorf("the record changes again and again: %w", ctx.Err()))
}

// replaceFreed writes the freed record over the one that was looked up.
func (s *Store) replaceFreed(ctx context.Context, key idempotency.Key, looked *found, freed *idempotency.Record,
	until time.Time) (answer reply, err error) {
	stored, err := appendRecord(nil, key, freed)
	if err != nil {
		return reply{}, err
	}
	keys, revision, repeated := []string{s.names.record(key)}, newRevision(), ""
	const deadlineArg = 4 + 5 // as in [claimCall.ask]
	arm := func(to *request) { to.until, to.deadlineArg = until, deadlineArg }
	err = try(ctx, func() (err error) {
		var doubt bool
		answer, _, doubt, err = s.runScript(ctx, freeScript, keys, arm, looked.revision, stored, freed.Token, revision[:],
			freed.Expires.UnixMilli(), nil, repeated, s.names.copies())
		if doubt {
			repeated = "1"
		}
		return err
	})
	return answer, err
}

// forgetCall is one call of Forget.
type forgetCall struct {
	store *Store
	key   idempotency.Key
	name  string
	// tokens are those of the record's latest run and of earlier ones, as the
	// server has told them.
	tokens string
	// unreadable is the token and the revision of a record that claims to be in
	// flight and cannot be read.
	unreadable string
	// seen is what the operator has seen, and version that of the record which was found
	// to be that: only this one is removed. Without any of them it is "", for any record.
	seen    idempotency.Seen
	version string
	// lostReply says that an attempt got no reply, and may have removed the record.
	lostReply bool
}

// The versions of records that the script takes beside '<token>:<revision>'.
const (
	versionNone    = "none"     // the record is only to be told
	versionNotOurs = "not ours" // what is no record
)

// Forget implements [idempotency.Store]. It removes what stands under the key's
// name also where that cannot be read.
func (s *Store) Forget(ctx context.Context, key idempotency.Key, seen idempotency.Seen) error {
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	c := &forgetCall{store: s, key: key, name: s.names.record(key), seen: seen}
	if seen != (idempotency.Seen{}) {
		c.version = versionNone
	}
	for ctx.Err() == nil {
		answer, err := c.ask(ctx)
		if err != nil {
			return s.fail("forget", err)
		}
		if done, err := c.understand(answer); done || err != nil {
			return err
		}
	}
	return s.fail("forget", fmt.Errorf("the record changes again and again: %w", ctx.Err()))
}

// ask sends the script with what is known of the record so far.
func (c *forgetCall) ask(ctx context.Context) (answer reply, err error) {
	keys := []string{c.name}
	for token := range strings.FieldsSeq(c.tokens) {
		keys = append(keys, c.store.names.response(c.key, token))
	}
	err = try(ctx, func() (err error) {
		var doubt bool
		answer, _, doubt, err = c.store.runScript(ctx, forgetScript, keys, nil, c.tokens, c.unreadable, c.store.names.copies(), c.version)
		if doubt {
			c.lostReply = true
		}
		return err
	})
	return answer, err
}

// understand takes a reply. It is not done where the script has to be sent again.
func (c *forgetCall) understand(answer reply) (done bool, err error) {
	switch {
	case answer.word == replyOK:
		return true, nil
	case answer.word == replyAbsent && c.lostReply:
		return true, nil
	case answer.word == replyAbsent:
		return true, idempotency.ErrGone
	case answer.word == replyInFlight && len(answer.rest) == 2:
		value, _ := answer.value(2)
		revision, ok := answer.rest[1].(string)
		if !ok {
			return true, answer.unexpectedReply(c.name)
		}
		if _, err := decodeFound(c.key, c.name, value, answer.now); err == nil {
			return true, idempotency.ErrInFlight
		}
		c.unreadable = revision
		return c.found(nil, revision)
	case (answer.word == replyChanged || answer.word == replyNotOurs) && c.lostReply && c.mayHaveRemoved():
		// What stands there now may be another.
		return true, c.store.fail("forget", errors.New("the reply was lost, and the record has changed since; look at it again"))
	case answer.word == replyNotOurs && c.version != "":
		return c.found(nil, versionNotOurs)
	case answer.word == replyChanged && len(answer.rest) == 3:
		value, _ := answer.value(3)
		tokens, ok := answer.rest[1].(string)
		version, also := answer.rest[2].(string)
		if !ok || !also {
			return true, answer.unexpectedReply(c.name)
		}
		f, err := decodeFound(c.key, c.name, value, answer.now)
		if err == nil && (f.record == nil || f.withdrawn) {
			return true, idempotency.ErrGone // what is there counts no longer, and expires by itself
		}
		c.tokens = tokens
		if err != nil {
			f = nil
		}
		return c.found(f, version)
	default:
		return true, answer.unexpectedReply(c.name)
	}
}

// found compares a version of the record (nil: one that cannot be read) with what the
// operator has seen. It is not done where the script is now to remove this version.
func (c *forgetCall) found(f *found, version string) (done bool, err error) {
	if c.version == "" {
		return false, nil
	}
	if f != nil {
		err = f.record.MayBeTaken(c.seen, f.now)
	} else {
		err = c.seen.MayBeUnreadable()
	}
	c.version = version
	return err != nil, err
}

// mayHaveRemoved reports whether the script, as it was sent last, removes what it finds.
func (c *forgetCall) mayHaveRemoved() bool {
	return c.tokens != "" || c.version == versionNotOurs
}
