// Command bench measures caddy-dedup side by side with plain Caddy, and with others, in
// one run on one machine:
//
//	go -C bench run . -json result.json -write RESULTS.md -write ../docs/costs.md
//
// It starts all that it needs on loopback, and ends it. It wants a redis-server in PATH,
// and Linux. See RESULTS.md for what the figures mean.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/caddy-dedup/caddy-dedup/bench/internal/measure"
	"github.com/caddy-dedup/caddy-dedup/bench/internal/report"
	"github.com/caddy-dedup/caddy-dedup/bench/internal/servers"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) == 3 && os.Args[1] == "upstream" {
		exitOn(servers.ServeUpstream(ctx, os.Args[2]))
		return
	}
	exitOn(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func exitOn(err error) {
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return
	}
	fmt.Fprintln(os.Stderr, "bench:", err)
	os.Exit(1)
}

// command is what the flags say.
type command struct {
	options measure.Options
	json    string
	write   []string
	from    string
	within  time.Duration
	// settings are the flags that say what is measured, as a reader would give them again.
	settings []string
}

// aside are the flags that change no figure.
var aside = []string{"json", "write", "from", "dir", "project", "against", "within"}

// expression is a flag with a regular expression.
type expression struct{ to **regexp.Regexp }

func (e expression) String() string { return "" }

func (e expression) Set(text string) (err error) {
	*e.to, err = regexp.Compile(text)
	return err
}

// short are the flags of -short; those that are given too are stronger.
var short = map[string]string{"rounds": "2", "for": "300ms", "keys": "4000", "rates": "300"}

func parse(arguments []string, said io.Writer) (*command, error) {
	c := &command{options: measure.Options{Rates: []float64{1000}}}
	o := &c.options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(said)
	flags.Var(expression{&o.Cases}, "cases", "measure the cases whose names this regular `expression` matches, such as first/ or growth")
	flags.Var(expression{&o.Without}, "without", "leave out the cases whose names this regular `expression` matches")
	flags.IntVar(&o.Rounds, "rounds", 5, "how often each case has its turn")
	flags.DurationVar(&o.For, "for", 3*time.Second, "how long a turn is")
	flags.IntVar(&o.Connections, "connections", 32, "connections of the closed loops")
	flags.IntVar(&o.Keys, "keys", 200_000, "how many keys the stores grow to")
	flags.Func("rates", "requests per second of the open loops, with commas (default 1000)", func(text string) error {
		o.Rates = nil
		for rate := range strings.SplitSeq(text, ",") {
			n, err := strconv.ParseFloat(rate, 64)
			if err != nil || !(n > 0 && n <= 1e6) {
				return fmt.Errorf("%q is no rate above 0 and up to 1000000", rate)
			}
			o.Rates = append(o.Rates, n)
		}
		return nil
	})
	flags.StringVar(&o.Against, "against", "", "measure first deliveries of the source in this `directory` too, in turns with those of -project")
	flags.BoolVar(&o.Short, "short", false, "show in about two minutes that all cases work; the figures say nothing")
	flags.StringVar(&o.Dir, "dir", os.TempDir(), "where the run makes its own directory, and removes it; on a disk, or the file store's flushes cost nothing")
	flags.StringVar(&o.Project, "project", "..", "the directory of caddy-dedup's source")
	flags.StringVar(&c.json, "json", "", "write the result to this `file`")
	flags.Func("write", "bring the tables of this `page` up to date; may repeat", func(page string) error {
		c.write = append(c.write, page)
		return nil
	})
	flags.StringVar(&c.from, "from", "", "measure nothing, and show the result in this `file`, which -json wrote")
	flags.DurationVar(&c.within, "within", 3*time.Hour, "give up after this time")
	if err := flags.Parse(arguments); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q; -help says what is accepted", flags.Arg(0))
	}
	given := make(map[string]bool)
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	c.settings = settingsIn(arguments)
	if o.Short {
		for name, value := range short {
			if given[name] {
				continue
			}
			if err := flags.Set(name, value); err != nil {
				return nil, err
			}
		}
	}
	for name, bad := range map[string]bool{"rounds": o.Rounds < 1, "for": o.For < 10*time.Millisecond, "connections": o.Connections < 1, "keys": o.Keys < 10} {
		if bad {
			return nil, fmt.Errorf("-%s %s is too little", name, flags.Lookup(name).Value)
		}
	}
	return c, nil
}

// settingsIn leaves out the flags that change no figure.
func settingsIn(arguments []string) (settings []string) {
	for i := 0; i < len(arguments); i++ {
		name, _, with := strings.Cut(strings.TrimLeft(arguments[i], "-"), "=")
		if !slices.Contains(aside, name) {
			settings = append(settings, arguments[i])
		} else if !with {
			i++ // its value
		}
	}
	return settings
}

func run(ctx context.Context, arguments []string, out, progress io.Writer) error {
	c, err := parse(arguments, progress)
	if err != nil {
		return err
	}
	result, err := c.result(ctx, progress)
	if err != nil {
		return err
	}
	if err := result.WriteText(out); err != nil {
		return err
	}
	if c.json != "" {
		if err := result.WriteJSON(c.json); err != nil {
			return err
		}
	}
	for _, page := range c.write {
		if err := result.WritePage(page); err != nil {
			return err
		}
	}
	return nil
}

func (c *command) result(ctx context.Context, progress io.Writer) (*report.Result, error) {
	if c.from != "" {
		return report.ReadJSON(c.from)
	}
	if _, err := exec.LookPath("redis-server"); err != nil {
		return nil, fmt.Errorf("the benchmark needs a redis-server: %w", err)
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.within, fmt.Errorf("not finished within -within %s", c.within))
	defer cancel()
	c.options.Program, c.options.Progress = program, progress
	result, err := measure.Run(ctx, c.options)
	if err != nil {
		return nil, err
	}
	result.Settings = c.settings
	return result, nil
}
