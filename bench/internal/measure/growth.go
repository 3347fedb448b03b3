package measure

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/caddy-dedup/caddy-dedup/bench/internal/load"
	"github.com/caddy-dedup/caddy-dedup/bench/internal/process"
	"github.com/caddy-dedup/caddy-dedup/bench/internal/report"
	"github.com/caddy-dedup/caddy-dedup/bench/internal/servers"
	"github.com/caddy-dedup/caddy-dedup/bench/internal/stats"
)

const (
	// sweepLate is how long after its end a key's room is given back at the earliest: the
	// file store's sweeper lets so much time pass.
	sweepLate = 10 * time.Second
	// mostInMemory bounds the memory store's keys: what it costs is a figure of one key.
	mostInMemory = 100_000
)

// growing is one store on its way to all its keys.
type growing struct {
	b *Bench
	// kept are all keys that the store has kept, those of the turns too.
	kept       int
	what       string
	s, plain   *subject
	base, full int
	// fewTurn and manyTurn are the turns with few keys, which must stay few, and with many.
	fewTurn, manyTurn load.Until
}

// growth measures what becomes of a store with many keys, and while they expire.
func (b *Bench) growth() error {
	g := report.Group{Name: "growth", Title: "Many keys", Columns: []report.Column{
		{Key: "keys", Title: "keys"},
		{Key: "speed", Title: "requests/s, of those with few keys", Digits: 2, Spread: true},
		{Key: "by-cpu", Title: "by CPU of the proxy", Digits: 2, Spread: true},
		{Key: "expiring", Title: "while they expire, of before", Digits: 2, Spread: true},
		{Key: "anonymous", Title: "anonymous memory over plain, MB", Spread: true},
		{Key: "heap", Title: "bytes of heap for a key"},
		{Key: "disk", Title: "disk, MB"},
		{Key: "disk-after", Title: "disk after, MB"},
	}}
	for _, c := range []struct{ store, what string }{{"file", "file"}, {"redis", "Redis"}, {"memory", "memory"}} {
		if !b.wants("growth/" + c.store) {
			continue
		}
		row, err := b.grow(c.store, c.what)
		if err != nil {
			return err
		}
		g.Rows = append(g.Rows, row)
	}
	b.add(g)
	return nil
}

func (b *Bench) grow(store, what string) (row report.Row, err error) {
	row = report.Row{Name: "growth/" + store, What: what, Cells: make(map[string]stats.Spread)}
	g := &growing{b: b, what: what, full: b.Keys}
	if store == "memory" {
		g.full = min(g.full, mostInMemory)
	}
	g.base = min(10_000, max(g.full/10, 1))
	// All of the first turns together do no more than double the keys.
	g.fewTurn = load.Until{Requests: int64(max(g.base/b.Rounds, 100))}
	g.manyTurn = load.Until{For: b.For, Requests: int64(g.full)}
	if g.plain, err = b.start("plain"); err != nil {
		return row, err
	}
	if g.s, err = b.start(store); err != nil {
		return row, err
	}
	if err := g.fillAndMeasure(store, &row); err != nil {
		return row, err
	}
	if err := b.stop(g.s); err != nil {
		return row, err
	}
	return row, b.stop(g.plain)
}

func (g *growing) fillAndMeasure(store string, row *report.Row) error {
	cells := row.Cells
	heap, err := g.s.caddy.LiveHeap()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := g.fill(0, g.base, time.Time{}); err != nil {
		return err
	}
	perSecond := float64(g.base) / time.Since(began).Seconds()
	few, err := g.turns(g.fewTurn)
	if err != nil {
		return err
	}
	// Half as much time again as it takes at this rate, and that of the turns.
	lives := time.Duration(1.5*float64(g.full)/perSecond*float64(time.Second)) + 5*time.Second + 3*time.Duration(g.b.Rounds)*g.b.For
	end := time.Now().Add(lives)
	if err := g.fill(g.base, g.full, end); err != nil {
		return err
	}
	// What the store still has to do for those keys is no cost of the next requests.
	if err := g.b.quiet(g.s, time.Minute); err != nil {
		return err
	}
	many, err := g.turns(g.manyTurn)
	if err != nil {
		return err
	}
	// Both are against plain, so that a machine that has become slower does not count.
	speed, cpu := ratios(few.grown, few.plain).Median, paired(few.grown, few.plain, lessProxyCPU).Median
	cells["speed"] = paired(many.grown, many.plain, func(a, b slice) float64 { return a.perSecond / b.perSecond / speed })
	cells["by-cpu"] = paired(many.grown, many.plain, func(a, b slice) float64 { return lessProxyCPU(a, b) / cpu })
	cells["keys"] = report.Single(float64(g.full))
	// One reading alone says where in its cycle the garbage collector is.
	cells["anonymous"] = stats.Of(many.anonymous...)
	if err := g.room(store, heap, cells); err != nil {
		return err
	}
	if store == "memory" {
		return nil // it is measured for what a key costs
	}
	if time.Now().After(end) {
		g.b.note("%s: keys began to expire before all were there; the figures of many keys are of fewer.", g.what)
	}
	return g.expire(end, ratios(many.grown, many.plain).Median, cells)
}

func lessProxyCPU(a, base slice) float64 { return base.proxyCPU / a.proxyCPU }

// fill adds keys. If end is set, they all live until then. A refused key is followed by
// another one.
func (g *growing) fill(from, to int, end time.Time) error {
	chunk := max(g.full/40, 500)
	refused, said := 0, time.Now()
	for at := from; at < to; {
		r := g.b.fresh(g.s)
		if !end.IsZero() {
			seconds := max(math.Ceil(time.Until(end).Seconds()), 5)
			r.Header = func() http.Header {
				return http.Header{servers.RetentionField: {strconv.Itoa(int(seconds))}}
			}
		}
		got := load.Closed(g.b.ctx, r, g.b.Connections, load.Until{Requests: int64(min(chunk, to-at))})
		if g.b.ctx.Err() != nil {
			return g.b.ctx.Err()
		}
		at += got.Good()
		g.kept += got.Good()
		refused += got.Refused()
		if err := got.Err(); err != nil || refused > to-from {
			return g.b.blame(g.s, fmt.Errorf("%d keys kept, %d refused: %w", at, refused, err))
		}
		if time.Since(said) > 10*time.Second {
			g.b.say("%s: %d of %d keys, %.0f/s", g.what, at, g.full, got.PerSecond())
			said = time.Now()
		}
	}
	if refused > 0 {
		g.b.note("%s: %d requests were refused while the store filled with %d keys.", g.what, refused, to-from)
	}
	return nil
}

// pair are turns of a store and of plain, in rounds.
type pair struct {
	grown, plain []slice
	// anonymous is by how many MB the store's process had more anonymous memory after each
	// round.
	anonymous []float64
}

func (g *growing) turns(until load.Until) (p pair, err error) {
	for range g.b.Rounds {
		if err := g.round(&p, until); err != nil {
			return p, err
		}
	}
	return p, nil
}

func (g *growing) round(p *pair, until load.Until) error {
	for _, c := range []struct {
		s  *subject
		to *[]slice
	}{{g.plain, &p.plain}, {g.s, &p.grown}} {
		got, err := g.b.measure(c.s, g.b.fresh(c.s), until, allRun)
		if err != nil {
			return err
		}
		*c.to = append(*c.to, got)
		if c.s == g.s {
			g.kept += got.answers
		}
	}
	grown, err := process.Anonymous(g.s.proxy.PID)
	if err != nil {
		return err
	}
	plain, err := process.Anonymous(g.plain.proxy.PID)
	if err != nil {
		return err
	}
	p.anonymous = append(p.anonymous, float64(grown-plain)/1e6)
	return nil
}

// room notes what the keys take.
func (g *growing) room(store string, heapBefore float64, cells map[string]stats.Spread) error {
	switch store {
	case "file":
		cells["disk"] = report.Single(float64(servers.DiskUse(g.s.caddy.Dir)) / 1e6)
	case "memory":
		heap, err := g.s.caddy.LiveHeap()
		if err != nil {
			return err
		}
		keys := float64(g.kept)
		cells["heap"] = report.Single((heap - heapBefore) / keys)
	}
	return nil
}

// expire measures while all keys expire, against plain at the same time, and both against
// how it was before.
func (g *growing) expire(end time.Time, before float64, cells map[string]stats.Spread) error {
	g.b.say("%s: the keys expire in %s", g.what, time.Until(end).Round(time.Second))
	if wait := time.Until(end); wait > 0 {
		select {
		case <-g.b.ctx.Done():
			return g.b.ctx.Err()
		case <-time.After(wait):
		}
	}
	// A sweeper that gives back 20,000 keys a second is through by then.
	lasts := sweepLate + time.Duration(g.full/20_000)*time.Second
	if g.b.Short {
		lasts = 2 * time.Second
	}
	turn := load.Until{For: min(g.b.For/2, time.Second)}
	var p pair
	for len(p.grown) == 0 || time.Since(end) < lasts {
		if err := g.round(&p, turn); err != nil {
			return err
		}
	}
	cells["expiring"] = paired(p.grown, p.plain, func(a, b slice) float64 { return a.perSecond / b.perSecond / before })
	if _, onDisk := cells["disk"]; onDisk {
		cells["disk-after"] = report.Single(float64(servers.DiskUse(g.s.caddy.Dir)) / 1e6)
	}
	return nil
}
