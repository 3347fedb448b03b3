package engine_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// newBenchmarked returns an engine without a store, which costs nothing but itself.
func newBenchmarked(b testing.TB, copies *engine.Copies) *engine.Engine {
	options := someOptions()
	options.Copies = copies
	options.NewToken = func() string { return "ABCDEFGHIJKLMNOPQRSTUVWXYZ" }
	options.NewExecutionID = func() string { return "0199b8a2-7d1c-7000-8000-000000000001" }
	e := engine.New(nothing{}, options)
	b.Cleanup(func() { _ = e.Close() })
	return e
}

// claimWith claims the key with this number. Making the key costs next to nothing.
func claimWith(b testing.TB, e *engine.Engine, req engine.Request, n int) engine.Decision {
	binary.BigEndian.PutUint64(req.Key[:], uint64(n))
	binary.BigEndian.PutUint64(req.Key[len(req.Key)-8:], uint64(n))
	decision, err := e.Claim(context.Background(), req)
	must(b, err)
	return decision
}

func runWith(b testing.TB, e *engine.Engine, req engine.Request, n int, response *idempotency.Response) {
	run, ok := claimWith(b, e, req, n).(*engine.Run)
	if !ok {
		b.Fatal("the first request does not run")
	}
	if got := end(run, response); got != resultKept {
		b.Fatalf("the run ended %q", got)
	}
}

// limits are no copies and the default, in bytes.
var limits = []int64{0, 16 << 20}

// bodySizes are the sizes of a typical body and of larger ones, in bytes.
var bodySizes = []int{512, 4 << 10, 64 << 10}

// garbage is what the rest of a server allocates for a request.
var garbage []byte

// BenchmarkFirstDelivery is a first delivery, without and with copies. Each one has its own
// response, and leaves 16 KiB of garbage, as a server would: the objects of the copies cost time in
// every garbage collection.
func BenchmarkFirstDelivery(b *testing.B) {
	for _, size := range bodySizes {
		for _, limit := range limits {
			b.Run(fmt.Sprintf("copies of %d MiB/%d", limit>>20, size), func(b *testing.B) {
				e, req, n := newBenchmarked(b, engine.NewCopies(limit)), someRequest(), 0
				req.Origin.DeliveryID = "72d3162e-cc78-11e3-81ab-4c9367dc0958"
				b.ReportAllocs()
				for b.Loop() {
					runWith(b, e, req, n, typicalResponse(size))
					garbage = make([]byte, 16<<10)
					n++
				}
			})
		}
	}
}

// BenchmarkDuplicate is a duplicate that is answered from a copy: the first one of its
// key, and one after that.
func BenchmarkDuplicate(b *testing.B) {
	const keys = 4096
	for _, size := range bodySizes {
		filled := func(b *testing.B) (*engine.Engine, engine.Request) {
			e, req, response := newBenchmarked(b, engine.NewCopies(1<<40)), someRequest(), typicalResponse(size)
			for n := range keys {
				runWith(b, e, req, n, response)
			}
			return e, req
		}
		b.Run(fmt.Sprintf("first/%d", size), func(b *testing.B) {
			b.ReportAllocs()
			for done := 0; done < b.N; done += keys {
				b.StopTimer()
				e, req := filled(b)
				b.StartTimer()
				for n := range min(keys, b.N-done) {
					if _, ok := claimWith(b, e, req, n).(engine.Replay); !ok {
						b.Fatal("there is no copy")
					}
				}
			}
		})
		b.Run(fmt.Sprintf("second/%d", size), func(b *testing.B) {
			e, req := filled(b)
			for n := range keys {
				claimWith(b, e, req, n)
			}
			n := 0
			b.ReportAllocs()
			for b.Loop() {
				if _, ok := claimWith(b, e, req, n%keys).(engine.Replay); !ok {
					b.Fatal("there is no copy")
				}
				n++
			}
		})
	}
}
