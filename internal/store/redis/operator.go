package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// errOverdue is the error if a script refuses to run because its deadline has passed.
var errOverdue = errors.New("the command reached the server too late, or the server's clock jumps")

// Change implements [idempotency.Store]. It looks up the record and replaces exactly that version. If
// the record changes in between, Change tries again, as a claim does.
func (s *Store) Change(ctx context.Context, key idempotency.Key, c idempotency.Change) (*idempotency.Record, error) {
	call := &changeCall{store: s, key: key, change: c, keys: []string{s.names.record(key)}}
	fail := func(err error) error { return s.fail("change to "+string(c.State), err) }
	if c.Response != nil {
		if err := call.writeResponse(ctx, fail); err != nil {
			return nil, err
		}
	}
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	call.until = time.Now().Add(s.executeTimeout)
	for ctx.Err() == nil {
		current, _, err := s.lookUp(ctx, key)
		if err != nil {
			return nil, err
		}
		changed, err := current.record.Changed(c, current.now)
		if err != nil {
			return nil, err
		}
		answer, err := call.run(ctx, current, changed)
		if err != nil {
			return nil, fail(err)
		}
		switch answer.word {
		case replyOK:
			return current.record, nil
		case replyAbsent:
			return nil, idempotency.ErrGone
		case replyChanged:
		case replyOverdue:
			return nil, fail(errOverdue)
		case replyNoResponse:
			return nil, fail(errNoResponse)
		default:
			return nil, answer.unexpected(call.keys[0])
		}
	}
	return nil, fail(fmt.Errorf("other callers kept changing the record: %w", ctx.Err()))
}

// changeCall is one call of Change.
type changeCall struct {
	store  *Store
	key    idempotency.Key
	change idempotency.Change
	keys   []string // of change.lua
	until  time.Time
	// response is the response in the value. If its body is beside the value, it is written once,
	// before the script runs.
	response []byte
}

// run replaces the record that was looked up by the changed one.
func (c *changeCall) run(ctx context.Context, current *found, changed *idempotency.Record) (answer reply, err error) {
	stored, err := appendRecord(nil, c.key, changed)
	if err != nil {
		return reply{}, err
	}
	revision, repeated := newRevision(), ""
	prepare := func(sent *request) { sent.until, sent.deadlineArg = c.until, deadlineArg+len(c.keys)-1 }
	expiry := changed.Expires.UnixMilli()
	err = try(ctx, func() (err error) {
		answer, err = c.store.runScript(ctx, changeScript, c.keys, prepare, current.version, stored, changed.Token, revision[:],
			expiry, nil, repeated, c.store.names.copies(), c.response, expiry+toMillis(responseMargin))
		if mayBeApplied(err) {
			repeated = "1"
		}
		return err
	})
	return answer, err
}

// writeResponse sets the response of the call, and writes its body if that is large and the record may be
// changed: under a temporary name, as a settlement does.
func (c *changeCall) writeResponse(ctx context.Context, fail func(error) error) error {
	response, body := appendKept(nil, c.key, c.change.Token, c.change.Response)
	if body != nil {
		step, cancel := c.store.withTimeout(ctx)
		current, _, err := c.store.lookUp(step, c.key)
		cancel()
		if err == nil {
			_, err = current.record.Changed(c.change, current.now)
		}
		if err != nil {
			return err
		}
		name := c.store.names.unsettled(c.key, c.change.Token, c.change.Response)
		if err := c.store.setBody(ctx, redirect{}, name, body); err != nil {
			return fail(readError(c.keys[0], err))
		}
		c.keys = append(c.keys, c.store.names.response(c.key, c.change.Token), name)
	}
	c.response = response
	return nil
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
			answer, err = s.runScript(ctx, forgetScript, keys, nil, value, s.names.copies())
			inDoubt = inDoubt || mayBeApplied(err)
			return err
		})
		switch {
		case err != nil:
			return s.fail("forget", err)
		case answer.word == replyOK, answer.word == replyAbsent && inDoubt:
			return nil
		case answer.word == replyAbsent:
			return idempotency.ErrGone
		case answer.word == replyChanged && inDoubt:
			return s.fail("forget", errors.New("the reply was lost, and the record has changed since; look it up again"))
		case answer.word != replyChanged:
			return answer.unexpected(name)
		}
	}
	return s.fail("forget", fmt.Errorf("other callers kept changing the record: %w", ctx.Err()))
}
