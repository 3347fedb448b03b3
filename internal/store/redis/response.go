package redis

import (
	"context"
	"errors"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Response implements [idempotency.Store]. It looks into the record and beside
// it in one round trip.
func (s *Store) Response(ctx context.Context, key idempotency.Key, token string) (*idempotency.Response, error) {
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	var inside *goredis.SliceCmd
	var beside *goredis.StringCmd
	err := try(ctx, func() error {
		pipeline := s.client.Pipeline()
		inside = pipeline.HMGet(ctx, s.names.record(key), "t", "b", "l")
		beside = pipeline.Get(ctx, s.names.response(key, token))
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
		return decodeResponse(key, token, s.names.response(key, token), stored)
	}
	if !errors.Is(err, goredis.Nil) {
		return nil, s.fail("read a response", wrongType(s.names.response(key, token), err))
	}
	fields, err := inside.Result()
	if err != nil {
		return nil, s.fail("read a response", wrongType(s.names.record(key), err))
	}
	if len(fields) != 3 {
		return nil, unexpectedReply(s.names.record(key), fields)
	}
	owner, _ := fields[0].(string)
	small, ok := fields[1].(string)
	switch {
	case !ok:
		return nil, nil
	case fields[2] != "0":
		// A forced run is in flight. What is here is the response of the run before
		// it; decoding fails if that is not the run with this token.
		response, err := idempotency.DecodeResponse(key, token, []byte(small))
		if err != nil {
			return nil, nil
		}
		return response, nil
	case owner != token:
		return nil, nil
	default:
		return decodeResponse(key, token, s.names.record(key), []byte(small))
	}
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
