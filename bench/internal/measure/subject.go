package measure

import (
	"fmt"

	"github.com/caddy-dedup/caddy-dedup/bench/internal/load"
	"github.com/caddy-dedup/caddy-dedup/bench/internal/process"
	"github.com/caddy-dedup/caddy-dedup/bench/internal/servers"
)

// subject is what is measured: one proxy, or replicas of one, and its store.
type subject struct {
	name    string
	addrs   []string
	proxies []*process.Process
	caddies []*servers.Caddy // none of Fiber's
	redis   *servers.Redis   // nil without one
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

func (b *Bench) start(name string) (*subject, error) {
	switch name {
	case "plain":
		return b.startCaddies(name, 1, nil, servers.Site{})
	case "respond":
		return b.startCaddies(name, 1, nil, servers.Site{Respond: servers.Small})
	case "memory", "file":
		return b.startCaddies(name, 1, nil, servers.Dedup(name))
	case "file with request buffers":
		site := servers.Dedup("file")
		site.Proxy = requestBuffers
		return b.startCaddies(name, 1, nil, site)
	case "memory without copies":
		return b.startCaddies(name, 1, nil, servers.Dedup("memory", "local_copies off"))
	case "file without copies":
		return b.startCaddies(name, 1, nil, servers.Dedup("file", "local_copies off"))
	case "redis":
		return b.startOnRedis(name, 1, "", nil)
	case "redis with request buffers":
		return b.startOnRedis(name, 1, "", requestBuffers)
	case "redis without copies":
		return b.startOnRedis(name, 1, "", nil, "local_copies off")
	case "redis appendonly":
		return b.startOnRedis(name, 1, b.Appendonly, nil)
	case "replicas":
		return b.startOnRedis(name, 2, "", nil)
	case "bare memory":
		return b.startCaddies(name, 1, nil, servers.Site{Bare: "memory"})
	case "bare redis":
		redis, err := b.stage.StartRedis("redis-server (bare)", "")
		if err != nil {
			return nil, err
		}
		return b.startCaddies(name, 1, redis, servers.Site{Bare: "redis://" + redis.Addr})
	case "fiber":
		return b.startFiber()
	}
	return nil, fmt.Errorf("no subject is called %q", name)
}

// own starts a subject that is nobody else's; it is ended by stop.
func (b *Bench) own(name string) (*subject, error) { return b.start(name) }

func (b *Bench) startCaddies(name string, n int, redis *servers.Redis, site servers.Site) (*subject, error) {
	s := &subject{name: name, redis: redis, marks: site.Global != nil}
	for range n {
		c, err := b.stage.StartCaddy("caddy-dedup ("+name+")", site, b.upstream)
		if err != nil {
			return nil, err
		}
		s.caddies = append(s.caddies, c)
		s.proxies = append(s.proxies, c.Process)
		s.addrs = append(s.addrs, c.Addr)
	}
	return s, nil
}

// requestBuffers has reverse_proxy send header and body of a small request together.
var requestBuffers = []string{"request_buffers 4KiB"}

func (b *Bench) startOnRedis(name string, n int, appendfsync string, proxy []string, global ...string) (*subject, error) {
	redis, err := b.stage.StartRedis("redis-server ("+name+")", appendfsync)
	if err != nil {
		return nil, err
	}
	site := servers.Dedup("redis redis://"+redis.Addr, global...)
	site.Proxy = proxy
	return b.startCaddies(name, n, redis, site)
}

func (b *Bench) startFiber() (*subject, error) {
	redis, err := b.stage.StartRedis("redis-server (fiber)", "")
	if err != nil {
		return nil, err
	}
	b.say("build Fiber")
	f, err := b.stage.StartFiber(b.upstream, redis)
	if err != nil {
		return nil, err
	}
	return &subject{name: "fiber", addrs: []string{f.Addr}, proxies: []*process.Process{f.Process}, redis: redis}, nil
}

// stop ends a subject, and removes what it kept.
func (b *Bench) stop(s *subject) error {
	for _, c := range s.caddies {
		if err := b.stage.StopCaddy(c); err != nil {
			return err
		}
	}
	if s.redis != nil {
		return b.stage.StopRedis(s.redis)
	}
	return nil
}

// request is what the subject is asked for.
func (s *subject) request(size int64, key func(int64) string) load.Request {
	r := load.Request{Key: key, Body: payment, Size: size}
	for _, addr := range s.addrs {
		r.URLs = append(r.URLs, "http://"+addr+servers.Path(size))
	}
	return r
}

// again are requests whose keys the store knows, and whose answers must be replays.
func (b *Bench) again(s *subject) (load.Request, error) {
	if s.known == nil {
		s.known = b.keys.some(duplicates)
	}
	r := s.request(servers.Small, s.known)
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
func (b *Bench) fresh(s *subject, size int64) load.Request {
	r := s.request(size, b.keys.fresh)
	if s.marks {
		no := false
		r.Replayed = &no
	}
	return r
}

// blame adds to an error what the subject's processes said last.
func (b *Bench) blame(s *subject, err error) error {
	err = fmt.Errorf("%s: %w", s.name, err)
	said := s.proxies
	if s.redis != nil {
		said = append(said[:len(said):len(said)], s.redis.Process)
	}
	for _, p := range said {
		err = fmt.Errorf("%w\n%s said last:\n%s", err, p.Name, p.Tail())
	}
	return err
}
