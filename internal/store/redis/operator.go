package redis

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// operatorRounds bounds how often a record is looked at for an operator because
// it changed in between.
const operatorRounds = 8

// Free implements [idempotency.Store]. It looks the record up and replaces exactly
// what it saw.
func (s *Store) Free(ctx context.Context, key idempotency.Key, token string) (*idempotency.Record, error) {
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	until := &deadline{at: time.Now().Add(s.patience)}
	for range operatorRounds {
		looked, err := s.lookUp(ctx, key)
		if err != nil {
			return nil, err
		}
		freed, err := looked.record.Freed(token, looked.now)
		if err != nil {
			return nil, err
		}
		keys := []string{s.names.record(key)}
		var answer reply
		err = try(ctx, func() (err error) {
			answer, err = s.runScript(ctx, freeScript, keys, looked.revision, encodeRecord(key, freed), token,
				freed.Expires.UnixMilli(), until)
			return err
		})
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
			return nil, answer.unexpectedReply(keys[0])
		}
	}
	return nil, s.fail("free", errors.New("the record changes all the time"))
}

// Forget implements [idempotency.Store]. It removes what stands under the key's
// name also where that cannot be read.
func (s *Store) Forget(ctx context.Context, key idempotency.Key) error {
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	tokens := ""     // of the latest run and of earlier ones, once the record told them
	unreadable := "" // "1" once we know that the record cannot be read
	for range operatorRounds {
		keys := []string{s.names.record(key)}
		for token := range strings.FieldsSeq(tokens) {
			keys = append(keys, s.names.response(key, token))
		}
		var answer reply
		err := try(ctx, func() (err error) {
			answer, err = s.runScript(ctx, forgetScript, keys, tokens, unreadable)
			return err
		})
		if err != nil {
			return s.fail("forget", err)
		}
		switch answer.word {
		case replyOK:
			return nil
		case replyAbsent:
			return idempotency.ErrGone
		case replyInFlight:
			_, err := s.lookUp(ctx, key)
			if _, damaged := errors.AsType[*idempotency.UnreadableError](err); !damaged {
				return cmp.Or(err, idempotency.ErrInFlight)
			}
			unreadable = "1"
			continue
		}
		ok := false
		if answer.word == replyChanged && len(answer.rest) == 1 {
			tokens, ok = answer.rest[0].(string)
		}
		if !ok {
			return answer.unexpectedReply(s.names.record(key))
		}
	}
	return s.fail("forget", errors.New("the record is claimed anew all the time"))
}
