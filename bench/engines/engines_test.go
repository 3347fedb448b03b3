package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Each engine keeps what it is given, and its answers are in the form that the benchmark
// reads.
func TestEnginesKeepKeys(t *testing.T) {
	for name := range engines {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			var out strings.Builder
			if err := serve(name, dir, strings.NewReader("fill 100\nturn 50ms\n"), &out); err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			var got turn
			if len(lines) != 2 || lines[0] != "{}" || json.Unmarshal([]byte(lines[1]), &got) != nil {
				t.Fatalf("the answers are %q", lines)
			}
			if got.PerSecond <= 0 || got.P50 <= 0 || got.P99 < got.P50 {
				t.Errorf("the turn was %+v", got)
			}
			files, err := filepath.Glob(filepath.Join(dir, "*"))
			if err != nil || len(files) == 0 {
				t.Errorf("it wrote the files %v: %v", files, err)
			}
		})
	}
}

func TestEnginesKnowWhatTheyKept(t *testing.T) {
	for name, open := range engines {
		t.Run(name, func(t *testing.T) {
			e, err := open(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			var done sync.WaitGroup
			for n := range uint64(64) {
				done.Go(func() {
					if err := e.keep(n); err != nil {
						t.Error(err)
					}
				})
			}
			done.Wait()
			for n, want := range map[uint64]bool{0: true, 63: true, 64: false} {
				if there, err := e.has(n); err != nil || there != want {
					t.Errorf("key %d: %v, %v", n, there, err)
				}
			}
			if err := e.keep(7); err == nil {
				t.Error("a key is kept a second time")
			}
			if err := e.close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// An engine that has flushed has the bytes in its files, whatever the process does next.
func TestTheLogIsWrittenWhenKeepReturns(t *testing.T) {
	dir := t.TempDir()
	e, err := openLog(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	for n := range uint64(3) {
		if err := e.keep(n); err != nil {
			t.Fatal(err)
		}
		written, err := os.ReadFile(filepath.Join(dir, "log"))
		if err != nil {
			t.Fatal(err)
		}
		if kept := entryOf(n); !strings.HasSuffix(string(written), string(kept.record)) {
			t.Errorf("the log of %d bytes does not end with the record of key %d", len(written), n)
		}
	}
}

func TestWrongLinesAreErrors(t *testing.T) {
	for _, line := range []string{"grow 7", "fill many", "turn", "turn 0s"} {
		if err := serve("log", t.TempDir(), strings.NewReader(line+"\n"), new(strings.Builder)); err == nil || !strings.Contains(err.Error(), line) {
			t.Errorf("%q gives the error %v", line, err)
		}
	}
	if err := serve("paper", t.TempDir(), strings.NewReader(""), new(strings.Builder)); err == nil {
		t.Error("an engine that is not there opens")
	}
}
