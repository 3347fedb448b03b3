package measure

import (
	"github.com/caddy-dedup/caddy-dedup/bench/internal/load"
	"github.com/caddy-dedup/caddy-dedup/bench/internal/process"
	"github.com/caddy-dedup/caddy-dedup/bench/internal/report"
	"github.com/caddy-dedup/caddy-dedup/bench/internal/servers"
	"github.com/caddy-dedup/caddy-dedup/bench/internal/stats"
)

// mostLarge bounds what the stores have to keep in one turn: 1 GiB.
const mostLarge = 1024

// large measures responses of 1 MiB. Each turn has processes and a store of its own, so
// that the store never has more than one turn's responses, and the peak is the turn's.
func (b *Bench) large() error {
	rows := []report.Row{{Name: "large/plain", What: "plain Caddy"}, {Name: "large/memory", What: "first delivery, memory", Goal: "0.6"},
		{Name: "large/file", What: "first delivery, file", Goal: "0.4"}, {Name: "large/redis", What: "first delivery, Redis", Goal: "0.3"}}
	subjects := []string{"plain", "memory", "file", "redis"}
	measured := make([][]slice, len(rows))
	peaks := make([][]float64, len(rows))
	asked := false
	for _, row := range rows[1:] {
		asked = asked || b.wants(row.Name)
	}
	if !asked && !b.wants(rows[0].Name) {
		return nil
	}
	for round := range b.Rounds {
		for i, row := range rows {
			if i > 0 && !b.wants(row.Name) {
				continue
			}
			b.say("1 MiB, round %d of %d: %s", round+1, b.Rounds, row.What)
			got, peak, err := b.largeTurn(subjects[i])
			if err != nil {
				return err
			}
			measured[i] = append(measured[i], got)
			peaks[i] = append(peaks[i], float64(peak)/1e6)
		}
	}
	g := report.Group{Name: "large", Title: "Responses of 1 MiB, 32 connections", Columns: []report.Column{
		{Key: "ratio", Title: "of plain", Digits: 2, Spread: true},
		{Key: "rate", Title: "requests/s"},
		{Key: "p99", Title: "p99 ms"},
		{Key: "proxy", Title: "CPU of the proxy, µs"},
		{Key: "peak", Title: "peak memory of the proxy, MB"},
	}}
	for i, row := range rows {
		if len(measured[i]) == 0 {
			continue
		}
		row.Cells = map[string]stats.Spread{
			"rate":  over(measured[i], func(s slice) float64 { return s.perSecond }),
			"p99":   over(measured[i], func(s slice) float64 { return s.p99 }),
			"proxy": over(measured[i], func(s slice) float64 { return s.proxyCPU }), "peak": stats.Of(peaks[i]...),
		}
		if i > 0 {
			row.Cells["ratio"] = ratios(measured[i], measured[0])
		}
		g.Rows = append(g.Rows, row)
	}
	b.add(g)
	return nil
}

func (b *Bench) largeTurn(name string) (got slice, peak int64, err error) {
	s, err := b.own(name)
	if err != nil {
		return got, 0, err
	}
	if got, err = b.measure(s, b.fresh(s, servers.Large), load.Until{For: b.For, Requests: mostLarge}, allRun); err != nil {
		return got, 0, err
	}
	memory, err := process.MemoryOf(s.proxies[0].PID)
	if err != nil {
		return got, 0, err
	}
	return got, memory.Peak, b.stop(s)
}
