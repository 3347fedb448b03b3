package redis

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Lookup implements [idempotency.Store].
func (s *Store) Lookup(ctx context.Context, key idempotency.Key) (*idempotency.Record, time.Time, error) {
	ctx, cancel := s.limit(ctx)
	defer cancel()
	f, err := s.lookUp(ctx, key)
	if err != nil {
		return nil, time.Time{}, err
	}
	return f.record, f.now, nil
}

// lookUp reads a record as it stands; without one, only the time is known.
func (s *Store) lookUp(ctx context.Context, key idempotency.Key) (*found, error) {
	name := s.names.record(key)
	var answer reply
	err := try(ctx, func() (err error) {
		answer, err = s.run(ctx, lookupScript, []string{name})
		return err
	})
	if err != nil {
		return nil, s.fail("look up", err)
	}
	f, err := lookedUp(key, name, answer)
	if f == nil && err == nil {
		f = &found{now: fromMillis(answer.now)}
	}
	return f, err
}

// lookedUp reads a reply of lookup.lua, nil for no record.
func lookedUp(key idempotency.Key, name string, answer reply) (*found, error) {
	switch answer.word {
	case saysAbsent:
		return nil, nil
	case saysFound:
		return decodeFound(key, name, answer)
	default:
		return nil, answer.strange(name)
	}
}

// operatorRounds bounds how often a record is looked at for an operator because
// it changed in between.
const operatorRounds = 8

// Free implements [idempotency.Store]. It looks the record up and replaces exactly
// what it saw.
func (s *Store) Free(ctx context.Context, key idempotency.Key, token string) (*idempotency.Record, error) {
	ctx, cancel := s.limit(ctx)
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
			answer, err = s.run(ctx, freeScript, keys, looked.revision, encodeRecord(key, freed), token,
				freed.Expires.UnixMilli(), until)
			return err
		})
		if err != nil {
			return nil, s.fail("free", err)
		}
		switch answer.word {
		case saysOK:
			return looked.record, nil
		case saysGone:
			return nil, idempotency.ErrGone
		case saysChanged:
		case saysOverdue:
			return nil, s.fail("free", errors.New("the command reached the server too late, or its clock jumps"))
		default:
			return nil, answer.strange(keys[0])
		}
	}
	return nil, s.fail("free", errors.New("the record changes all the time"))
}

// Forget implements [idempotency.Store]. It removes what stands under the key's
// name also where that cannot be read.
func (s *Store) Forget(ctx context.Context, key idempotency.Key) error {
	ctx, cancel := s.limit(ctx)
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
			answer, err = s.run(ctx, forgetScript, keys, tokens, unreadable)
			return err
		})
		if err != nil {
			return s.fail("forget", err)
		}
		switch answer.word {
		case saysOK:
			return nil
		case saysGone:
			return idempotency.ErrGone
		case saysInFlight:
			_, err := s.lookUp(ctx, key)
			if _, damaged := errors.AsType[*idempotency.UnreadableError](err); !damaged {
				return cmp.Or(err, idempotency.ErrInFlight)
			}
			unreadable = "1"
			continue
		}
		ok := false
		if answer.word == saysChanged && len(answer.rest) == 1 {
			tokens, ok = answer.rest[0].(string)
		}
		if !ok {
			return answer.strange(s.names.record(key))
		}
	}
	return s.fail("forget", errors.New("the record is claimed anew all the time"))
}
