package file

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// growth is how many keys TestGrowth makes and lets expire: it is a measurement, and
// runs only if it is asked for.
var growth = flag.Int("growth", 0, "the keys of TestGrowth; 0 leaves it out")

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

// TestGrowth says how the store does while it grows, with its keys, and while they
// expire: pairs a second, processor and memory, and room on the disk.
func TestGrowth(t *testing.T) {
	if *growth == 0 {
		t.Skip("a measurement: -growth 1000000 runs it")
	}
	path := newPath(t)
	s, err := Open(path, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer closeStore(t, s)
	run := func(what string, n int, retention time.Duration) {
		began, cpu := time.Now(), cpuTime()
		var done sync.WaitGroup
		for worker := range 32 {
			done.Go(func() {
				// What cannot be compressed takes the most room.
				random := rand.New(rand.NewPCG(uint64(worker), uint64(n)))
				for i := worker; i < n; i += 32 {
					name := fmt.Sprint(what, i)
					c := claimOf(name)
					c.Retention = retention
					settlement := smallResponse()
					settlement.Retention = retention
					for i := range settlement.Response.Body {
						settlement.Response.Body[i] = byte(random.Uint32())
					}
					claimed, err := s.Claim(t.Context(), c)
					if err == nil {
						err = s.Settle(t.Context(), c.Key, claimed.Record, settlement)
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		done.Wait()
		took := time.Since(began)
		t.Logf("%-28s %8.0f pairs/s %6.1f us CPU  %5.0f MB anonymous  %6.0f MB on the disk", what, float64(n)/took.Seconds(),
			float64((cpuTime()-cpu).Microseconds())/float64(n), anonymousMB(), float64(sizeOf(path))/1e6)
	}
	lives := 4 * time.Minute
	began := time.Now()
	run("growing ", *growth, lives)
	run("full ", 50_000, time.Hour)
	time.Sleep(time.Until(began.Add(lives + sweepStep + sweepDelay)))
	for i := range 8 {
		run(fmt.Sprintf("expiring %d ", i), 50_000, time.Hour)
		time.Sleep(10 * time.Second)
	}
	left := 0
	for cursor, more := "", true; more; more = cursor != "" {
		var page []idempotency.Listed
		if page, cursor, err = s.List(t.Context(), cursor, 1000); err != nil {
			t.Fatal(err)
		}
		left += len(page)
	}
	t.Logf("%d keys left, %s", left, s.database.db.Metrics())
}
