package measure

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"

	"github.com/caddy-dedup/caddy-dedup/bench/internal/report"
	"github.com/caddy-dedup/caddy-dedup/bench/internal/servers"
	"github.com/caddy-dedup/caddy-dedup/bench/internal/stats"
)

// storageEngine is a process of the program in the directory engines.
type storageEngine struct {
	name, what string
	dir        string
	in         io.WriteCloser
	out        *json.Decoder
	said       bytes.Buffer
	command    *exec.Cmd
}

// engineTurn is its answer to a turn.
type engineTurn struct {
	PerSecond float64 `json:"per_second"`
	CPU       float64 `json:"cpu_microseconds"`
	P50       float64 `json:"p50_milliseconds"`
	P99       float64 `json:"p99_milliseconds"`
	Anonymous float64 `json:"anonymous_megabytes"`
}

// engines compares storage engines for what a first delivery writes, without a proxy.
func (b *Bench) engines() (err error) {
	var all []*storageEngine
	defer func() {
		for _, e := range all {
			err = errors.Join(err, e.end())
		}
	}()
	program := ""
	for _, c := range [][2]string{
		{"store", "the file store (pebble, with its rules)"}, {"pebble", "pebble, bare puts"}, {"bbolt", "bbolt"},
		{"sqlite", "SQLite (modernc.org/sqlite)"}, {"log", "a bare log"},
	} {
		if !b.wants("engines/" + c[0]) {
			continue
		}
		if program == "" {
			if program, err = b.buildEngines(); err != nil {
				return err
			}
		}
		e := &storageEngine{name: c[0], what: c[1]}
		if err := b.startEngine(e, program); err != nil {
			return err
		}
		all = append(all, e)
	}
	if len(all) == 0 {
		return nil
	}
	g := report.Group{Name: "engines", Title: "Storage engines: claim and settle, flushed to disk, 32 at a time", Columns: []report.Column{
		{Key: "rate", Title: "pairs/s", Spread: true}, {Key: "keys", Title: "keys before"}, {Key: "cpu", Title: "CPU, µs"},
		{Key: "p50", Title: "p50 ms", Digits: 1}, {Key: "p99", Title: "p99 ms", Digits: 1},
		{Key: "anonymous", Title: "anonymous memory, MB"}, {Key: "disk", Title: "disk, MB"},
	}}
	for _, keys := range []int{0, b.Keys} {
		rows, err := b.engineRounds(all, keys)
		if err != nil {
			return err
		}
		g.Rows = append(g.Rows, rows...)
	}
	b.add(g)
	return nil
}

func (b *Bench) buildEngines() (string, error) {
	b.say("build the storage engines")
	dir, err := b.stage.Dir()
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, "engines")
	_, err = b.stage.Build(program, filepath.Join(b.Project, "bench", "engines"), ".")
	return program, err
}

func (b *Bench) startEngine(e *storageEngine, program string) (err error) {
	if e.dir, err = b.stage.Dir(); err != nil {
		return err
	}
	e.command = exec.CommandContext(b.ctx, program, "-engine", e.name, "-dir", e.dir)
	e.command.Stderr = &e.said
	if e.in, err = e.command.StdinPipe(); err != nil {
		return err
	}
	out, err := e.command.StdoutPipe()
	if err != nil {
		return err
	}
	e.out = json.NewDecoder(out)
	return e.command.Start()
}

// engineRounds fills all engines with so many keys, and measures them in rounds.
func (b *Bench) engineRounds(all []*storageEngine, keys int) (rows []report.Row, err error) {
	measured := make([][]engineTurn, len(all))
	for _, e := range all {
		if keys > 0 {
			b.say("%s: %d keys", e.what, keys)
			if err := e.do(fmt.Sprint("fill ", keys), new(struct{})); err != nil {
				return nil, err
			}
		}
	}
	for round := range b.Rounds {
		b.say("storage engines with %d keys, round %d of %d", keys, round+1, b.Rounds)
		for i, e := range all {
			var got engineTurn
			if err := e.do("turn "+b.For.String(), &got); err != nil {
				return nil, err
			}
			measured[i] = append(measured[i], got)
		}
	}
	for i, e := range all {
		rows = append(rows, engineRow(e, keys, measured[i]))
	}
	return rows, nil
}

func engineRow(e *storageEngine, keys int, of []engineTurn) report.Row {
	figure := func(f func(engineTurn) float64) stats.Spread {
		var values []float64
		for _, t := range of {
			values = append(values, f(t))
		}
		return stats.Of(values...)
	}
	return report.Row{Name: fmt.Sprintf("engines/%s@%d", e.name, keys), What: e.what, Cells: map[string]stats.Spread{
		"rate": figure(func(t engineTurn) float64 { return t.PerSecond }), "keys": report.Single(float64(keys)),
		"cpu": figure(func(t engineTurn) float64 { return t.CPU }),
		"p50": figure(func(t engineTurn) float64 { return t.P50 }), "p99": figure(func(t engineTurn) float64 { return t.P99 }),
		"anonymous": figure(func(t engineTurn) float64 { return t.Anonymous }),
		"disk":      report.Single(float64(servers.DiskUse(e.dir)) / 1e6),
	}}
}

// do gives the process a line and reads its answer.
func (e *storageEngine) do(line string, answer any) error {
	_, err := fmt.Fprintln(e.in, line)
	if err == nil {
		err = e.out.Decode(answer)
	}
	if err != nil {
		return fmt.Errorf("the storage engine %s, %q: %w", e.name, line, err)
	}
	return nil
}

// end ends the process: it does so at the end of its input.
func (e *storageEngine) end() error {
	_ = e.in.Close() // it may be gone already, which Wait says
	if err := e.command.Wait(); err != nil {
		return fmt.Errorf("the storage engine %s: %w\n%s", e.name, err, e.said.Bytes())
	}
	return nil
}
