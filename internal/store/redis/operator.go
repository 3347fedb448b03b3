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
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	call := &changeCall{store: s, key: key, change: c, keys: []string{s.names.record(key)}, until: time.Now().Add(s.executeTimeout)}
	fail := func(err error) error { return s.fail("change to "+string(c.State), err) }
	for ctx.Err() == nil {
		current, err := s.lookUp(ctx, key)
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
	if c.change.Response != nil && c.response == nil {
		if err := c.writeResponse(ctx, revision); err != nil {
			return reply{}, err
		}
	}
	prepare := func(sent *request) { sent.until, sent.deadlineArg = c.until, deadlineArg+len(c.keys)-1 }
	expiry := changed.Expires.UnixMilli()
	err = try(ctx, func() (err error) {
		var maybeApplied bool
		answer, maybeApplied, err = c.store.runScript(ctx, changeScript, c.keys, prepare, current.version, stored, changed.Token, revision[:],
			expiry, nil, repeated, c.store.names.copies(), c.response, expiry+toMillis(responseMargin))
		if maybeApplied {
			repeated = "1"
		}
		return err
	})
	return answer, err
}

// writeResponse sets the response of the call, and writes its body if that is large: under a temporary
// name, as a settlement does.
func (c *changeCall) writeResponse(ctx context.Context, revision [revisionSize]byte) error {
	response, body := appendKept(nil, c.key, c.change.Token, c.change.Response)
	if body != nil {
		name := c.store.names.unsettled(c.key, c.change.Token, revision[:])
		err := try(ctx, func() error { return c.store.client.Set(ctx, name, body, unsettledLife).Err() })
		if err != nil {
			return readError(c.keys[0], err)
		}
		c.keys = append(c.keys, c.store.names.response(c.key, c.change.Token), name)
	}
	c.response = response
	return nil
}

// forgetCall is one call of Forget.
type forgetCall struct {
	store *Store
	key   idempotency.Key
	name  string
	// tokens are those of the record's latest run and of earlier ones, as the server has
	// returned them. The script removes the responses of these runs.
	tokens string
	// unreadable is the version of an unreadable record whose head says that it is in flight.
	unreadable string
	pre        idempotency.Precondition
	// version is what forget.lua may remove; "" for any record, if there is no precondition.
	version string
	// lostReply reports whether an attempt got no reply, so that it may have removed the record.
	lostReply bool
}

// The versions that forget.lua takes in place of '<token>:<revision>'.
const (
	versionNone    = "none"     // remove nothing, and return the record
	versionNotOurs = "not ours" // remove a value that is not a record
)

// Forget implements [idempotency.Store]. It also removes values that cannot be read.
func (s *Store) Forget(ctx context.Context, key idempotency.Key, pre idempotency.Precondition) error {
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	c := &forgetCall{store: s, key: key, name: s.names.record(key), pre: pre}
	if pre != (idempotency.Precondition{}) {
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
	return s.fail("forget", fmt.Errorf("other callers kept changing the record: %w", ctx.Err()))
}

// runScript runs forget.lua with what earlier replies have said about the record.
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

// handleReply handles a reply of forget.lua. done is false if the script must run again.
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
		// The record may be another one now.
		return true, c.store.fail("forget", errors.New("the reply was lost, and the record has changed since; look it up again"))
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
			return true, idempotency.ErrGone // the value does not count any more, and will expire
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

// compare checks the precondition against a version of the record; f is nil if that cannot be read.
// done is false if the script must run again, to remove this version.
func (c *forgetCall) compare(f *found, version string) (done bool, err error) {
	if c.version == "" {
		return false, nil
	}
	if f != nil {
		err = f.record.CheckChange(c.pre, f.now)
	} else {
		err = c.pre.CheckUnreadable()
	}
	c.version = version
	return err != nil, err
}

// mayHaveRemoved reports whether the script, as it was sent last, may have removed a value.
func (c *forgetCall) mayHaveRemoved() bool {
	return c.tokens != "" || c.version == versionNotOurs
}
