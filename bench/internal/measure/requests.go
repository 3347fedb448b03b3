package measure

import (
	"github.com/caddy-dedup/caddy-dedup/bench/internal/load"
	"github.com/caddy-dedup/caddy-dedup/bench/internal/report"
	"github.com/caddy-dedup/caddy-dedup/bench/internal/servers"
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
	name, what, goal string
	subject          string
	kind             kind
	// baseline is the case that this one is a ratio to; "" of a baseline itself.
	baseline string
}

func (b *Bench) requestCases() (cases []requestCase) {
	add := func(c ...requestCase) { cases = append(cases, c...) }
	add(
		requestCase{"plain", "plain Caddy", "", "plain", first, ""},
		requestCase{"respond", "Caddy's `respond`", "", "respond", first, "plain"},
		requestCase{"no-key", "no key, dedup configured", "0.97", "file", withoutKey, "plain"},
		requestCase{"first/memory", "first delivery, memory", "0.92", "memory", first, "plain"},
		requestCase{"first/file", "first delivery, file", "0.68", "file", first, "plain"},
		requestCase{"first/redis", "first delivery, Redis", "0.78", "redis", first, "plain"},
		requestCase{"first/file/request-buffers", "first delivery, file, `request_buffers 4KiB`", "", "file with request buffers", first, "plain"},
		requestCase{"first/redis/request-buffers", "first delivery, Redis, `request_buffers 4KiB`", "", "redis with request buffers", first, "plain"},
	)
	if b.Appendonly != "" {
		add(requestCase{"first/redis-appendonly", "first delivery, Redis, appendfsync " + b.Appendonly, "", "redis appendonly", first, "plain"})
	}
	if b.Replicas {
		add(requestCase{"first/replicas", "first delivery, two replicas on Redis", "", "replicas", first, "plain"},
			requestCase{"duplicate/replicas", "duplicate, two replicas on Redis", "", "replicas", duplicate, "plain"})
	}
	for _, store := range []struct{ name, what, without string }{{"memory", "memory", ""}, {"file", "file", ""}, {"redis", "Redis", "1.5"}} {
		plainly := requestCase{"duplicate/" + store.name, "duplicate, " + store.what, store.without, store.name, duplicate, "plain"}
		if b.copies {
			add(requestCase{"duplicate/" + store.name + "/copy", "duplicate, " + store.what + ", local copy", "3.0", store.name, duplicate, "plain"})
			plainly.what += ", local copies off"
			plainly.subject += " without copies"
		}
		add(plainly)
	}
	add(
		requestCase{"bare/memory", "bare handler, first delivery, memory", "", "bare memory", first, "plain"},
		requestCase{"bare/redis", "bare handler, first delivery, Redis", "", "bare redis", first, "plain"},
		requestCase{"fiber/no-key", "Fiber's proxy, no key", "", "fiber", withoutKey, ""},
		requestCase{"fiber/first", "Fiber, first delivery, Redis", "", "fiber", first, "fiber/no-key"},
		requestCase{"fiber/duplicate", "Fiber, duplicate, Redis", "", "fiber", duplicate, "fiber/no-key"},
	)
	return cases
}

// chosen are the cases that are asked for, and the baselines that they need.
func (b *Bench) chosen() (cases []requestCase) {
	needed := make(map[string]bool)
	for _, c := range b.requestCases() {
		if b.wants(c.name) {
			needed[c.name], needed[c.baseline] = true, true
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
		r = b.fresh(s, servers.Small)
	default:
		r = s.request(servers.Small, b.keys.none)
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
		if _, err := b.turn(c, load.Until{For: max(b.For/4, minTurn)}); err != nil {
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
	b.add(costTable(cases, measured))
	return nil
}

func requestTable(cases []requestCase, measured map[string][]slice) report.Group {
	g := report.Group{Name: "requests", Title: "Requests of 32 connections in a closed loop, responses of 512 bytes", Columns: []report.Column{
		{Key: "ratio", Title: "of plain", Digits: 2, Spread: true},
		{Key: "by-cpu", Title: "by CPU", Digits: 2, Spread: true},
		{Key: "of-respond", Title: "of `respond`", Digits: 2, Spread: true},
		{Key: "rate", Title: "requests/s"},
		{Key: "p50", Title: "p50 ms", Digits: 1},
		{Key: "p99", Title: "p99 ms", Digits: 1},
		{Key: "proxy", Title: "CPU of the proxy, µs"},
		{Key: "all", Title: "of all processes, µs"},
		{Key: "refused", Title: "refused, %", Digits: 2, Spread: true},
	}}
	for _, c := range cases {
		of := measured[c.name]
		row := report.Row{Name: c.name, What: c.what, Goal: c.goal, Cells: map[string]stats.Spread{
			"rate": over(of, func(s slice) float64 { return s.perSecond }),
			"p50":  over(of, func(s slice) float64 { return s.p50 }), "p99": over(of, func(s slice) float64 { return s.p99 }),
			"proxy": over(of, func(s slice) float64 { return s.proxyCPU }), "all": over(of, func(s slice) float64 { return s.allCPU }),
		}}
		if refused := over(of, func(s slice) float64 { return s.refused }); refused.Max > 0 {
			row.Cells["refused"] = refused
		}
		if c.baseline != "" {
			row.Cells["ratio"] = ratios(of, measured[c.baseline])
			// What the ratio would be if the processors were all that a request waits for. It
			// differs less from round to round where others use them too.
			row.Cells["by-cpu"] = paired(of, measured[c.baseline], func(a, base slice) float64 { return base.allCPU / a.allCPU })
		}
		if c.kind == duplicate && c.subject != "fiber" {
			row.Cells["of-respond"] = ratios(of, measured["respond"])
		}
		g.Rows = append(g.Rows, row)
	}
	return g
}

func costTable(cases []requestCase, measured map[string][]slice) report.Group {
	g := report.Group{Name: "costs", Title: "What one request costs", Columns: []report.Column{
		{Key: "beyond", Title: "allocations beyond plain"},
		{Key: "allocations", Title: "allocations"},
		{Key: "redis", Title: "CPU of Redis, µs", Digits: 1},
		{Key: "commands", Title: "commands in Redis", Digits: 2},
		{Key: "reads", Title: "flushes to Redis", Digits: 2},
		{Key: "in", Title: "bytes to Redis"},
		{Key: "out", Title: "from Redis"},
	}}
	for _, c := range cases {
		of := measured[c.name]
		row := report.Row{Name: c.name, What: c.what, Cells: make(map[string]stats.Spread)}
		if allocations := over(of, func(s slice) float64 { return s.allocations }); allocations.Max > 0 {
			row.Cells["allocations"] = allocations
			if c.baseline == "plain" && c.subject != "respond" {
				row.Cells["beyond"] = paired(of, measured["plain"], func(a, plain slice) float64 { return a.allocations - plain.allocations })
			}
			if c.name == "first/memory" {
				row.Goal = "55"
			}
		}
		if reads := over(of, func(s slice) float64 { return s.reads }); reads.Max > 0 && c.kind != withoutKey {
			row.Cells["redis"], row.Cells["reads"] = over(of, func(s slice) float64 { return s.redisCPU }), reads
			row.Cells["commands"] = over(of, func(s slice) float64 { return s.commands })
			row.Cells["in"], row.Cells["out"] = over(of, func(s slice) float64 { return s.in }), over(of, func(s slice) float64 { return s.out })
		}
		if len(row.Cells) > 0 {
			g.Rows = append(g.Rows, row)
		}
	}
	return g
}

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
