// Package measure has the cases of the benchmark: what is started for each, what is sent,
// and which figures are taken.
package measure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/caddy-dedup/caddy-dedup/bench/internal/process"
	"github.com/caddy-dedup/caddy-dedup/bench/internal/report"
	"github.com/caddy-dedup/caddy-dedup/bench/internal/servers"
)

// Options are what a run is asked to do.
type Options struct {
	// Cases and Without choose cases by their names; nil chooses all, and leaves out none.
	Cases, Without *regexp.Regexp
	// Rounds is how often each case has its turn, and For how long a turn is.
	Rounds int
	For    time.Duration
	// Connections are those of the closed loops.
	Connections int
	// Rates are the requests per second of the open-loop cases.
	Rates []float64
	// Keys is how far the stores grow.
	Keys int
	// Against is the directory of another source of caddy-dedup, for cases other/; "" for none.
	Against string
	// Short waits for less than it takes until all expired keys are removed.
	Short bool
	// Dir is where the run makes its own directory, and Project that of caddy-dedup.
	Dir, Project string
	// Program is this very program: it is the upstream too.
	Program string
	// Progress gets a line for each thing that is done.
	Progress io.Writer
}

// Bench is a run.
type Bench struct {
	Options
	ctx      context.Context
	set      *process.Set
	stage    *servers.Stage
	upstream *servers.Upstream
	// subjects are those that were started, by their names.
	subjects map[string]*subject
	keys     *keys
	result   *report.Result
}

// Run measures what it is asked to. Whatever it starts ends before it returns, also if
// the context ends, or a process does.
func Run(ctx context.Context, o Options) (result *report.Result, err error) {
	dir, err := os.MkdirTemp(o.Dir, "dedup-bench")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	project, err := filepath.Abs(o.Project)
	if err != nil {
		return nil, err
	}
	o.Project = project
	set, ctx := process.NewSet(ctx, dir)
	defer set.Close()
	b := &Bench{
		Options: o, ctx: ctx, set: set, stage: servers.NewStage(ctx, set, dir, project),
		subjects: make(map[string]*subject), keys: newKeys(), result: &report.Result{Date: time.Now().UTC(), Short: o.Short},
	}
	if err := b.run(dir); err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w\n(seen as: %w)", cause, err)
		}
		return nil, err
	}
	return b.result, nil
}

func (b *Bench) run(dir string) error {
	if err := b.describe(); err != nil {
		return err
	}
	if servers.InMemory(dir) {
		b.note("%s is in memory, not on a disk: the file store's flushes cost nothing there. Use -dir.", b.Dir)
	}
	b.say("build caddy-dedup")
	if err := b.stage.BuildProduct(); err != nil {
		return err
	}
	if b.Against != "" {
		if err := b.stage.BuildOther(b.Against); err != nil {
			return err
		}
	}
	var err error
	if b.upstream, err = b.stage.StartUpstream(b.Program); err != nil {
		return err
	}
	for _, group := range []func() error{b.requests, b.latency, b.growth} {
		if err := group(); err != nil {
			return err
		}
		if err := b.ctx.Err(); err != nil {
			return context.Cause(b.ctx)
		}
	}
	if len(b.result.Groups) == 0 {
		return fmt.Errorf("no case is called what -cases asks for: %q", b.Cases)
	}
	return nil
}

// wants says whether a case is asked for.
func (b *Bench) wants(name string) bool {
	return (b.Cases == nil || b.Cases.MatchString(name)) && (b.Without == nil || !b.Without.MatchString(name))
}

func (b *Bench) say(format string, arguments ...any) {
	fmt.Fprintf(b.Progress, "%s "+format+"\n", append([]any{time.Now().Format("15:04:05")}, arguments...)...)
}

// note is something that a reader of the figures has to know.
func (b *Bench) note(format string, arguments ...any) {
	text := fmt.Sprintf(format, arguments...)
	b.result.Notes = append(b.result.Notes, text)
	b.say("%s", text)
}

func (b *Bench) add(g report.Group) {
	if len(g.Rows) > 0 {
		b.result.Groups = append(b.result.Groups, g)
	}
}
