//go:build unix

package file

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// cpuTime returns the CPU time that this process has used.
func cpuTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// anonymousMB returns the memory of this process, in MB, that is not a cache of files; 0 if the system
// does not report it.
func anonymousMB() float64 {
	text, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(text)) {
		if of, found := strings.CutPrefix(line, "RssAnon:"); found {
			kb, _ := strconv.Atoi(strings.Fields(of)[0])
			return float64(kb) / 1024
		}
	}
	return 0
}

// responseOf returns a settlement with a body of this size that cannot be compressed.
func responseOf(size int) idempotency.Settlement {
	s := completeAs("")
	s.Response.Body = make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(s.Response.Body)
	return s
}

// inParallel calls f with the numbers from 1 to n, from so many goroutines.
func inParallel(tb testing.TB, callers, n int, f func(i int) error) {
	tb.Helper()
	var next atomic.Int64
	var done sync.WaitGroup
	for range callers {
		done.Go(func() {
			for i := int(next.Add(1)); i <= n; i = int(next.Add(1)) {
				if err := f(i); err != nil {
					tb.Error(err)
					return
				}
			}
		})
	}
	done.Wait()
}

func openForBench(tb testing.TB) *Store {
	tb.Helper()
	s, err := Open(tb.TempDir()+"/keys", zap.NewNop())
	must(tb, err)
	tb.Cleanup(func() { _ = s.Close() })
	return s
}

// measure reports the rate and the CPU time of claims with their settlements.
func measure(b *testing.B, s *Store, callers int, settlement idempotency.Settlement) {
	b.Helper()
	cpu := cpuTime()
	b.ResetTimer()
	b.ReportAllocs()
	inParallel(b, callers, b.N, func(i int) error { return keepAs(context.Background(), s, fmt.Sprint(i), settlement) })
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
	b.ReportMetric(float64((cpuTime()-cpu).Nanoseconds())/float64(b.N)/1000, "cpu-µs/pair")
}

// BenchmarkFirstDelivery keeps responses of 512 bytes in a store that already has keys.
func BenchmarkFirstDelivery(b *testing.B) {
	settlement := responseOf(512)
	for _, keys := range []int{0, 300_000} {
		for _, callers := range []int{1, 32} {
			b.Run(fmt.Sprintf("keys=%d/callers=%d", keys, callers), func(b *testing.B) {
				s := openForBench(b)
				inParallel(b, 64, keys, func(i int) error { return keepAs(context.Background(), s, fmt.Sprint("earlier ", i), settlement) })
				measure(b, s, callers, settlement)
				b.ReportMetric(anonymousMB(), "anonymous-MB")
			})
		}
	}
}

// BenchmarkLargeResponse keeps responses that are larger than an inline body.
func BenchmarkLargeResponse(b *testing.B) {
	for _, size := range []int{64, 256, 1024} {
		for _, callers := range []int{1, 32} {
			b.Run(fmt.Sprintf("KiB=%d/callers=%d", size, callers), func(b *testing.B) {
				measure(b, openForBench(b), callers, responseOf(size<<10+1))
			})
		}
	}
}

// BenchmarkReplay answers duplicates.
func BenchmarkReplay(b *testing.B) {
	s := openForBench(b)
	const keys = 10_000
	inParallel(b, 64, keys, func(i int) error { return keepAs(context.Background(), s, fmt.Sprint(i), responseOf(512)) })
	b.ReportAllocs()
	b.ResetTimer()
	inParallel(b, 32, b.N, func(i int) error {
		_, err := ask(context.Background(), s, fmt.Sprint(1+i%keys))
		return err
	})
}

var growth = flag.Int("growth", 0, "number of keys in TestGrowth; 0 skips it")

// TestGrowth measures a store while it grows, while all keys expire together, and after that.
func TestGrowth(t *testing.T) {
	if *growth == 0 {
		t.Skip("-growth 1000000 runs it")
	}
	s := openForBench(t)
	settlement, random := completeAs(""), responseOf(1<<20).Response.Body
	kept := 0
	measure := func(what string, n int, until time.Time) {
		at, cpu := time.Now(), cpuTime()
		took := make([]time.Duration, n)
		inParallel(t, 32, n, func(i int) error {
			start := time.Now()
			c, settlement, response := claimOf(fmt.Sprint(kept+i)), settlement, *settlement.Response
			response.Body = random[(kept+i)*613%(len(random)-512):][:512]
			settlement.Response = &response
			if !until.IsZero() {
				c.Lease, settlement.Retention = time.Second, time.Until(until)
				c.Retention = settlement.Retention
			}
			got, err := s.Claim(t.Context(), c)
			if err == nil {
				err = s.Settle(t.Context(), c.Key, got.Record, settlement)
			}
			took[i-1] = time.Since(start)
			return err
		})
		kept += n
		passed := time.Since(at)
		slices.Sort(took)
		t.Logf("%-8s %6.0f pairs/s %5.1f us CPU, p50 %v p99 %v max %v, %.0f MB anonymous, %d MB on the disk", what,
			float64(n)/passed.Seconds(), float64((cpuTime()-cpu).Microseconds())/float64(n),
			took[n/2].Round(time.Microsecond), took[n*99/100].Round(time.Microsecond), took[n-1].Round(time.Millisecond),
			anonymousMB(), s.database.db.Metrics().DiskSpaceUsage()>>20)
	}
	start := time.Now()
	lives := time.Duration(*growth) * 100 * time.Microsecond
	end := start.Add(lives)
	measure("growing", *growth, end)
	if time.Now().After(end) {
		t.Fatalf("not all keys were written within %v", lives)
	}
	for range 3 {
		measure("all", 20_000, time.Time{})
	}
	time.Sleep(time.Until(end.Add(sweepDelay)))
	for expiring := time.Now(); ; {
		due, err := s.database.expiries([]byte{expiryTable}, expiryName(end.UnixMilli(), idempotency.Key{}, ""), 1)
		must(t, err)
		if len(due) == 0 {
			t.Logf("all removed after %v", time.Since(expiring).Round(time.Second))
			break
		}
		measure("expiring", 20_000, time.Time{})
	}
	for range 3 {
		time.Sleep(5 * time.Second)
		measure("after", 20_000, time.Time{})
	}
}
