package file

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// TestGrowth is a measurement, and runs only if it is asked for.
var (
	growth         = flag.Int("growth", 0, "the keys of TestGrowth; 0 leaves it out")
	growthLives    = flag.Duration("growth.lives", 5*time.Minute, "how long after the beginning of TestGrowth these keys expire, all together")
	growthRounds   = flag.Int("growth.rounds", 6, "how often TestGrowth compares the large store with a small one")
	growthProfiles = flag.String("growth.profiles", "", "where TestGrowth puts a CPU profile of each of its parts; empty: nowhere")
)

const (
	// smallStore is how many keys the store has that the large one is compared with.
	smallStore = 10_000
	// pairsARound is how many pairs of a claim and its settlement are one measurement.
	pairsARound = 20_000
	// growthCallers is how many of them are under way.
	growthCallers = 32
)

// sizeOf returns how many bytes a directory takes on the disk.
func sizeOf(path string) (size int64) {
	_ = filepath.WalkDir(path, func(_ string, entry os.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			if info, err := entry.Info(); err == nil {
				size += info.Size()
			}
		}
		return nil
	})
	return size
}

// TestGrowth says how the store does with many keys, compared with few, and while they
// expire: pairs of a claim and its settlement a second, processor and anonymous memory,
// and room on the disk against what is live. Processor time is that of the process, with
// all that the store goes on to do in the background.
func TestGrowth(t *testing.T) {
	if *growth == 0 {
		t.Skip("a measurement: -growth 1000000 runs it")
	}
	t.Logf("before the store: %.0f MB anonymous", anonymousMB())
	began := time.Now()
	end := began.Add(*growthLives).Truncate(sweepStep).Add(sweepStep / 2)
	large := openGrowing(t)
	t.Logf("%-13s %s", "growing", large.measure(*growth, end, false))

	var few, many []cost
	for range *growthRounds {
		small := openGrowing(t)
		small.measure(smallStore, began.Add(time.Hour), true)
		few = append(few, small.measure(pairsARound, began.Add(time.Hour), true))
		closeStore(t, small.Store)
		many = append(many, large.measure(pairsARound, began.Add(time.Hour), true))
		t.Logf("%-13s %s", "10,000 keys", few[len(few)-1])
		t.Logf("%-13s %s", "all keys", many[len(many)-1])
	}
	t.Logf("%s", large.database.db.Metrics())
	before := median(many)
	t.Logf("all keys against 10,000, medians: %.2f of the processor time (%+.1f us a pair), %.2f of the pairs a second",
		before.cpu/median(few).cpu, before.cpu-median(few).cpu, before.rate/median(few).rate)
	if time.Now().After(end) {
		t.Fatalf("the keys expired before they were all there; -growth.lives has to be more than %v", time.Since(began))
	}

	var expiring []cost
	due := end.Truncate(sweepStep).Add(sweepStep + sweepDelay + time.Second)
	time.Sleep(time.Until(due))
	large.expired.Add(int64(*growth))
	for large.left(due) {
		expiring = append(expiring, large.measure(pairsARound, began.Add(time.Hour), false))
		t.Logf("%-13s %s, %v after they were due", "expiring", expiring[len(expiring)-1], time.Since(due).Round(time.Second))
	}
	if len(expiring) > 0 {
		// What else the machine does changes pairs a second, and hardly processor time.
		is := median(expiring)
		t.Logf("expiring against before, medians: %.2f of the pairs a second; removing takes %.2f of %d processors",
			is.rate/before.rate, (is.cpu-before.cpu)*is.rate/1e6, runtime.GOMAXPROCS(0))
	}
	for range 10 {
		time.Sleep(15 * time.Second)
		c := large.measure(100, began.Add(time.Hour), false)
		t.Logf("%-13s %s", "all expired", c)
		if c.disk < 2.5*c.live {
			break
		}
	}
	t.Logf("%s", large.database.db.Metrics())
}

// growing is a store that is measured.
type growing struct {
	*Store
	t             *testing.T
	kept, expired atomic.Int64
	measured      int
}

func openGrowing(t *testing.T) *growing {
	t.Helper()
	s, err := Open(newPath(t), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	g := &growing{Store: s, t: t}
	t.Cleanup(func() { _ = s.Close() })
	return g
}

// cost is what some pairs took.
type cost struct {
	rate       float64 // pairs a second
	cpu        float64 // us a pair
	anonymous  float64 // MB, the most of it
	disk, live float64 // MB
}

// String implements [fmt.Stringer].
func (c cost) String() string {
	return fmt.Sprintf("%7.0f pairs/s %6.1f us CPU %5.0f MB anonymous %6.0f MB on the disk, %5.0f MB live", c.rate, c.cpu, c.anonymous, c.disk, c.live)
}

// median returns the middle of each value.
func median(of []cost) cost {
	middle := func(value func(c cost) float64) float64 {
		var values []float64
		for _, c := range of {
			values = append(values, value(c))
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	return cost{rate: middle(func(c cost) float64 { return c.rate }), cpu: middle(func(c cost) float64 { return c.cpu })}
}

// measure keeps so many new keys until they expire together. Settled says that what the
// store then does in the background counts with them.
func (g *growing) measure(pairs int, expire time.Time, settled bool) cost {
	g.measured++
	if *growthProfiles != "" {
		profile, err := os.Create(filepath.Join(*growthProfiles, fmt.Sprintf("%d-%d.pprof", g.kept.Load(), g.measured)))
		if err == nil {
			err = pprof.StartCPUProfile(profile)
		}
		if err != nil {
			g.t.Fatal(err)
		}
		defer profile.Close()
		defer pprof.StopCPUProfile()
	}
	stop, most := watchMemory()
	began, cpu := time.Now(), cpuTime()
	var done sync.WaitGroup
	for range growthCallers {
		done.Go(func() {
			random := rand.New(rand.NewPCG(rand.Uint64(), 0))
			for range pairs / growthCallers {
				if err := g.keepUntil(expire, random); err != nil {
					g.t.Error(err)
					return
				}
			}
		})
	}
	done.Wait()
	took := time.Since(began)
	if settled {
		g.awaitRest()
	}
	n := float64(pairs / growthCallers * growthCallers)
	c := cost{rate: n / took.Seconds(), cpu: float64((cpuTime() - cpu).Microseconds()) / n}
	close(stop)
	c.anonymous = <-most
	c.disk = float64(sizeOf(g.path)) / 1e6
	c.live = float64(g.kept.Load()-g.expired.Load()) * g.bytesAPair() / 1e6
	return c
}

// keepUntil is a first delivery with a response of 512 bytes that cannot be compressed.
func (g *growing) keepUntil(expire time.Time, random *rand.Rand) error {
	c, settlement := pairNamed(fmt.Sprint("key ", g.kept.Add(1)), random)
	c.Retention = time.Until(expire)
	settlement.Retention = c.Retention
	claimed, err := g.Claim(g.t.Context(), c)
	if err == nil {
		err = g.Settle(g.t.Context(), c.Key, claimed.Record, settlement)
	}
	return err
}

// pairNamed returns a claim as the handler makes them, and a settlement.
func pairNamed(name string, random *rand.Rand) (idempotency.Claim, idempotency.Settlement) {
	c := claimOf(name)
	c.Token = fmt.Sprintf("%016x%016x", random.Uint64(), random.Uint64())
	c.ExecutionID = fmt.Sprintf("0199b8a2-7d1c-7000-%x", random.Uint64())
	c.Fingerprints = []string{fmt.Sprintf("body:%064x", random.Uint64())}
	c.DeliveryID = name
	body := make([]byte, 0, 512)
	for len(body) < cap(body) {
		body = binary.NativeEndian.AppendUint64(body, random.Uint64())
	}
	s := completeAs("etag")
	s.Response.Header = map[string][]string{"Content-Type": {"application/json"}, "Etag": {"W/\"33a64df5\""}, "Date": {"Mon, 05 Jan 2026 10:00:00 GMT"}}
	s.Response.Body = body
	return c, s
}

// bytesAPair is what one key has stored: its record, its response, and its entry in the
// expiries, each with its name.
func (g *growing) bytesAPair() float64 {
	c, s := pairNamed("key 500000", rand.New(rand.NewPCG(1, 1)))
	written := g.database.change()
	defer written.Close()
	if err := errors.Join(
		written.putResponse(c.Key, c.Token, s.Response, nil, clock(), true),
		written.putRecord(c.Key, nil, c.Record(nil, clock()).Settled(s, clock())),
	); err != nil {
		g.t.Fatal(err)
	}
	return float64(written.Len())
}

// watchMemory returns the most anonymous memory that the process had until stop is closed.
func watchMemory() (stop chan struct{}, most <-chan float64) {
	stop = make(chan struct{})
	result := make(chan float64, 1)
	go func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		most := anonymousMB()
		for {
			select {
			case <-stop:
				result <- most
				return
			case <-tick.C:
				most = max(most, anonymousMB())
			}
		}
	}()
	return stop, result
}

// awaitRest returns when nothing is done in the background.
func (g *growing) awaitRest() {
	for still := 0; still < 3; time.Sleep(20 * time.Millisecond) {
		m := g.database.db.Metrics()
		if still++; m.Compact.NumInProgress > 0 || m.Flush.NumInProgress > 0 {
			still = 0
		}
	}
}

// left reports whether the sweeper has something to do that was due by then.
func (g *growing) left(due time.Time) bool {
	left, err := g.database.due(&sweep{from: []byte{expiryTable}, now: due})
	if err != nil {
		g.t.Fatal(err)
	}
	return len(left) > 0
}
