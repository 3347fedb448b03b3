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
	value, hasValue, err := got(inside, name)
	if err != nil {
		return nil, s.fail("read a response", err)
	}
	body, hasBody, err := got(beside, besideName)
	if err != nil {
		return nil, s.fail("read a response", err)
	}
	if hasValue {
		p, err := splitValue(value)
		if err != nil {
			return nil, unreadable(name, "%w", err)
		}
		kept, isBeside, err := p.kept()
		if err != nil {
			return nil, unreadable(name, "%w", err)
		}
		// While a forced run is in flight, what the value keeps is the response of the run
		// before it: decoding fails if that is not the run with this token.
		forced := p.state == inFlight
		if kept != nil && (forced || string(p.token) == token) && (hasBody || !isBeside) {
			response, err := decodeResponse(key, token, name, kept)
			if isBeside {
				response, err = decodeParts(key, token, besideName, kept, body)
			}
			if err == nil || !forced {
				return response, err
			}
		}
	}
	if !hasBody {
		return nil, nil
	}
	// The answer of a released run lies there as a whole. It can also be the body of a
	// response that is kept no more, and that is as good as gone.
	response, err := idempotency.DecodeResponse(key, token, body)
	if err != nil {
		return nil, nil
	}
	return response, nil
}

// got returns what a GET has found under a name, if there is anything.
func got(get *goredis.StringCmd, name string) (value []byte, ok bool, err error) {
	value, err = get.Bytes()
	if isNil(err) {
		return nil, false, nil
	}
	return value, err == nil, wrongType(name, err)
}

// decodeParts reads a response whose body was found in the named Redis key.
func decodeParts(key idempotency.Key, token, name string, head, body []byte) (*idempotency.Response, error) {
	response, err := idempotency.DecodeResponseParts(key, token, head, body)
	if err != nil {
		return nil, unreadable(name, "its response: %w", err)
	}
	return response, nil
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
