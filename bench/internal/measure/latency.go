package measure

import (
	"fmt"
	"slices"
	"time"

	"github.com/caddy-dedup/caddy-dedup/bench/internal/load"
	"github.com/caddy-dedup/caddy-dedup/bench/internal/report"
	"github.com/caddy-dedup/caddy-dedup/bench/internal/stats"
)

// latencies are those of one case at one rate, in milliseconds, a value for each round.
type latencies struct{ p50, p99, p999, missing []float64 }

// latency measures how long answers take at fixed rates, in rounds. At a rate above what a
// case can do, requests pile up; that is what their clients would see.
func (b *Bench) latency() error {
	var cases []requestCase
	for _, c := range b.requestCases() {
		c.name = "latency/" + c.name
		if (c.kind == first && c.subject != "respond" || c.kind == duplicate && c.subject == "redis") && b.wants(c.name) {
			cases = append(cases, c)
		}
	}
	if plain := b.requestCases()[0]; len(cases) > 0 && cases[0].subject != plain.subject {
		plain.name = "latency/" + plain.name
		cases = slices.Insert(cases, 0, plain) // the others are compared with it
	}
	measured := make(map[string]*latencies)
	for round := range b.Rounds {
		for _, rate := range b.Rates {
			arrivals := load.Schedule(rate, b.For, uint64(round))
			for _, c := range cases {
				if round == 0 {
					measured[at(c, rate)] = new(latencies)
				}
				b.say("latency, round %d of %d: %s at %.0f/s", round+1, b.Rounds, c.what, rate)
				if err := b.openTurn(c, arrivals, measured[at(c, rate)]); err != nil {
					return err
				}
			}
		}
	}
	b.addLatency(cases, measured)
	return nil
}

func at(c requestCase, rate float64) string { return fmt.Sprintf("%s@%.0f", c.name, rate) }

func (b *Bench) openTurn(c requestCase, arrivals []time.Duration, to *latencies) error {
	s, err := b.subject(c.subject)
	if err != nil {
		return err
	}
	r := b.fresh(s)
	if c.kind == duplicate {
		if r, err = b.again(s); err != nil {
			return err
		}
	}
	got := load.Open(b.ctx, r, arrivals)
	if b.ctx.Err() != nil {
		return b.ctx.Err()
	}
	// Above its rate, a proxy may refuse. These requests have no latency.
	missing := got.Unanswered
	for _, n := range got.Failed {
		missing += n
	}
	to.p50 = append(to.p50, milliseconds(stats.Quantile(got.Latencies, 0.5)))
	to.p99 = append(to.p99, milliseconds(stats.Quantile(got.Latencies, 0.99)))
	to.p999 = append(to.p999, milliseconds(stats.Quantile(got.Latencies, 0.999)))
	to.missing = append(to.missing, 100*float64(missing)/float64(max(len(arrivals), 1)))
	return b.quiet(s, time.Second)
}

func (b *Bench) addLatency(cases []requestCase, measured map[string]*latencies) {
	g := report.Group{Name: "latency", Title: "Latency at fixed rates, in ms from the scheduled moment on", Columns: []report.Column{
		{Key: "rate", Title: "requests/s"},
		{Key: "p50", Title: "p50", Digits: 2, Spread: true},
		{Key: "added", Title: "added to plain's", Digits: 2, Spread: true},
		{Key: "p99", Title: "p99", Digits: 1, Spread: true},
		{Key: "p999", Title: "p99.9", Digits: 1},
		{Key: "missing", Title: "% not answered", Digits: 1},
	}}
	for _, rate := range b.Rates {
		for _, c := range cases {
			l := measured[at(c, rate)]
			row := report.Row{Name: at(c, rate), What: c.what, Cells: map[string]stats.Spread{
				"rate": report.Single(rate), "p50": stats.Of(l.p50...), "p99": stats.Of(l.p99...), "p999": stats.Of(l.p999...),
			}}
			if missing := stats.Of(l.missing...); missing.Max > 0 {
				row.Cells["missing"] = missing
			}
			if c.baseline == "plain" {
				plain := measured[fmt.Sprintf("latency/plain@%.0f", rate)]
				var added []float64
				for round, p50 := range l.p50 {
					added = append(added, p50-plain.p50[round])
				}
				row.Cells["added"] = stats.Of(added...)
			}
			g.Rows = append(g.Rows, row)
		}
	}
	b.add(g)
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
