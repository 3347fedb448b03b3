package file

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// smallResponse is what is kept in the benchmarks: 512 bytes, as an API answers.
func smallResponse() idempotency.Settlement {
	s := completeAs("etag")
	s.Response.Body = []byte(strings.Repeat("x", 512))
	return s
}

// inParallel calls f with the numbers below n, each once, from so many goroutines.
func inParallel(b *testing.B, callers, n int, f func(i int) error) {
	b.Helper()
	var next atomic.Int64
	var done sync.WaitGroup
	for range callers {
		done.Go(func() {
			for i := int(next.Add(1)); i <= n; i = int(next.Add(1)) {
				if err := f(i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	done.Wait()
}

// claimAndSettle is the work of one first delivery.
func claimAndSettle(s *Store, name string, settlement idempotency.Settlement) error {
	c := claimOf(name)
	claimed, err := s.Claim(context.Background(), c)
	if err != nil {
		return err
	}
	return s.Settle(context.Background(), c.Key, claimed.Record, settlement)
}

// BenchmarkFirstDelivery claims keys and keeps a response for each, in a store that has
// so many keys already.
func BenchmarkFirstDelivery(b *testing.B) {
	settlement := smallResponse()
	for _, keys := range []int{0, 10_000, 300_000} {
		for _, callers := range []int{1, 32} {
			b.Run(fmt.Sprintf("keys=%d/callers=%d", keys, callers), func(b *testing.B) {
				s, err := Open(b.TempDir()+"/keys", zap.NewNop())
				if err != nil {
					b.Fatal(err)
				}
				defer s.Close()
				inParallel(b, 64, keys, func(i int) error { return claimAndSettle(s, fmt.Sprint("earlier ", i), settlement) })
				cpu := cpuTime()
				b.ResetTimer()
				b.ReportAllocs()
				inParallel(b, callers, b.N, func(i int) error { return claimAndSettle(s, fmt.Sprint(i), settlement) })
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
				b.ReportMetric(float64((cpuTime()-cpu).Nanoseconds())/float64(b.N)/1000, "cpu-µs/pair")
				b.ReportMetric(anonymousMB(), "anonymous-MB")
			})
		}
	}
}

// BenchmarkLargeResponse claims keys and keeps a response of that many KiB for each.
func BenchmarkLargeResponse(b *testing.B) {
	for _, size := range []int{32, 64, 128, 256, 1024} {
		for _, callers := range []int{1, 32} {
			b.Run(fmt.Sprintf("KiB=%d/callers=%d", size, callers), func(b *testing.B) {
				s, err := Open(b.TempDir()+"/keys", zap.NewNop())
				if err != nil {
					b.Fatal(err)
				}
				defer s.Close()
				settlement := completeAs("etag")
				settlement.Response.Body = make([]byte, size<<10)
				random := rand.NewChaCha8([32]byte{1})
				_, _ = random.Read(settlement.Response.Body) // it cannot be compressed
				cpu := cpuTime()
				b.ResetTimer()
				b.ReportAllocs()
				inParallel(b, callers, b.N, func(i int) error { return claimAndSettle(s, fmt.Sprint(i), settlement) })
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
				b.ReportMetric(float64((cpuTime()-cpu).Nanoseconds())/float64(b.N)/1000, "cpu-µs/pair")
			})
		}
	}
}

// BenchmarkReplay answers duplicates of one key.
func BenchmarkReplay(b *testing.B) {
	s, err := Open(b.TempDir()+"/keys", zap.NewNop())
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	if err := claimAndSettle(s, "a", smallResponse()); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := ask(s, "a"); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
