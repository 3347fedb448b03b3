package redis

import (
	"context"
	"fmt"
	"sync/atomic"

	goredis "github.com/redis/go-redis/v9"
)

// hook is a go-redis hook that is called for each round trip of a client, with the commands that it sends.
type hook func(ctx context.Context, commands []goredis.Cmder, send goredis.ProcessPipelineHook) error

func (hook) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (h hook) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, command goredis.Cmder) error {
		return h(ctx, []goredis.Cmder{command}, func(ctx context.Context, _ []goredis.Cmder) error { return next(ctx, command) })
	}
}

func (h hook) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, commands []goredis.Cmder) error { return h(ctx, commands, next) }
}

// traffic is what clients have sent.
type traffic struct {
	trips    atomic.Int64 // round trips
	flushes  atomic.Int64 // those of pipes
	waits    atomic.Int64 // flushes that wait for replicas
	requests atomic.Int64 // in flushes
}

// count counts what clients send from now on.
func count(clients ...*goredis.Client) *traffic {
	sent := new(traffic)
	for _, client := range clients {
		client.AddHook(hook(func(ctx context.Context, commands []goredis.Cmder, send goredis.ProcessPipelineHook) error {
			sent.trips.Add(1)
			if last := commands[len(commands)-1]; last.Name() == "wait" {
				sent.flushes.Add(1)
				if fmt.Sprint(last.Args()[1]) != "0" {
					sent.waits.Add(1)
				}
			}
			for _, c := range commands {
				if _, ok := c.(*request); ok {
					sent.requests.Add(1)
				}
			}
			return send(ctx, commands)
		}))
	}
	return sent
}

// only returns the client of a store with one server.
func only(s *Store) *goredis.Client { return s.client.(*goredis.Client) }

// queued returns how many commands wait for a flush.
func (p *pipe) queued() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int64(len(p.waiting))
}
