package file

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

func completeWithKiB() idempotency.Settlement {
	s := completeAs("etag")
	s.Response.Body = []byte(strings.Repeat("x", 1<<10))
	return s
}

// BenchmarkClaimComplete keeps one response of 1 KiB per operation.
func BenchmarkClaimComplete(b *testing.B) {
	settlement := completeWithKiB()
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			s, err := Open(b.TempDir()+"/keys.db", zap.NewNop())
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			var n atomic.Int64
			var done sync.WaitGroup
			b.ResetTimer()
			for range callers {
				done.Go(func() {
					for {
						i := n.Add(1)
						if i > int64(b.N) {
							return
						}
						c := claimOf(fmt.Sprint(i))
						claimed, err := s.Claim(context.Background(), c)
						if err == nil {
							err = s.Settle(context.Background(), c.Key, claimed.Record, settlement)
						}
						if err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			done.Wait()
		})
	}
}

// BenchmarkReplay reads a response of 1 KiB.
func BenchmarkReplay(b *testing.B) {
	s, err := Open(b.TempDir()+"/keys.db", zap.NewNop())
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	claimed, err := s.Claim(context.Background(), claimOf("a"))
	if err == nil {
		err = s.Settle(context.Background(), key("a"), claimed.Record, completeWithKiB())
	}
	if err != nil {
		b.Fatal(err)
	}
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := ask(s, "a"); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
