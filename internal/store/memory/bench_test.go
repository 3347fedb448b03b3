package memory

import (
	"context"
	"crypto/rand"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// delivery is a claim as a webhook makes it.
func delivery(n int) idempotency.Claim {
	id := fmt.Sprintf("72d3162e-cc78-11e3-81ab-%012x", n)
	return idempotency.Claim{
		Key:          idempotency.Identity{Prefix: "github", ID: id}.Key(),
		Token:        rand.Text(),
		ExecutionID:  fmt.Sprintf("0199b8a2-7d1c-7000-8000-%012x", n),
		Fingerprints: []string{"body:" + strings.Repeat("00ff", 16)},
		Origin:       idempotency.Origin{Provider: "github", DeliveryID: id},
		Terms:        idempotency.Terms{Lease: 30 * time.Second, Retention: 24 * time.Hour},
	}
}

// kept is a settlement that keeps a response with a body of so many bytes.
func kept(size int) idempotency.Settlement {
	s := complete(size)
	s.Retention, s.Response.Header = 24*time.Hour, map[string][]string{"Content-Type": {"application/json"}}
	return s
}

// deliver is the work of one first delivery.
func deliver(s *Store, c idempotency.Claim, settlement idempotency.Settlement) error {
	claimed, err := s.Claim(context.Background(), c)
	if err != nil {
		return err
	}
	return s.Settle(context.Background(), c.Key, claimed.Record, settlement)
}

func liveHeap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // the first one moves what pools have to where the second finds it
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkFirstDelivery claims keys and keeps a response for each, in a store that has
// so many keys already. What is large is forgotten again.
func BenchmarkFirstDelivery(b *testing.B) {
	for _, c := range []struct{ keys, size int }{{0, 512}, {100_000, 512}, {0, 1 << 20}} {
		b.Run(fmt.Sprintf("keys=%d/body=%d", c.keys, c.size), func(b *testing.B) {
			s := New(4 << 30)
			defer s.Close()
			settlement := kept(c.size)
			for n := range c.keys {
				must(b, deliver(s, delivery(-n), settlement))
			}
			claims := make([]idempotency.Claim, b.N)
			for n := range claims {
				claims[n] = delivery(n)
			}
			b.ReportAllocs()
			b.ResetTimer()
			for _, claim := range claims {
				must(b, deliver(s, claim, settlement))
				if c.size > 64<<10 {
					must(b, s.Forget(b.Context(), claim.Key, idempotency.Precondition{}))
				}
			}
		})
	}
}

func BenchmarkReplay(b *testing.B) {
	for _, size := range []int{512, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			s := New(4 << 30)
			defer s.Close()
			must(b, deliver(s, delivery(0), kept(size)))
			duplicate := delivery(0)
			b.ReportAllocs()
			for b.Loop() {
				must(b, storetest.ErrOf(s.Claim(b.Context(), duplicate)))
			}
		})
	}
}

// What the store counts is what it takes, and a delivery with a response of 512 bytes takes about
// 1.3 kB.
func TestBytesPerKey(t *testing.T) {
	const keys = 20_000
	s := New(64 << 20)
	defer s.Close()
	settlement := kept(512)
	must(t, deliver(s, delivery(keys), settlement))
	before, counted := liveHeap(), s.taken()
	for n := range keys {
		must(t, deliver(s, delivery(n), settlement))
	}
	each := (liveHeap() - before) / keys
	counted = (s.taken() - counted) / keys
	t.Logf("each key takes %d bytes of heap, and counts as %d", each, counted)
	if each > 1400 {
		t.Errorf("a kept response of 512 bytes takes %d bytes of heap, want at most 1400", each)
	}
	if off := each - counted; off > each/7 || -off > each/7 {
		t.Errorf("a kept response of 512 bytes takes %d bytes of heap, and counts as %d", each, counted)
	}
	runtime.KeepAlive(s)
}
