package measure

import (
	"github.com/caddy-dedup/caddy-dedup/bench/internal/report"
	"github.com/caddy-dedup/caddy-dedup/bench/internal/stats"
)

// size compares the stripped binary with that of Caddy without the handler.
func (b *Bench) size(ours int64) error {
	if !b.wants("size") {
		return nil
	}
	b.say("build Caddy")
	plain, err := b.stage.BuildCaddy()
	if err != nil {
		return err
	}
	b.add(report.Group{Name: "size", Title: "The binary, without symbols", Columns: []report.Column{
		{Key: "more", Title: "MB over plain Caddy", Digits: 1}, {Key: "size", Title: "MB", Digits: 1},
	}, Rows: []report.Row{
		{Name: "size/plain", What: "plain Caddy", Cells: map[string]stats.Spread{"size": report.Single(float64(plain) / 1e6)}},
		{Name: "size", What: "caddy-dedup", Goal: "+20", Cells: map[string]stats.Spread{
			"size": report.Single(float64(ours) / 1e6), "more": report.Single(float64(ours-plain) / 1e6),
		}},
	}})
	return nil
}
