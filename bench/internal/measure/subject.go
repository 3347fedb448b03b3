package measure

import (
	"fmt"
	"strings"

	"github.com/caddy-dedup/caddy-dedup/bench/internal/load"
	"github.com/caddy-dedup/caddy-dedup/bench/internal/process"
	"github.com/caddy-dedup/caddy-dedup/bench/internal/servers"
)

// subject is what is measured: a proxy and its store.
type subject struct {
	name  string
	addr  string
	proxy *process.Process
	caddy *servers.Caddy // nil of Fiber's
	redis *servers.Redis // nil without one
	// marks says whether replays are marked as such.
	marks bool
	// known are keys whose responses the store has, once they were asked for.
	known func(int64) string
}

// duplicates is how many keys the duplicates have.
const duplicates = 1000

// payment is the body of all requests.
var payment = []byte(`{"order":"2026-0815","amount":{"value":"129.90","currency":"EUR"},"customer":"c-4711"}`)

// subject returns one of these, started when it is first asked for.
func (b *Bench) subject(name string) (*subject, error) {
	if s := b.subjects[name]; s != nil {
		return s, nil
	}
	s, err := b.start(name)
	if err == nil {
		b.subjects[name] = s
	}
	return s, err
}

// start starts a subject. Who asks for it by this, and not by subject, ends it by stop.
func (b *Bench) start(name string) (*subject, error) {
	switch name {
	case "plain":
		return b.startCaddy(name, nil, servers.Site{})
	case "respond":
		return b.startCaddy(name, nil, servers.Site{Respond: servers.Size})
	case "memory", "file":
		return b.startCaddy(name, nil, servers.Dedup(name))
	case "other memory", "other file":
		site := servers.Dedup(strings.TrimPrefix(name, "other "))
		site.Other = true
		return b.startCaddy(name, nil, site)
	case "other redis":
		return b.startOnRedis(name)
	case "memory without copies":
		return b.startCaddy(name, nil, servers.Dedup("memory", "local_copies off"))
	case "file without copies":
		return b.startCaddy(name, nil, servers.Dedup("file", "local_copies off"))
	case "redis":
		return b.startOnRedis(name)
	case "redis without copies":
		return b.startOnRedis(name, "local_copies off")
	case "bare memory":
		return b.startCaddy(name, nil, servers.Site{Bare: "memory"})
	case "bare redis":
		redis, err := b.stage.StartRedis("redis-server (bare)")
		if err != nil {
			return nil, err
		}
		return b.startCaddy(name, redis, servers.Site{Bare: "redis://" + redis.Addr})
	case "fiber":
		return b.startFiber()
	}
	return nil, fmt.Errorf("no subject is called %q", name)
}

func (b *Bench) startCaddy(name string, redis *servers.Redis, site servers.Site) (*subject, error) {
	c, err := b.stage.StartCaddy("caddy-dedup ("+name+")", site, b.upstream)
	if err != nil {
		return nil, err
	}
	return &subject{name: name, addr: c.Addr, proxy: c.Process, caddy: c, redis: redis, marks: site.Global != nil}, nil
}

func (b *Bench) startOnRedis(name string, global ...string) (*subject, error) {
	redis, err := b.stage.StartRedis("redis-server (" + name + ")")
	if err != nil {
		return nil, err
	}
	site := servers.Dedup("redis redis://"+redis.Addr, global...)
	site.Other = name == "other redis"
	return b.startCaddy(name, redis, site)
}

func (b *Bench) startFiber() (*subject, error) {
	redis, err := b.stage.StartRedis("redis-server (fiber)")
	if err != nil {
		return nil, err
	}
	b.say("build Fiber")
	f, err := b.stage.StartFiber(b.upstream, redis)
	if err != nil {
		return nil, err
	}
	return &subject{name: "fiber", addr: f.Addr, proxy: f.Process, redis: redis}, nil
}

// stop ends a subject, and removes what it kept.
func (b *Bench) stop(s *subject) error {
	if err := b.stage.StopCaddy(s.caddy); err != nil {
		return err
	}
	if s.redis != nil {
		return b.stage.StopRedis(s.redis)
	}
	return nil
}

// request is what the subject is asked for.
func (s *subject) request(key func(int64) string) load.Request {
	return load.Request{URL: "http://" + s.addr + servers.Path, Key: key, Body: payment, Size: servers.Size}
}

// again are requests whose keys the store knows, and whose answers must be replays.
func (b *Bench) again(s *subject) (load.Request, error) {
	if s.known == nil {
		s.known = b.keys.some(duplicates)
	}
	r := s.request(s.known)
	// Through all of them: those that are new run, and local copies are fresh. Few at a time,
	// and again if one was refused: the store must have each of them.
	for try := 1; ; try++ {
		err := load.Closed(b.ctx, r, 8, load.Until{Requests: duplicates}).Strict()
		if err == nil {
			break
		}
		if try == 5 || b.ctx.Err() != nil {
			return r, b.blame(s, err)
		}
	}
	if s.marks {
		yes := true
		r.Replayed = &yes
	}
	return r, nil
}

// fresh are requests that must run.
func (b *Bench) fresh(s *subject) load.Request {
	r := s.request(b.keys.fresh)
	if s.marks {
		no := false
		r.Replayed = &no
	}
	return r
}

// blame adds to an error what the subject's processes said last.
func (b *Bench) blame(s *subject, err error) error {
	err = fmt.Errorf("%s: %w", s.name, err)
	said := []*process.Process{s.proxy}
	if s.redis != nil {
		said = append(said, s.redis.Process)
	}
	for _, p := range said {
		err = fmt.Errorf("%w\n%s said last:\n%s", err, p.Name, p.Tail())
	}
	return err
}
