package servers

import (
	"net"
	"path/filepath"
	"time"

	"github.com/caddy-dedup/caddy-dedup/bench/internal/process"
)

// Fiber is a process of Fiber's idempotency middleware and proxy: see the module in the
// directory fiber.
type Fiber struct {
	*process.Process
	Addr string
}

// StartFiber builds and starts it, with a Redis behind it.
func (s *Stage) StartFiber(upstream *Upstream, redis *Redis) (*Fiber, error) {
	program := filepath.Join(s.dir, "fiber")
	if err := s.build(program, filepath.Join(s.project, "bench", "fiber"), "."); err != nil {
		return nil, err
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	p, err := s.set.Start("Fiber", nil, program, "-listen", addr, "-upstream", "http://"+upstream.Addr, "-redis", "redis://"+redis.Addr)
	if err != nil {
		return nil, err
	}
	return &Fiber{Process: p, Addr: addr}, s.set.Await(p, startPatience, func() error {
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}
