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
func (s *Store) Free(ctx context.Context, key idempotency.Key, token string) (*idempotency.Record, error) {
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	until := &deadline{at: time.Now().Add(s.patience)}
	for ctx.Err() == nil {
		looked, err := s.lookUp(ctx, key)
		if err != nil {
			return nil, err
		}
		freed, err := looked.record.Freed(token, looked.now)
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
	until *deadline) (answer reply, err error) {
	keys, stored, repeated := []string{s.names.record(key)}, encodeRecord(key, freed), ""
	err = try(ctx, func() (err error) {
		answer, err = s.runScript(ctx, freeScript, keys, looked.revision, stored, freed.Token,
			freed.Expires.UnixMilli(), until, repeated)
		if mayBeExecuted(err) {
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
	// lostReply says that an attempt got no reply, and may have removed the record.
	lostReply bool
}

// Forget implements [idempotency.Store]. It removes what stands under the key's
// name also where that cannot be read.
func (s *Store) Forget(ctx context.Context, key idempotency.Key) error {
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	c := &forgetCall{store: s, key: key, name: s.names.record(key)}
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
		answer, err = c.store.runScript(ctx, forgetScript, keys, c.tokens, c.unreadable)
		if mayBeExecuted(err) {
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
	case answer.word == replyInFlight && len(answer.rest) == 5:
		if _, err := decodeFound(c.key, c.name, answer); err == nil {
			return true, idempotency.ErrInFlight
		}
		token, _ := answer.rest[1].(string) // nil where the record has none
		revision, _ := answer.rest[3].(string)
		c.unreadable = token + ":" + revision
		return false, nil
	case answer.word == replyChanged && c.lostReply && c.tokens != "":
		// It may have removed the record already: what stands there now may be another.
		return true, c.store.fail("forget", errors.New("the reply was lost, and the record has changed since; look at it again"))
	case answer.word == replyChanged && len(answer.rest) == 6:
		tokens, ok := answer.rest[5].(string)
		if !ok {
			return true, answer.unexpectedReply(c.name)
		}
		answer.rest = answer.rest[:5]
		if f, err := decodeFound(c.key, c.name, answer); err == nil && f.record == nil {
			return true, idempotency.ErrGone // what is there counts no longer, and expires by itself
		}
		c.tokens = tokens
		return false, nil
	default:
		return true, answer.unexpectedReply(c.name)
	}
}
