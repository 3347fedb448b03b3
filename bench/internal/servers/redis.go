package servers

import (
	"net"

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

// StartRedis starts a server that writes nothing to the disk.
func (s *Stage) StartRedis(name string) (*Redis, error) {
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
	p, err := s.set.Start(name, nil, "redis-server", "--bind", "127.0.0.1", "--port", port, "--dir", dir,
		"--save", "", "--appendonly", "no", "--daemonize", "no")
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
