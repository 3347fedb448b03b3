package file

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// crash is the content of the disk after a crash of the machine, and the verdicts that duplicates must
// get then.
type crash struct {
	fs     vfs.FS
	during string
	want   map[string]idempotency.Verdict
}

// crashing is a disk in memory that simulates a crash of the machine before each change: it takes a
// copy of what would be left.
type crashing struct {
	vfs.FS
	mu      sync.Mutex
	memory  *vfs.MemFS
	random  *rand.Rand
	want    map[string]idempotency.Verdict
	crashes []crash
}

func newCrashing(fs *vfs.MemFS, seed uint64) *crashing {
	c := &crashing{memory: fs, random: rand.New(rand.NewPCG(seed, 1)), want: make(map[string]idempotency.Verdict)}
	c.FS = errorfs.Wrap(memory{c.memory}, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			c.crash(fmt.Sprintf("operation %d on %s", op.Kind, path.Base(op.Path)))
		}
		return nil
	}))
	return c
}

func (c *crashing) crash(during string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Of the data that was not flushed, a crash leaves nothing, everything, or some blocks.
	percent := []int{0, 100, 50, 80}[c.random.IntN(4)]
	c.crashes = append(c.crashes, crash{
		fs:     memory{c.memory.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: c.random})},
		during: fmt.Sprintf("%s, with %d %% of what was not flushed", during, percent), want: maps.Clone(c.want),
	})
}

// do changes a key. Meanwhile any verdict is allowed for the key.
func (c *crashing) do(t *testing.T, name string, want idempotency.Verdict, change func() error) {
	t.Helper()
	set := func(v idempotency.Verdict) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.want[name] = v
	}
	set(0)
	must(t, change(), name)
	set(want)
}

// bodyOf returns the body of a key's response. Some are large.
func bodyOf(i int) string {
	if i%7 == 0 {
		return largeText(fmt.Sprint(i))
	}
	return fmt.Sprint(i)
}

// walk makes operations that write each kind of file.
func (c *crashing) walk(t *testing.T, s *Store, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		name := fmt.Sprint(i)
		claim, want := claimOf(name), idempotency.Proceed
		if i%3 == 0 {
			claim, want = holding(name), idempotency.RefuseHeld
		}
		var record *idempotency.Record
		c.do(t, name, want, func() error {
			got, err := s.Claim(t.Context(), claim)
			record = got.Record
			return err
		})
		if i%5 < 3 {
			c.do(t, name, idempotency.ReplayKept, func() error {
				return s.Settle(t.Context(), key(name), record, completeAs(bodyOf(i)))
			})
		}
		if i%10 == 1 {
			c.do(t, name, idempotency.Proceed, func() error { return s.Forget(t.Context(), key(name), idempotency.Precondition{}) })
		}
		switch i % 20 {
		case 9:
			must(t, s.database.db.Flush())
		case 19:
			must(t, s.database.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false))
		}
	}
}

func (c *crash) check(t *testing.T) {
	t.Helper()
	fs := c.fs.(memory).CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))}) // a copy: fs is needed for another crash
	s, err := openIn(wallClock, memory{fs}, storePath, zap.NewNop())
	if err != nil {
		t.Errorf("after a crash during %s: %v", c.during, err)
		return
	}
	defer closeStore(t, s)
	for name, want := range c.want {
		if want == 0 {
			continue
		}
		got, err := ask(t.Context(), s, name)
		if err != nil || got.Verdict != want {
			t.Errorf("after a crash during %s: key %s: verdict %v, %v; want %v", c.during, name, got.Verdict, err, want)
			continue
		}
		var i int
		if _, err := fmt.Sscan(name, &i); err != nil || want == idempotency.ReplayKept && string(got.Response.Body) != bodyOf(i) {
			t.Errorf("after a crash during %s: key %s: another body", c.during, name)
		}
	}
	keep(t, s, 1000, 1001)
}

var crashSeeds = flag.Uint64("crash.seeds", 1, "how often TestCrashOfTheMachine crashes a machine at each of its moments")

// After a crash of the machine at any moment, including while the store is created or opened again, the
// store opens and has everything that it has acknowledged.
func TestCrashOfTheMachine(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine")
	}
	for seed := range *crashSeeds {
		c := newCrashing(vfs.NewCrashableMem(), seed)
		for _, part := range [][2]int{{0, 45}, {45, 60}} {
			s := openStore(t, c, storePath)
			c.walk(t, s, part[0], part[1])
			closeStore(t, s)
		}
		t.Logf("%d crashes", len(c.crashes))
		if len(c.crashes) < 200 {
			t.Errorf("only %d crashes", len(c.crashes))
		}
		for i, first := range c.crashes {
			first.check(t)
			if i%20 != int(seed%20) {
				continue
			}
			// The machine crashes again while the store is opened after a crash.
			second := newCrashing(first.fs.(memory).MemFS, seed)
			closeStore(t, openStore(t, second, storePath))
			for _, crash := range second.crashes {
				crash.during, crash.want = first.during+", and then "+crash.during, first.want
				crash.check(t)
			}
		}
	}
}
