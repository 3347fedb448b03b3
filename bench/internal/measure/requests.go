package measure

import (
	"github.com/caddy-dedup/caddy-dedup/bench/internal/load"
	"github.com/caddy-dedup/caddy-dedup/bench/internal/report"
	"github.com/caddy-dedup/caddy-dedup/bench/internal/stats"
)

// kind is what the requests of a case are.
type kind int

const (
	withoutKey kind = iota
	first           // each with a key of its own
	duplicate       // with keys whose responses are kept
)

// requestCase is a case of the closed loop.
type requestCase struct {
	name, what string
	subject    string
	kind       kind
	// baseline is the case that this one is a ratio to; "" of a baseline itself.
	baseline string
}

func (b *Bench) requestCases() []requestCase {
	cases := []requestCase{
		{"plain", "plain Caddy", "plain", first, ""},
		{"respond", "Caddy's `respond`", "respond", first, "plain"},
		{"no-key", "no key, dedup configured", "file", withoutKey, "plain"},
	}
	stores := []struct{ name, what string }{{"memory", "memory"}, {"file", "file"}, {"redis", "Redis"}}
	for _, store := range stores {
		cases = append(cases, requestCase{"first/" + store.name, "first delivery, " + store.what, store.name, first, "plain"})
	}
	if b.Against != "" {
		for _, store := range stores {
			cases = append(cases, requestCase{"other/" + store.name, "the other source, first delivery, " + store.what, "other " + store.name, first, "plain"})
		}
	}
	for _, store := range stores {
		cases = append(cases,
			requestCase{"duplicate/" + store.name + "/copy", "duplicate, " + store.what + ", local copy", store.name, duplicate, "plain"},
			requestCase{"duplicate/" + store.name, "duplicate, " + store.what + ", local copies off", store.name + " without copies", duplicate, "plain"})
	}
	return append(cases,
		requestCase{"bare/memory", "bare handler, first delivery, memory", "bare memory", first, "plain"},
		requestCase{"bare/redis", "bare handler, first delivery, Redis", "bare redis", first, "plain"},
		requestCase{"fiber/no-key", "Fiber's proxy, no key", "fiber", withoutKey, ""},
		requestCase{"fiber/first", "Fiber, first delivery, Redis", "fiber", first, "fiber/no-key"},
		requestCase{"fiber/duplicate", "Fiber, duplicate, Redis", "fiber", duplicate, "fiber/no-key"},
	)
}

// chosen are the cases that are asked for, and the baselines that they need.
func (b *Bench) chosen() (cases []requestCase) {
	needed := make(map[string]bool)
	for _, c := range b.requestCases() {
		if b.wants(c.name) {
			needed[c.name], needed[c.baseline] = true, true
			needed["other/"+c.subject] = needed["other/"+c.subject] || c.kind == first
			needed["respond"] = needed["respond"] || c.kind == duplicate && c.subject != "fiber"
		}
	}
	for _, c := range b.requestCases() {
		if needed[c.name] {
			cases = append(cases, c)
		}
	}
	return cases
}

// turn gives a case its turn.
func (b *Bench) turn(c requestCase, until load.Until) (slice, error) {
	s, err := b.subject(c.subject)
	if err != nil {
		return slice{}, err
	}
	var r load.Request
	which := allRun
	switch c.kind {
	case duplicate:
		if r, err = b.again(s); err != nil {
			return slice{}, err
		}
		which = noneRuns
	case first:
		r = b.fresh(s)
	default:
		r = s.request(b.keys.none)
	}
	if c.subject == "respond" {
		which = noneRuns
	}
	return b.measure(s, r, until, which)
}

// requests measures all cases of the closed loop, in rounds: A B C, A B C, and so on. What
// disturbs the machine for a while then disturbs all of them, and the ratios of a round
// are of turns that were close to each other.
func (b *Bench) requests() error {
	cases := b.chosen()
	if len(cases) == 0 {
		return nil
	}
	b.say("warm up %d cases", len(cases))
	for _, c := range cases {
		if _, err := b.turn(c, load.Until{For: b.For / 4}); err != nil {
			return err
		}
	}
	measured := make(map[string][]slice)
	for round := range b.Rounds {
		b.say("round %d of %d", round+1, b.Rounds)
		for _, c := range cases {
			got, err := b.turn(c, load.Until{For: b.For})
			if err != nil {
				return err
			}
			measured[c.name] = append(measured[c.name], got)
		}
	}
	b.add(requestTable(cases, measured))
	return nil
}

func requestTable(cases []requestCase, measured map[string][]slice) report.Group {
	g := report.Group{Name: "requests", Title: "Requests of 32 connections in a closed loop, responses of 512 bytes", Columns: []report.Column{
		{Key: "ratio", Title: "of plain", Digits: 2, Spread: true},
		{Key: "by-cpu", Title: "by CPU", Digits: 2, Spread: true},
		{Key: "of-other", Title: "of the other source", Digits: 3, Spread: true},
		{Key: "of-other-by-cpu", Title: "by CPU", Digits: 3, Spread: true},
		{Key: "of-respond", Title: "of `respond`", Digits: 2, Spread: true},
		{Key: "rate", Title: "requests/s"},
		{Key: "proxy", Title: "CPU of the proxy, µs"},
		{Key: "redis", Title: "of Redis, µs"},
		{Key: "allocations", Title: "allocations"},
		{Key: "refused", Title: "refused, %", Digits: 2, Spread: true},
	}}
	for _, c := range cases {
		of := measured[c.name]
		row := report.Row{Name: c.name, What: c.what, Cells: map[string]stats.Spread{
			"rate":  over(of, func(s slice) float64 { return s.perSecond }),
			"proxy": over(of, func(s slice) float64 { return s.proxyCPU }),
		}}
		for key, figure := range map[string]func(slice) float64{
			"refused":     func(s slice) float64 { return s.refused },
			"allocations": func(s slice) float64 { return s.allocations },
			"redis":       func(s slice) float64 { return s.redisCPU },
		} {
			if cell := over(of, figure); cell.Max > 0 {
				row.Cells[key] = cell
			}
		}
		if c.baseline != "" {
			row.Cells["ratio"] = ratios(of, measured[c.baseline])
			// What the ratio would be if the processors were all that a request waits for. It
			// differs less from round to round where others use them too.
			row.Cells["by-cpu"] = paired(of, measured[c.baseline], lessCPU)
		}
		if other := measured["other/"+c.subject]; c.kind == first && other != nil {
			row.Cells["of-other"], row.Cells["of-other-by-cpu"] = ratios(of, other), paired(of, other, lessCPU)
		}
		if c.kind == duplicate && c.subject != "fiber" {
			row.Cells["of-respond"] = ratios(of, measured["respond"])
		}
		g.Rows = append(g.Rows, row)
	}
	return g
}

// lessCPU is by how much a request of a costs all processes less than one of base.
func lessCPU(a, base slice) float64 { return base.allCPU / a.allCPU }

// over is a figure over the rounds.
func over(of []slice, figure func(slice) float64) stats.Spread {
	values := make([]float64, len(of))
	for i, s := range of {
		values[i] = figure(s)
	}
	return stats.Of(values...)
}

// paired is a figure of two cases, round by round.
func paired(of, with []slice, figure func(a, b slice) float64) stats.Spread {
	var values []float64
	for i := range min(len(of), len(with)) {
		values = append(values, figure(of[i], with[i]))
	}
	return stats.Of(values...)
}

// ratios are the requests per second of one case against those of another.
func ratios(of, with []slice) stats.Spread {
	return paired(of, with, func(a, b slice) float64 { return a.perSecond / b.perSecond })
}
