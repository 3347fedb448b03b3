package measure

import (
	"time"

	"github.com/caddy-dedup/caddy-dedup/bench/internal/load"
	"github.com/caddy-dedup/caddy-dedup/bench/internal/report"
	"github.com/caddy-dedup/caddy-dedup/bench/internal/servers"
	"github.com/caddy-dedup/caddy-dedup/bench/internal/stats"
)

// burst is a number of new keys at the same time, over a Redis that is not at its best.
type burst struct {
	name, what string
	requests   int
	roundTrip  time.Duration // to Redis; 0 is loopback
	standStill time.Duration // of Redis, from the burst's first moment on
}

var allBursts = []burst{
	{"burst/new", "1,000 new keys at once", 1000, 0, 0},
	{"burst/far", "100 new keys at once, Redis 20 ms away", 100, 20 * time.Millisecond, 0},
	{"burst/still", "60 new keys at once, Redis stands still for 150 ms", 60, 0, 150 * time.Millisecond},
}

// burstFigures are those of all rounds of a burst.
type burstFigures struct {
	refused, unprotected float64
	p50, p99, longest    []float64
}

// bursts counts the requests that are refused where many come at once, and under
// `on_store_error pass` those that run unprotected.
func (b *Bench) bursts() error {
	g := report.Group{Name: "bursts", Title: "Bursts over Redis", Columns: []report.Column{
		{Key: "refused", Title: "refused, %", Digits: 1},
		{Key: "unprotected", Title: "unprotected under `on_store_error pass`, %", Digits: 1},
		{Key: "p50", Title: "p50 ms", Digits: 1},
		{Key: "p99", Title: "p99 ms", Digits: 1},
		{Key: "longest", Title: "longest, ms", Digits: 1},
	}}
	for _, c := range allBursts {
		if !b.wants(c.name) {
			continue
		}
		b.say("%s", c.what)
		var f burstFigures
		for _, choice := range []string{"reject", "pass"} {
			if err := b.burst(c, choice, &f); err != nil {
				return err
			}
		}
		share := 100 / float64(c.requests*b.Rounds)
		g.Rows = append(g.Rows, report.Row{Name: c.name, What: c.what, Goal: "none", Cells: map[string]stats.Spread{
			"refused": report.Single(f.refused * share), "unprotected": report.Single(f.unprotected * share),
			"p50": stats.Of(f.p50...), "p99": stats.Of(f.p99...), "longest": stats.Of(f.longest...),
		}})
	}
	b.add(g)
	return nil
}

// burst runs all rounds of a burst with one choice of on_store_error.
func (b *Bench) burst(c burst, choice string, f *burstFigures) error {
	redis, err := b.stage.StartRedis("redis-server ("+c.name+")", "")
	if err != nil {
		return err
	}
	addr := redis.Addr
	if c.roundTrip > 0 {
		link, err := b.stage.StartLink(c.name, redis.Addr, c.roundTrip)
		if err != nil {
			return err
		}
		defer link.Stop()
		addr = link.Addr
	}
	site := servers.Dedup("redis redis://" + addr)
	site.Handler = append(site.Handler, "on_store_error "+choice)
	site.Outcome = true
	s, err := b.startCaddies(c.name+", "+choice, 1, redis, site)
	if err != nil {
		return err
	}
	// A proxy that has just been started has no connections yet: it is not the burst's
	// fault, and nobody's case.
	if err := load.Closed(b.ctx, b.fresh(s, servers.Small), 1, load.Until{Requests: 20}).Strict(); err != nil {
		return b.blame(s, err)
	}
	for range b.Rounds {
		got, err := b.oneBurst(c, s)
		if err != nil {
			return err
		}
		f.unprotected += float64(got.Failed[load.Unprotected])
		delete(got.Failed, load.Unprotected)
		if err := got.Err(); err != nil {
			return b.blame(s, err)
		}
		if choice == "reject" {
			f.refused += float64(got.Refused())
			f.p50 = append(f.p50, milliseconds(stats.Quantile(got.Latencies, 0.5)))
			f.p99 = append(f.p99, milliseconds(stats.Quantile(got.Latencies, 0.99)))
			f.longest = append(f.longest, milliseconds(stats.Quantile(got.Latencies, 1)))
		}
	}
	return b.stop(s)
}

func (b *Bench) oneBurst(c burst, s *subject) (load.Result, error) {
	stood := make(chan error, 1)
	if c.standStill > 0 {
		if err := s.redis.Pause(); err != nil {
			return load.Result{}, err
		}
		go func() { stood <- s.redis.ContinueAfter(b.ctx, c.standStill) }()
	} else {
		stood <- nil
	}
	got := load.AtOnce(b.ctx, b.fresh(s, servers.Small), c.requests)
	if err := <-stood; err != nil {
		return got, err
	}
	if b.ctx.Err() != nil {
		return got, b.ctx.Err()
	}
	return got, b.quiet(s, time.Second)
}
