package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Change implements [idempotency.Store]. It looks up the record and replaces exactly that version. If
// the record changes in between, Change tries again, as a claim does.
func (s *Store) Change(ctx context.Context, key idempotency.Key, c idempotency.Change) (*idempotency.Record, error) {
	fail := func(err error) error { return s.fail("change to "+string(c.State), err) }
	keys := []string{s.names.record(key)} // of change.lua
	var response, body []byte             // in the value, and beside it
	if c.Response != nil {
		response, body = appendKept(nil, key, c.Token, c.Response)
	}
	if body != nil { // it is written once, if the record may be changed, under a temporary name as for a settlement
		name := s.names.unsettled(key, c.Token, c.Response)
		step, cancel := s.withTimeout(ctx)
		_, _, err := s.lookUpChange(step, key, c)
		cancel()
		if err != nil {
			return nil, err
		}
		if err := s.setBody(ctx, redirect{}, name, body); err != nil {
			return nil, fail(err)
		}
		keys = append(keys, s.names.response(key, c.Token), name)
	}
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	until := time.Now().Add(idempotency.ClaimTimeout)
	for ctx.Err() == nil {
		current, changed, err := s.lookUpChange(ctx, key, c)
		if err != nil {
			return nil, err
		}
		stored, err := appendRecord(nil, key, changed)
		if err != nil {
			return nil, fail(err)
		}
		var answer reply
		expiry, revision, repeated := changed.Expires.UnixMilli(), newRevision(), ""
		err = try(ctx, func() (err error) {
			answer, err = s.runScript(ctx, changeScript, keys, current.version, stored, changed.Token, revision[:],
				expiry, until, repeated, s.names.copies(), response, expiry+toMillis(responseMargin))
			if mayBeApplied(err) {
				repeated = "1"
			}
			return err
		})
		if err == nil && answer.word == replyChanged {
			continue
		}
		if err == nil {
			err = answer.err(keys[0])
		}
		if err != nil {
			return nil, fail(err)
		}
		return current.record, nil
	}
	return nil, fail(fmt.Errorf("other callers kept changing the record: %w", ctx.Err()))
}

// lookUpChange looks up a record, and returns it also as it is after the change.
func (s *Store) lookUpChange(ctx context.Context, key idempotency.Key, c idempotency.Change) (current *found, changed *idempotency.Record, err error) {
	if current, _, err = s.lookUp(ctx, key); err == nil {
		changed, err = current.record.Changed(c, current.now)
	}
	return current, changed, err
}

// Forget implements [idempotency.Store]. Like Change, it looks up the value and removes exactly that one, with
// the responses of its runs. It also removes values that cannot be read.
func (s *Store) Forget(ctx context.Context, key idempotency.Key, pre idempotency.Precondition) error {
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	name := s.names.record(key)
	for ctx.Err() == nil {
		current, value, err := s.lookUp(ctx, key)
		if _, unreadable := errors.AsType[*idempotency.UnreadableError](err); unreadable {
			err = pre.CheckUnreadable()
		} else if err == nil {
			err = current.record.CheckChange(pre, current.now)
		}
		if err != nil {
			return err
		}
		keys := []string{name}
		p, _ := splitValue(value) // what it has of an unreadable value
		for token := range strings.FieldsSeq(string(p.token) + " " + string(p.earlier)) {
			keys = append(keys, s.names.response(key, token))
		}
		var answer reply
		inDoubt := false
		err = try(ctx, func() (err error) {
			answer, err = s.runScript(ctx, forgetScript, keys, value, s.names.copies())
			inDoubt = inDoubt || mayBeApplied(err)
			return err
		})
		switch {
		case err != nil, answer.word == replyAbsent && inDoubt: // it was forgotten
		case answer.word == replyChanged && inDoubt:
			err = errors.New("the reply was lost, and the record has changed since; look it up again")
		case answer.word == replyChanged:
			continue
		default:
			err = answer.err(name)
		}
		return s.fail("forget", err)
	}
	return s.fail("forget", fmt.Errorf("other callers kept changing the record: %w", ctx.Err()))
}
