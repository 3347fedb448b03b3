package redis

import (
	"context"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Response implements [idempotency.Store]. It looks into the value and beside it in one
// round trip.
func (s *Store) Response(ctx context.Context, key idempotency.Key, token string) (*idempotency.Response, error) {
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	name, besideName := s.names.record(key), s.names.response(key, token)
	var inside, beside *goredis.StringCmd
	err := try(ctx, func() error {
		pipeline := s.client.Pipeline()
		inside, beside = pipeline.Get(ctx, name), pipeline.Get(ctx, besideName)
		_, err := pipeline.Exec(ctx)
		// An error that answers one of the two says nothing about the other.
		if answered(err) {
			return nil
		}
		return err
	})
	if err != nil {
		return nil, s.fail("read a response", err)
	}
	stored, err := beside.Bytes()
	if err == nil {
		return decodeResponse(key, token, besideName, stored)
	}
	if !isNil(err) {
		return nil, s.fail("read a response", wrongType(besideName, err))
	}
	value, err := inside.Bytes()
	switch {
	case isNil(err):
		return nil, nil
	case err != nil:
		return nil, s.fail("read a response", wrongType(name, err))
	}
	p, err := splitValue(value)
	if err != nil {
		return nil, unreadable(name, "%w", err)
	}
	small, isBeside, err := p.kept()
	if err != nil {
		return nil, unreadable(name, "%w", err)
	}
	if small == nil || isBeside {
		return nil, nil
	}
	if p.state == inFlight {
		// A forced run is in flight. What is here is the response of the run before
		// it; decoding fails if that is not the run with this token.
		response, err := idempotency.DecodeResponse(key, token, small)
		if err != nil {
			return nil, nil
		}
		return response, nil
	}
	if string(p.token) != token {
		return nil, nil
	}
	return decodeResponse(key, token, name, small)
}

// decodeResponse reads a response that was found in the named Redis key.
func decodeResponse(key idempotency.Key, token, name string, stored []byte) (*idempotency.Response, error) {
	response, err := idempotency.DecodeResponse(key, token, stored)
	if err != nil {
		return nil, unreadable(name, "its response: %w", err)
	}
	return response, nil
}

// wrongType returns the error for a Redis key of another type than ours, which
// somebody else must have written. Other errors it returns as they are.
func wrongType(name string, err error) error {
	if hasCode(err, "WRONGTYPE") {
		return unreadable(name, "it has another type than caddy-dedup gives it")
	}
	return err
}
