// Command engines does with one storage engine what caddy-dedup's file store does for a
// first delivery, and says what it cost. The benchmark beside it starts one process for
// each engine, and gives them their turns by lines on the standard input:
//
//	fill <keys>       keeps so many keys, and answers with {}
//	turn <duration>   keeps keys for so long, and answers with a [turn]
//
// It ends at the end of its input.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// callers are the first deliveries that are under way at a time.
const callers = 32

// engine is a storage engine.
type engine interface {
	// keep does the writing of the first delivery of the n-th key: it looks whether the key
	// is there, which it is not, writes the claim, and then a response of 512 bytes in place
	// of the claim, with an entry by which it can be found when it expires. The response is
	// on the disk when keep returns.
	keep(n uint64) error
	// has says whether the response of the n-th key is kept.
	has(n uint64) (bool, error)
	close() error
}

// engines are all of them, by the names of -engine.
var engines = map[string]func(dir string) (engine, error){
	"store": openStore, "pebble": openPebble, "bbolt": openBolt, "sqlite": openSQLite, "log": openLog,
}

func main() {
	name := flag.String("engine", "store", "store (caddy-dedup's own), pebble, bbolt, sqlite or log")
	dir := flag.String("dir", "", "where it keeps its files; on a disk")
	flag.Parse()
	if err := serve(*name, *dir, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "engines:", err)
		os.Exit(1)
	}
}

func serve(name, dir string, in io.Reader, out io.Writer) error {
	open := engines[name]
	if open == nil {
		return fmt.Errorf("no engine is called %q", name)
	}
	e, err := open(dir)
	if err != nil {
		return err
	}
	w := &worker{engine: e}
	answers := json.NewEncoder(out)
	for lines := bufio.NewScanner(in); lines.Scan(); {
		answer, err := w.do(lines.Text())
		if err != nil {
			return fmt.Errorf("%s: %q: %w", name, lines.Text(), err)
		}
		if err := answers.Encode(answer); err != nil {
			return err
		}
	}
	return e.close()
}

// worker gives an engine its work.
type worker struct {
	engine engine
	kept   atomic.Uint64 // the last key's number
}

// turn is what one turn cost.
type turn struct {
	PerSecond float64 `json:"per_second"`
	CPU       float64 `json:"cpu_microseconds"` // of one key
	P50       float64 `json:"p50_milliseconds"`
	P99       float64 `json:"p99_milliseconds"`
	Anonymous float64 `json:"anonymous_megabytes"` // resident, at its end
}

func (w *worker) do(line string) (any, error) {
	verb, argument, _ := strings.Cut(line, " ")
	switch verb {
	case "fill":
		n, err := strconv.Atoi(argument)
		if err != nil {
			return nil, err
		}
		_, err = w.run(n, 0)
		return struct{}{}, err
	case "turn":
		lasts, err := time.ParseDuration(argument)
		if err != nil {
			return nil, err
		}
		return w.turn(lasts)
	}
	return nil, fmt.Errorf("%q is not fill or turn", verb)
}

// run keeps n keys, or as many as there is time for, and returns how long each took.
func (w *worker) run(n int, lasts time.Duration) ([]time.Duration, error) {
	ends := time.Now().Add(lasts)
	left := atomic.Int64{}
	left.Store(int64(n))
	took := make([][]time.Duration, callers)
	failed := make([]error, callers)
	var done sync.WaitGroup
	for i := range callers {
		done.Go(func() {
			for lasts > 0 && time.Now().Before(ends) || lasts == 0 && left.Add(-1) >= 0 {
				began := time.Now()
				if failed[i] = w.engine.keep(w.kept.Add(1)); failed[i] != nil {
					return
				}
				if lasts > 0 {
					took[i] = append(took[i], time.Since(began))
				}
			}
		})
	}
	done.Wait()
	for _, err := range failed {
		if err != nil {
			return nil, err
		}
	}
	// Figures of an engine that keeps nothing would be good ones.
	if there, err := w.engine.has(w.kept.Load()); err != nil || !there {
		return nil, fmt.Errorf("the last key is kept: %v, %w", there, err)
	}
	return slices.Concat(took...), nil
}

func (w *worker) turn(lasts time.Duration) (turn, error) {
	began, cpu := time.Now(), cpuTime()
	took, err := w.run(0, lasts)
	if err != nil {
		return turn{}, err
	}
	passed, spent := time.Since(began), cpuTime()-cpu
	slices.Sort(took)
	n := float64(len(took))
	if n == 0 {
		return turn{}, fmt.Errorf("no key was kept within %s", lasts)
	}
	milliseconds := func(q float64) float64 { return float64(took[int(q*(n-1))].Microseconds()) / 1000 }
	return turn{
		PerSecond: n / passed.Seconds(), CPU: float64(spent.Microseconds()) / n,
		P50: milliseconds(0.5), P99: milliseconds(0.99), Anonymous: anonymousMB(),
	}, nil
}
