package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// errOverdue reports that a script refused to run after its deadline.
var errOverdue = errors.New("the command reached the server too late, or its clock jumps")

// Release implements [idempotency.Store]. It looks the record up and replaces exactly that
// version. If the record changes in between, it tries again, like a claim.
func (s *Store) Release(ctx context.Context, key idempotency.Key, token string, seen idempotency.Precondition) (*idempotency.Record, error) {
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	until := time.Now().Add(s.executeWithin)
	for ctx.Err() == nil {
		looked, err := s.lookUp(ctx, key)
		if err != nil {
			return nil, err
		}
		freed, err := looked.record.Release(token, seen, looked.now)
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
			return nil, s.fail("free", errOverdue)
		default:
			return nil, answer.unexpected(s.names.record(key))
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
	prepare := func(sent *request) { sent.until, sent.deadlineArg = until, deadlineArg }
	err = try(ctx, func() (err error) {
		var maybeApplied bool
		answer, maybeApplied, err = s.runScript(ctx, freeScript, keys, prepare, looked.version, stored, freed.Token, revision[:],
			freed.Expires.UnixMilli(), nil, repeated, s.names.copies())
		if maybeApplied {
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
	// tokens are those of the record's latest run and of earlier ones, as the server has
	// returned them. The script removes the responses of these runs.
	tokens string
	// unreadable is the version of a record that is in flight by its head and cannot be read.
	unreadable string
	// seen is what the operator has seen, and version what forget.lua may remove: "" for any
	// record, if the operator has seen nothing.
	seen    idempotency.Precondition
	version string
	// lostReply reports whether an attempt got no reply, and may have removed the record.
	lostReply bool
}

// The versions that forget.lua takes in place of '<token>:<revision>'.
const (
	versionNone    = "none"     // remove nothing, and return the record
	versionNotOurs = "not ours" // remove what is no record
)

// Forget implements [idempotency.Store]. It also removes what cannot be read.
func (s *Store) Forget(ctx context.Context, key idempotency.Key, seen idempotency.Precondition) error {
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	c := &forgetCall{store: s, key: key, name: s.names.record(key), seen: seen}
	if seen != (idempotency.Precondition{}) {
		c.version = versionNone
	}
	for ctx.Err() == nil {
		answer, err := c.runScript(ctx)
		if err != nil {
			return s.fail("forget", err)
		}
		if done, err := c.handleReply(answer); done || err != nil {
			return err
		}
	}
	return s.fail("forget", fmt.Errorf("the record changes again and again: %w", ctx.Err()))
}

// runScript runs forget.lua with what is known of the record so far.
func (c *forgetCall) runScript(ctx context.Context) (answer reply, err error) {
	keys := []string{c.name}
	for token := range strings.FieldsSeq(c.tokens) {
		keys = append(keys, c.store.names.response(c.key, token))
	}
	err = try(ctx, func() (err error) {
		var maybeApplied bool
		answer, maybeApplied, err = c.store.runScript(ctx, forgetScript, keys, nil, c.tokens, c.unreadable, c.store.names.copies(), c.version)
		if maybeApplied {
			c.lostReply = true
		}
		return err
	})
	return answer, err
}

// handleReply handles a reply of forget.lua. It is not done if the script must run again.
func (c *forgetCall) handleReply(answer reply) (done bool, err error) {
	switch {
	case answer.word == replyOK:
		return true, nil
	case answer.word == replyAbsent && c.lostReply:
		return true, nil
	case answer.word == replyAbsent:
		return true, idempotency.ErrGone
	case answer.word == replyInFlight && len(answer.rest) == 2:
		value, _ := answer.value(2)
		version, ok := answer.rest[1].(string)
		if !ok {
			return true, answer.unexpected(c.name)
		}
		if _, err := decodeFound(c.key, c.name, value, answer.now); err == nil {
			return true, idempotency.ErrInFlight
		}
		c.unreadable = version
		return c.compare(nil, version)
	case (answer.word == replyChanged || answer.word == replyNotOurs) && c.lostReply && c.mayHaveRemoved():
		// What is there now may be another record.
		return true, c.store.fail("forget", errors.New("the reply was lost, and the record has changed since; look at it again"))
	case answer.word == replyNotOurs && c.version != "":
		return c.compare(nil, versionNotOurs)
	case answer.word == replyChanged && len(answer.rest) == 3:
		value, _ := answer.value(3)
		tokens, ok1 := answer.rest[1].(string)
		version, ok2 := answer.rest[2].(string)
		if !ok1 || !ok2 {
			return true, answer.unexpected(c.name)
		}
		f, err := decodeFound(c.key, c.name, value, answer.now)
		if err == nil && (f.record == nil || f.withdrawn) {
			return true, idempotency.ErrGone // what is there no longer counts, and expires
		}
		c.tokens = tokens
		if err != nil {
			f = nil
		}
		return c.compare(f, version)
	default:
		return true, answer.unexpected(c.name)
	}
}

// compare compares a version of the record, nil for one that cannot be read, with what the
// operator has seen. It is not done if the script must run again to remove this version.
func (c *forgetCall) compare(f *found, version string) (done bool, err error) {
	if c.version == "" {
		return false, nil
	}
	if f != nil {
		err = f.record.CheckChange(c.seen, f.now)
	} else {
		err = c.seen.CheckUnreadable()
	}
	c.version = version
	return err != nil, err
}

// mayHaveRemoved reports whether the script, as it was sent last, removes what it finds.
func (c *forgetCall) mayHaveRemoved() bool {
	return c.tokens != "" || c.version == versionNotOurs
}
