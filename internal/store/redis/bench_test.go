//go:build unix

package redis

import (
	"crypto/rand"
	"fmt"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// BenchmarkClaimAndSettle is what a first request costs: a claim, and a settlement that
// keeps a response. It also reports the CPU time of both sides: of this process, with
// what the benchmark itself needs, and of the server.
func BenchmarkClaimAndSettle(b *testing.B) {
	for _, test := range []struct{ callers, size int }{{1, 512}, {32, 512}, {32, 64 << 10}} {
		b.Run(fmt.Sprintf("callers=%d/bytes=%d", test.callers, test.size), func(b *testing.B) {
			server := redistest.Start(b)
			s := closeAtEnd(b, openAt(b, server.Addr))
			settlement := kept(test.size)
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
			step()
			b.ReportAllocs()
			client, remote := processCPU(b), serverCPU(b, server)
			if test.callers == 1 {
				for b.Loop() {
					step()
				}
			} else {
				// RunParallel takes its goroutines in multiples of GOMAXPROCS.
				b.SetParallelism(max(test.callers/runtime.GOMAXPROCS(0), 1))
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						step()
					}
				})
			}
			perStep := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 / float64(b.N) }
			b.ReportMetric(perStep(processCPU(b)-client), "client-µs/op")
			b.ReportMetric(perStep(serverCPU(b, server)-remote), "server-µs/op")
		})
	}
}

// serverCPU returns the CPU time that the server has used.
func serverCPU(b *testing.B, server *redistest.Server) time.Duration {
	b.Helper()
	var total float64
	for _, field := range []string{"used_cpu_sys", "used_cpu_user"} {
		seconds, err := strconv.ParseFloat(server.Info("cpu", field), 64)
		if err != nil {
			b.Fatal(err)
		}
		total += seconds
	}
	return time.Duration(total * float64(time.Second))
}

// processCPU returns the CPU time that this process has used.
func processCPU(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
