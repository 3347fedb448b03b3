package servers

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-dedup/caddy-dedup/bench/internal/process"
)

// Redis is a redis-server of one case.
type Redis struct {
	*process.Process
	Addr string

	client *redis.Client
	dir    string
}

// StartRedis starts a server. The word for appendfsync (everysec, always) has it write
// its commands to the disk; "" has it write nothing.
func (s *Stage) StartRedis(name, appendfsync string) (*Redis, error) {
	dir, err := s.Dir()
	if err != nil {
		return nil, err
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	arguments := []string{"--bind", "127.0.0.1", "--port", port, "--dir", dir, "--save", "", "--appendonly", "no", "--daemonize", "no"}
	if appendfsync != "" {
		arguments = append(arguments, "--appendonly", "yes", "--appendfsync", appendfsync)
	}
	p, err := s.set.Start(name, nil, "redis-server", arguments...)
	if err != nil {
		return nil, err
	}
	r := &Redis{Process: p, Addr: addr, dir: dir, client: redis.NewClient(&redis.Options{Addr: addr, DisableIdentity: true})}
	return r, s.set.Await(p, startPatience, func() error { return r.client.Ping(s.ctx).Err() })
}

// StopRedis ends the server, and removes what it wrote.
func (s *Stage) StopRedis(r *Redis) error {
	_ = r.client.Close() // the server is gone next
	s.set.Stop(r.Process)
	return s.Remove(r.dir)
}

// RedisWork is what a server has done since it was started.
type RedisWork struct {
	// Commands are all that were executed, those within scripts too.
	Commands float64
	// Reads are how often the server has read from a connection: a flush of a client is one,
	// however many commands are in it, unless it is larger than 16 KiB.
	Reads float64
	// In and Out are the bytes from and to clients.
	In, Out float64
}

// Minus returns what was done between two readings.
func (w RedisWork) Minus(earlier RedisWork) RedisWork {
	return RedisWork{w.Commands - earlier.Commands, w.Reads - earlier.Reads, w.In - earlier.In, w.Out - earlier.Out}
}

// Work returns what the server has done.
func (r *Redis) Work(ctx context.Context) (RedisWork, error) {
	info, err := r.client.Info(ctx, "stats").Result()
	if err != nil {
		return RedisWork{}, fmt.Errorf("INFO of %s: %w", r.Name, err)
	}
	return workIn(info)
}

func workIn(info string) (w RedisWork, err error) {
	for name, to := range map[string]*float64{
		"total_commands_processed": &w.Commands, "total_reads_processed": &w.Reads,
		"total_net_input_bytes": &w.In, "total_net_output_bytes": &w.Out,
	} {
		_, rest, found := strings.Cut("\n"+info, "\n"+name+":")
		line, _, _ := strings.Cut(rest, "\n")
		if *to, err = strconv.ParseFloat(strings.TrimSpace(line), 64); err != nil || !found {
			return RedisWork{}, fmt.Errorf("INFO has no number %s, but %q", name, line)
		}
	}
	return w, nil
}

// ContinueAfter ends a Pause when its time is over.
func (r *Redis) ContinueAfter(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	return r.Continue()
}
