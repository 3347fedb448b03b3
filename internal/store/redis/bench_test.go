package redis

import (
	"crypto/rand"
	"fmt"
	"runtime"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// BenchmarkClaimAndSettle is what a first request costs: a claim, and a
// settlement that keeps 1 KiB.
func BenchmarkClaimAndSettle(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			server := redistest.Start(b)
			s := closeAtEnd(b, openAt(b, server.Addr))
			settlement := kept(1 << 10)
			step := func() {
				c := claimOf(rand.Text(), "token")
				claimed, err := s.Claim(ctx, c)
				if err == nil && claimed.Verdict == idempotency.Proceed {
					err = s.Settle(ctx, c.Key, claimed.Record, settlement)
				}
				if err != nil {
					b.Errorf("verdict %v: %v", claimed.Verdict, err)
				}
			}
			b.ReportAllocs()
			if callers == 1 {
				for b.Loop() {
					step()
				}
				return
			}
			// RunParallel takes its goroutines in multiples of GOMAXPROCS.
			b.SetParallelism(max(callers/runtime.GOMAXPROCS(0), 1))
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					step()
				}
			})
		})
	}
}
