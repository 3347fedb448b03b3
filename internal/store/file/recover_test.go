package file

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Whatever was done before: when the process is killed, the store knows of each key what it
// knew.
func TestKilledAfterAnyStep(t *testing.T) {
	for seed := range uint64(4) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 9))
			w := &killedWalk{memory: vfs.NewCrashableMem(), random: random}
			w.open(t)
			for step := range 150 {
				name := fmt.Sprint(random.IntN(walkedKeys))
				what := w.operate(t, step, name)
				w.check(t, fmt.Sprintf("seed %d, step %d, %s of key %s", seed, step, what, name))
			}
			closeStore(t, w.Store)
		})
	}
}

const walkedKeys = 6

type killedWalk struct {
	*Store
	memory *vfs.MemFS
	random *rand.Rand
}

func (w *killedWalk) open(t *testing.T) {
	t.Helper()
	var err error
	if w.Store, err = openIn(inMemory{w.memory}, "/data/keys", zap.NewNop()); err != nil {
		t.Fatal(err)
	}
}

// operate makes one operation. Whether the rules allow it does not matter.
func (w *killedWalk) operate(t *testing.T, step int, name string) (what string) {
	t.Helper()
	ctx := context.Background()
	c := claimOf(name)
	c.Token = fmt.Sprint("token ", step)
	if w.random.IntN(6) == 0 {
		c.MaxAttempts = 5
	}
	if w.random.IntN(5) == 0 {
		c.DeliveryID = strings.Repeat("x", 400) // too long for a slot
	}
	record, _, err := w.Lookup(ctx, c.Key)
	if err != nil {
		t.Fatal(err)
	}
	if record == nil {
		record = &idempotency.Record{}
	}
	switch w.random.IntN(9) {
	case 0, 1, 2:
		_, _ = w.Claim(ctx, c)
		return "claim"
	case 3:
		c.Token = record.Token
		_ = w.Renew(ctx, c)
		return "renewal"
	case 4, 5:
		settlement := completeAs(name)
		if w.random.IntN(2) == 0 {
			settlement = releasedFor(time.Minute, time.Second)
		}
		if w.random.IntN(3) == 0 {
			settlement.Retention = time.Second
		}
		_ = w.Settle(ctx, c.Key, record, settlement)
		return "end"
	case 6:
		_, _ = w.Free(ctx, c.Key, fmt.Sprint("operator ", step), idempotency.Seen{})
		return "free"
	case 7:
		_ = w.Forget(ctx, c.Key, idempotency.Seen{})
		return "forget"
	default:
		time.Sleep(time.Duration(w.random.IntN(100)) * time.Second)
		synctest.Wait()
		return "rest"
	}
}

func (w *killedWalk) check(t *testing.T, after string) {
	t.Helper()
	clone := func() *vfs.MemFS {
		return w.memory.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: w.random})
	}
	again, err := openIn(inMemory{clone()}, "/data/keys", zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	for i := range walkedKeys {
		k := key(fmt.Sprint(i))
		want, _, err := w.Lookup(t.Context(), k)
		if err != nil {
			t.Fatal(err)
		}
		if got, _, err := again.Lookup(t.Context(), k); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%s: key %d is %+v, %v\nwant %+v", after, i, got, err, want)
		}
	}
	closeStore(t, again)
	if w.random.IntN(25) == 0 { // it goes on with what the kill has left
		left := clone()
		closeStore(t, w.Store)
		w.memory = left
		w.open(t)
	}
}

// After a kill, the claims are in the database, and the file is a new one. A crash of the
// machine does not bring the old one back.
func TestOldSlotsDoNotComeBack(t *testing.T) {
	memory := vfs.NewCrashableMem()
	claims(t, reopenIn(t, inMemory{memory}, "/data/keys"), claimOf("a"))
	disk := memory.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 2))})
	s := reopenIn(t, inMemory{disk}, "/data/keys")
	settles(t, s, "a", &idempotency.Record{Token: claimOf("a").Token}, completeAs("a"))
	settles(t, s, "b", claims(t, s, claimOf("b")), completeAs("b"))
	if err := s.Forget(t.Context(), key("a"), idempotency.Seen{}); err != nil {
		t.Fatal(err)
	}
	again := reopenIn(t, disk.CrashClone(vfs.CrashCloneCfg{}), "/data/keys")
	if record, _, err := again.Lookup(t.Context(), key("a")); record != nil || err != nil {
		t.Errorf("it is back: %+v, %v", record, err)
	}
}

// A database that was given up is opened anew with the claims that it had in slots.
func TestSlotsOfADatabaseThatWasGivenUp(t *testing.T) {
	s := reopen(t, newPath(t))
	for round := range 2 {
		for i := range 30 {
			claims(t, s, claimOf(fmt.Sprint(round, " ", i)))
		}
		old := s.current()
		old.disk.fail(errors.New("as a test wants it"))
		poll(t, "it is available again", func() bool { d := s.current(); return d != old && d.disk.failed() == nil })
		for i := range 30 {
			name := fmt.Sprint(round, " ", i)
			if claimed, err := ask(s, name); err != nil || claimed.Verdict != idempotency.WaitForRun {
				t.Fatalf("key %s: verdict %v, %v", name, claimed.Verdict, err)
			}
			if err := s.Renew(t.Context(), claimOf(name)); err != nil {
				t.Fatal(err)
			}
			settles(t, s, name, &idempotency.Record{Token: claimOf(name).Token}, completeAs(name))
		}
	}
}

// Where the slots cannot be read, or the new file not be made, nothing is left open.
func TestOpenWithoutItsSlots(t *testing.T) {
	for name, kind := range map[string]errorfs.OpKind{"open": errorfs.OpOpen, "create": errorfs.OpCreate} {
		t.Run(name, func(t *testing.T) {
			path := newPath(t)
			closeStore(t, reopen(t, path))
			fs := newBreakable(vfs.Default)
			fs.fail(func(op errorfs.Op) error {
				if op.Kind == kind && strings.HasSuffix(op.Path, claimsName) {
					return syscall.EMFILE
				}
				return nil
			})
			open := func() int {
				files, err := os.ReadDir("/proc/self/fd")
				if err != nil {
					t.Skip(err)
				}
				return len(files)
			}
			before := open()
			for range 5 {
				if _, err := openIn(fs, path, zap.NewNop()); !errors.Is(err, syscall.EMFILE) {
					t.Fatalf("open: %v, want the error of the disk", err)
				}
			}
			poll(t, "all files are closed", func() bool { return open() <= before })
			fs.fail(nil)
			if err := keep(t.Context(), reopenIn(t, fs, path), "a"); err != nil {
				t.Error(err)
			}
		})
	}
}

// A slot that cannot be read is one that was being written when the machine crashed. The
// others count. One of another version is not free.
func TestSlotThatCannotBeRead(t *testing.T) {
	memory := vfs.NewMem()
	s := reopenIn(t, memory, "/data/keys")
	closeStore(t, s)
	file := func(slots ...[]byte) {
		t.Helper()
		if err := writeFile(memory, "/data/keys/"+claimsName, string(bytes.Join(slots, nil))); err != nil {
			t.Fatal(err)
		}
	}
	slotOf := func(name string) []byte {
		form := idempotency.AppendRecord(nil, key(name), claimOf(name).Record(nil, clock()))
		return appendSlot(nil, key(name), form)
	}
	full := func(content []byte) []byte { return append(content, make([]byte, slotSize-len(content))...) }
	flipped := full(slotOf("flipped"))
	flipped[100] ^= 1
	long := full(slotOf("too long"))
	binary.BigEndian.PutUint16(long, slotSize)
	other := full(slotOf("another version"))
	other[slotHead+3]++
	cutOff := slotOf("cut off")
	for _, last := range [][]byte{full(slotOf("last")), slotOf("last"), cutOff[:len(cutOff)-1], cutOff[:slotHead], cutOff[:1]} {
		file(full(slotOf("first")), flipped, make([]byte, slotSize), long, other, full(slotOf("second")), last)
		core, logged := observer.New(zap.WarnLevel)
		s, err := openIn(memory, "/data/keys", zap.New(core))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := logged.FilterField(zap.String("file", claimsName)).Len(), 2; got != want && got != want+1 {
			t.Errorf("%d warnings: %v", got, logged.All())
		}
		for name, want := range map[string]idempotency.Verdict{
			"first": idempotency.WaitForRun, "second": idempotency.WaitForRun,
			"flipped": idempotency.Proceed, "too long": idempotency.Proceed, "cut off": idempotency.Proceed,
		} {
			if claimed, err := askOnly(s, name); err != nil || claimed.Verdict != want {
				t.Errorf("key %s: verdict %v, %v; want %v", name, claimed.Verdict, err, want)
			}
		}
		if _, err := askOnly(s, "another version"); !isUnreadable(err) {
			t.Errorf("the claim of another version: %v, want that it cannot be read", err)
		}
		closeStore(t, s)
		if err := memory.RemoveAll("/data/keys"); err != nil {
			t.Fatal(err)
		}
		closeStore(t, reopenIn(t, memory, "/data/keys"))
	}
}
