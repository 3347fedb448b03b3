package measure

import (
	"fmt"
	"os"
	"time"

	"github.com/caddy-dedup/caddy-dedup/bench/internal/load"
	"github.com/caddy-dedup/caddy-dedup/bench/internal/process"
)

// slice is one turn of a case: its figures, those of the processor in microseconds, and
// all of them for one request where they are not times or rates.
type slice struct {
	perSecond                  float64
	proxyCPU, redisCPU, allCPU float64
	allocations                float64
	refused                    float64 // percent
	answers                    int     // that were no refusals
}

// usage is what a subject, and all that works with it, has taken so far.
type usage struct {
	proxy, redis, others time.Duration
	allocations          float64
	runs                 int64
}

func (b *Bench) usage(s *subject) (u usage, err error) {
	if u.proxy, u.redis, err = s.cpu(); err != nil {
		return u, err
	}
	for _, pid := range []int{b.upstream.PID, os.Getpid()} {
		taken, err := process.CPU(pid)
		if err != nil {
			return u, err
		}
		u.others += taken
	}
	if s.caddy != nil {
		if u.allocations, err = s.caddy.Allocations(); err != nil {
			return u, err
		}
	}
	u.runs, err = b.upstream.Runs()
	return u, err
}

func (s *subject) cpu() (proxy, redis time.Duration, err error) {
	proxy, err = process.CPU(s.proxy.PID)
	if err == nil && s.redis != nil {
		redis, err = process.CPU(s.redis.PID)
	}
	return proxy, redis, err
}

// quiet waits until the subject has nothing left to do, for a time at most. What it does
// after its last answer belongs to its requests, not to those of the next case.
func (b *Bench) quiet(s *subject, most time.Duration) error {
	const look, idle = 50 * time.Millisecond, 10 * time.Millisecond
	before := time.Duration(-1)
	for range most / look {
		proxy, redis, err := s.cpu()
		if err != nil {
			return err
		}
		if before >= 0 && proxy+redis-before <= idle {
			return nil
		}
		before = proxy + redis
		select {
		case <-b.ctx.Done():
			return b.ctx.Err()
		case <-time.After(look):
		}
	}
	return nil
}

// runs says which of the requests of a case must reach the upstream.
type runs int

const (
	allRun runs = iota
	noneRuns
)

// measure gives a subject its turn. Refusals are counted. Any other answer that is not as it
// had to be, or a request that reached the upstream and should not have, is an error: its figures would be of
// something else.
func (b *Bench) measure(s *subject, r load.Request, until load.Until, which runs) (slice, error) {
	before, err := b.usage(s)
	if err != nil {
		return slice{}, err
	}
	got := load.Closed(b.ctx, r, b.Connections, until)
	if b.ctx.Err() != nil {
		return slice{}, b.ctx.Err()
	}
	if err := got.Err(); err != nil {
		return slice{}, b.blame(s, err)
	}
	if err := b.quiet(s, time.Second); err != nil {
		return slice{}, err
	}
	after, err := b.usage(s)
	if err != nil {
		return slice{}, err
	}
	want := map[runs]int{allRun: got.Good(), noneRuns: 0}[which]
	if ran := after.runs - before.runs; ran != int64(want) {
		return slice{}, b.blame(s, fmt.Errorf("%d of %d requests reached the upstream, not %d", ran, got.Good(), want))
	}
	if got.Good() == 0 {
		return slice{}, b.blame(s, fmt.Errorf("no answer within %s", until.For))
	}
	return sliceOf(got, before, after), nil
}

func sliceOf(got load.Result, before, after usage) slice {
	each := float64(got.Good())
	microseconds := func(d time.Duration) float64 { return float64(d.Microseconds()) / each }
	proxy, redis := after.proxy-before.proxy, after.redis-before.redis
	return slice{
		perSecond: got.PerSecond(),
		proxyCPU:  microseconds(proxy), redisCPU: microseconds(redis),
		allCPU:      microseconds(proxy + redis + after.others - before.others),
		allocations: (after.allocations - before.allocations) / each,
		answers:     got.Good(),
		refused:     100 * float64(got.Refused()) / float64(got.Good()+got.Refused()),
	}
}
