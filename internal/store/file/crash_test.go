package file

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// crash is what a crash of the machine leaves on the disk, and what had been
// acknowledged by then.
type crash struct {
	disk         *vfs.MemFS
	during       string
	acknowledged map[string]what
	undecided    string // the key of the operation under way
}

// what is known of a key.
type what int

const (
	claimed what = iota + 1 // under release: a crash may undo it
	heldFast
	complete
	large // complete, with a body in a file
	forgotten
)

// crashes is a disk in memory whose machine crashes at every change of it: before the
// change, it takes a copy of what would then be left.
type crashes struct {
	vfs.FS
	mu           sync.Mutex
	memory       *vfs.MemFS
	random       *rand.Rand
	acknowledged map[string]what
	undecided    string
	found        []crash
	every        int // only each of so many changes
	seen         int
}

func newCrashes(seed uint64, every int) *crashes {
	return crashesOf(vfs.NewCrashableMem(), seed, every)
}

func crashesOf(memory *vfs.MemFS, seed uint64, every int) *crashes {
	c := &crashes{memory: memory, random: rand.New(rand.NewPCG(seed, 1)), acknowledged: make(map[string]what), every: every}
	c.FS = errorfs.Wrap(inMemory{c.memory}, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			c.crash(fmt.Sprintf("operation %d on %s", op.Kind, path.Base(op.Path)))
		}
		return nil
	}))
	return c
}

func (c *crashes) crash(during string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen++; c.seen%c.every != 0 {
		return
	}
	// Of what was not flushed, nothing is left, or all, or some blocks of it.
	unflushed := []int{0, 100, 50, 80}[c.random.IntN(4)]
	acknowledged := make(map[string]what, len(c.acknowledged))
	for name, is := range c.acknowledged {
		acknowledged[name] = is
	}
	c.found = append(c.found, crash{
		disk:         c.memory.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: unflushed, RNG: c.random}),
		during:       fmt.Sprintf("%s, with %d %% of what was not flushed", during, unflushed),
		acknowledged: acknowledged, undecided: c.undecided,
	})
}

// begin says which key an operation changes, and acknowledge that it has done so.
func (c *crashes) begin(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.undecided = name
}

func (c *crashes) acknowledge(name string, is what) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.acknowledged[name] = is
	c.undecided = ""
}

// walkOver makes operations on a store, so that each kind of file is written.
func (c *crashes) walkOver(t *testing.T, s *Store, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		name := fmt.Sprint(i)
		do := func(is what, f func() error) {
			t.Helper()
			c.begin(name)
			if err := f(); err != nil {
				t.Fatalf("key %s: %v", name, err)
			}
			c.acknowledge(name, is)
		}
		claim, is := claimOf(name), claimed
		if i%3 == 0 {
			claim, is = counted(name), heldFast
		}
		var got idempotency.Claimed
		do(is, func() (err error) { got, err = s.Claim(t.Context(), claim); return err })
		if i%5 < 3 {
			do(complete, func() error { return s.Settle(t.Context(), key(name), got.Record, completeAs(name)) })
		}
		if i%10 == 1 {
			do(forgotten, func() error { return s.Forget(t.Context(), key(name), idempotency.Seen{}) })
		}
		c.begin("")
		switch i % 20 {
		case 9:
			if err := s.database.db.Flush(); err != nil {
				t.Fatal(err)
			}
		case 19:
			if err := s.database.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// After a crash of the machine at any moment, the store opens and knows all that it has
// acknowledged.
func TestCrashOfTheMachine(t *testing.T) {
	for seed := range uint64(3) {
		c := newCrashes(seed, 1)
		s, err := openIn(c, "/data/keys", zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		c.walkOver(t, s, 0, 45)
		closeStore(t, s)
		if s, err = openIn(c, "/data/keys", zap.NewNop()); err != nil {
			t.Fatal(err)
		}
		c.walkOver(t, s, 45, 60)
		closeStore(t, s)
		t.Logf("%d crashes", len(c.found))
		if len(c.found) < 200 {
			t.Errorf("only %d crashes", len(c.found))
		}
		for _, crash := range c.found {
			crash.check(t)
		}
	}
}

// The machine may crash again while the store is opened after a crash: what the one has left
// of files that were to take the place of others is no damage to the next.
func TestCrashAfterACrash(t *testing.T) {
	again := 0
	for seed := range uint64(2) {
		c := newCrashes(seed, 1)
		s, err := openIn(c, "/data/keys", zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		c.walkOver(t, s, 0, 12)
		closeStore(t, s)
		if s, err = openIn(c, "/data/keys", zap.NewNop()); err != nil {
			t.Fatal(err)
		}
		c.walkOver(t, s, 12, 14)
		closeStore(t, s)
		for i, first := range c.found {
			if !strings.Contains(first.during, "MANIFEST") && !strings.Contains(first.during, "marker") && !strings.Contains(first.during, markName) && i%50 != 0 {
				continue
			}
			second := crashesOf(first.disk, seed, 3)
			s, err := openIn(second, "/data/keys", zap.NewNop())
			if err != nil {
				t.Fatalf("after a crash during %s: %v", first.during, err)
			}
			closeStore(t, s)
			for _, crash := range second.found {
				again++
				crash.during = first.during + ", and then " + crash.during
				crash.acknowledged, crash.undecided = first.acknowledged, first.undecided
				crash.check(t)
			}
		}
	}
	if again < 300 {
		t.Errorf("only %d second crashes", again)
	}
}

func (c *crash) check(t *testing.T) {
	t.Helper()
	s, err := openIn(c.disk, "/data/keys", zap.NewNop())
	if err != nil {
		t.Errorf("after a crash during %s: %v", c.during, err)
		return
	}
	defer closeStore(t, s)
	for name, is := range c.acknowledged {
		if name == c.undecided {
			continue
		}
		got, err := askOnly(s, name)
		if err != nil {
			t.Errorf("after a crash during %s: key %s: %v", c.during, name, err)
			continue
		}
		right := got.Verdict == map[what]idempotency.Verdict{
			claimed: idempotency.WaitForRun, heldFast: idempotency.WaitForRun,
			complete: idempotency.ReplayKept, large: idempotency.ReplayKept, forgotten: idempotency.Proceed,
		}[is]
		if is == claimed && got.Verdict == idempotency.Proceed {
			right = true // it was not flushed
		}
		if right && is == complete {
			right = string(got.Response.Body) == name
		}
		if right && is == large {
			right = bytes.Equal(got.Response.Body, largeBody(name))
		}
		if !right {
			t.Errorf("after a crash during %s: key %s, which was %d, has verdict %v", c.during, name, is, got.Verdict)
		}
	}
	if err := keep(t.Context(), s, "after the crash"); err != nil {
		t.Errorf("after a crash during %s: %v", c.during, err)
	}
}

// A large body is on the disk before its record is, and so is its name.
func TestCrashAmongLargeBodies(t *testing.T) {
	for seed := range uint64(2) {
		c := newCrashes(seed, 1)
		s, err := openIn(c, "/data/keys", zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		walk := func(from, to int) {
			t.Helper()
			for i := from; i < to; i++ {
				name := fmt.Sprint(i)
				c.begin(name)
				settlement := largeAs(name)
				settlement.Retention = time.Duration(1+i%2) * time.Hour // two buckets
				if err := keepAs(t.Context(), s, name, settlement); err != nil {
					t.Fatal(err)
				}
				c.acknowledge(name, large)
				if i == 1 {
					c.begin(name)
					if err := s.Forget(t.Context(), key(name), idempotency.Seen{}); err != nil {
						t.Fatal(err)
					}
					c.acknowledge(name, forgotten)
				}
			}
		}
		walk(0, 4)
		closeStore(t, s)
		if s, err = openIn(c, "/data/keys", zap.NewNop()); err != nil {
			t.Fatal(err)
		}
		walk(4, 6)
		closeStore(t, s)
		among := 0
		for _, crash := range c.found {
			if strings.Contains(crash.during, bodiesName) {
				among++
			}
			crash.check(t)
		}
		if among < 3 {
			t.Errorf("only %d of %d crashes came while a body was written", among, len(c.found))
		}
	}
}

// Many claims that nobody waits for are under way when the machine crashes: what is left
// of them is no damage, and what was acknowledged before them is there.
func TestCrashAmongUnflushedClaims(t *testing.T) {
	c := newCrashes(7, 3)
	s, err := openIn(c, "/data/keys", zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	c.walkOver(t, s, 0, 9)
	var done sync.WaitGroup
	for worker := range 8 {
		done.Go(func() {
			for i := range 30 {
				// A key of some length, so that the claims fill several blocks.
				claim := claimOf(fmt.Sprintf("claim %d of worker %d", i, worker))
				claim.DeliveryID = fmt.Sprintf("%0200d", i)
				if _, err := s.Claim(t.Context(), claim); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done.Wait()
	c.walkOver(t, s, 10, 13)
	closeStore(t, s)
	for _, crash := range c.found {
		crash.check(t)
	}
}

// After a failure, what is given up writes nothing any more, whatever it was doing: the
// database that takes its place has the disk to itself.
func TestGivenUpDatabaseWritesNothing(t *testing.T) {
	fs := newBreakable(newMemory())
	s := reopenIn(t, fs, "/data/keys")
	keepMany(t, s, 20)
	old := s.database.disk
	s.database.disk.fail(errors.New("as a test wants it"))
	poll(t, "the store is available again", func() bool { _, err := ask(s, "1"); return err == nil })
	wrote := make(chan struct{})
	go func() {
		defer close(wrote)
		_ = old.Rename("/data/keys/LOCK", "/data/keys/moved")
	}()
	select {
	case <-wrote:
		t.Error("it still writes")
	case <-time.After(50 * time.Millisecond): // it would have been done long before
	}
	for i := range 20 {
		replays(t, s, fmt.Sprint(i))
	}
}

// A bucket whose directory is made a second time, as after a clock was set back, is
// flushed a second time.
func TestCrashAfterABucketWasMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := vfs.NewCrashableMem()
		s := reopenIn(t, inMemory{memory}, "/data/keys")
		keepLarge(t, s, "first")
		if closing, err := s.sweepBucket(bucketOf(clock().Add(time.Hour))); closing || err != nil {
			t.Fatal(closing, err)
		}
		if err := s.database.disk.flushDirectory(s.database.bodies.root()); err != nil {
			t.Fatal(err)
		}
		keepLarge(t, s, "second")
		after := reopenIn(t, memory.CrashClone(vfs.CrashCloneCfg{}), "/data/keys")
		replaysLarge(t, after, "second")
	})
}
