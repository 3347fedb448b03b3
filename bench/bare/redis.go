package main

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// redisStore sends what waits together: each of two goroutines takes what there is, and
// sends it in one pipeline.
type redisStore struct {
	client  *redis.Client
	script  string
	waiting chan *command
}

// command is one command that waits, and done says that it has its reply.
type command struct {
	*redis.Cmd
	done chan struct{}
}

const (
	senders    = 2
	mostAtOnce = 128
)

// settleSource compares the token at the beginning of the value.
const settleSource = `
if redis.call('GETRANGE', KEYS[1], 0, 15) ~= string.sub(ARGV[1], 1, 16) then
	return 'lost'
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 'ok'`

func openRedis(url string) (*redisStore, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	options.Protocol, options.DisableIdentity = 2, true // as caddy-dedup has it
	s := &redisStore{client: redis.NewClient(options), waiting: make(chan *command, 4096)}
	if s.script, err = s.client.ScriptLoad(context.Background(), settleSource).Result(); err != nil {
		return nil, err
	}
	for range senders {
		go s.send()
	}
	return s, nil
}

// send ends with the process.
func (s *redisStore) send() {
	ctx, pipeline := context.Background(), s.client.Pipeline()
	var batch []*command
	for c := range s.waiting {
		batch = append(batch[:0], c)
		for more := true; more && len(batch) < mostAtOnce; {
			select {
			case c := <-s.waiting:
				batch = append(batch, c)
			default:
				more = false
			}
		}
		for _, c := range batch {
			_ = pipeline.Process(ctx, c.Cmd) // it is only queued here
		}
		_, _ = pipeline.Exec(ctx) // each command has its own error
		for _, c := range batch {
			close(c.done)
		}
	}
}

func (s *redisStore) do(arguments ...any) (any, error) {
	c := &command{redis.NewCmd(context.Background(), arguments...), make(chan struct{})}
	s.waiting <- c
	<-c.done
	return c.Result()
}

func (s *redisStore) claim(key string, value []byte, lease time.Duration) error {
	switch _, err := s.do("set", key, value, "nx", "get", "px", lease.Milliseconds()); {
	case errors.Is(err, redis.Nil):
		return nil
	case err != nil:
		return err
	default:
		return errLost
	}
}

func (s *redisStore) settle(key string, value []byte, retention time.Duration) error {
	switch reply, err := s.do("evalsha", s.script, 1, key, value, retention.Milliseconds()); {
	case err != nil:
		return err
	case reply != "ok":
		return errLost
	default:
		return nil
	}
}

func newToken() []byte {
	token := make([]byte, tokenSize)
	_, _ = rand.Read(token) // it never fails
	return token
}
