// Package storetest is the conformance suite of [idempotency.Store]. Every store must pass it. It tests
// what the comments of the interface promise, sentence by sentence: specification.go has the table. It is
// internal because the interface is: the stores of this module are the only ones.
package storetest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Options configure the suite for a store.
type Options struct {
	// Bubble runs every subtest in a bubble of synctest, in which its store is opened and whose clock the
	// store has. Without it, the clock of the store is real. The suite then uses short leases, waits until
	// they have passed, and runs the subtests in parallel.
	Bubble bool

	// Peer opens a second store over the same records, as another replica does. It is nil if only
	// one process can open the records.
	Peer func(t *testing.T, store idempotency.Store) idempotency.Store

	// Crash opens the store that another one leaves when its process is killed. It is nil if a store
	// outlives its processes, or is lost with its process.
	Crash func(t *testing.T, store idempotency.Store) idempotency.Store

	// LongPages reports whether a page may have more records than the limit.
	LongPages bool

	// Damage makes the stored record of the key unreadable. It is nil if that is impossible.
	Damage func(t *testing.T, store idempotency.Store, key idempotency.Key)
}

// Run runs the suite, with a subtest for each sentence of its specification. open returns an empty store, which the
// suite closes at the end of the subtest.
func Run(t *testing.T, open func(t *testing.T) idempotency.Store, options Options) {
	for _, group := range specification {
		t.Run(group.methods, func(t *testing.T) {
			if !options.Bubble {
				t.Parallel()
			}
			for _, test := range group.tests {
				t.Run(test.name, func(t *testing.T) {
					body := func(t *testing.T) { test.run(newFixture(t, open, options)) }
					if options.Bubble {
						synctest.Test(t, body)
					} else {
						t.Parallel()
						body(t)
					}
				})
			}
		})
	}
}

// fixture has the store of one subtest, its peer, and a way to let time pass.
type fixture struct {
	*testing.T
	ctx     context.Context
	store   idempotency.Store
	peer    idempotency.Store // the store itself if Options has no Peer
	options Options
	tokens  atomic.Int64
	// slowest is the duration, in ns, of the slowest claim; 0 in a bubble.
	slowest atomic.Int64
}

func newFixture(t *testing.T, open func(t *testing.T) idempotency.Store, options Options) *fixture {
	t.Helper()
	f := &fixture{T: t, ctx: t.Context(), options: options, store: open(t)}
	f.closeAtEnd(f.store)
	f.peer = f.store
	if options.Peer != nil {
		f.peer = options.Peer(t, f.store)
		f.closeAtEnd(f.peer)
	}
	return f
}

func (f *fixture) closeAtEnd(store idempotency.Store) {
	f.Cleanup(func() {
		WantErr(f, store.Close(), nil)
	})
}

// long is a lease that does not lapse during a subtest.
const long = time.Hour

// short is a lease for tests that let it lapse.
func (f *fixture) short() time.Duration {
	if f.options.Bubble {
		return time.Minute
	}
	return 500 * time.Millisecond // parallel subtests slow each other down
}

// clockTimeout is how long the clock of a store may take in addition to the expected time.
const clockTimeout = 30 * time.Second

// pass returns when the clock of the store has moved by at least d.
func (f *fixture) pass(d time.Duration) {
	f.Helper()
	if f.options.Bubble {
		time.Sleep(d)
		return
	}
	// A server may use two clocks that differ a little: one to expire keys, and one for TIME.
	const spread = 20 * time.Millisecond
	end := f.now().Add(d + spread)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(d + clockTimeout)
	for f.now().Before(end) {
		select {
		case <-tick.C:
		case <-deadline:
			f.Fatalf("the store's clock did not move by %v", d)
		}
	}
}

// now returns the time by the clock of the store.
func (f *fixture) now() time.Time {
	f.Helper()
	_, now, err := f.store.Lookup(f.ctx, key("the clock"))
	Must(f, err)
	return now
}

func key(name string) idempotency.Key { return sha256.Sum256([]byte(name)) }

// newClaim returns a claim with a new token and a long lease.
func (f *fixture) newClaim(k idempotency.Key) idempotency.Claim {
	n := f.tokens.Add(1)
	return idempotency.Claim{
		Key:         k,
		Token:       fmt.Sprintf("token-%d", n),
		ExecutionID: fmt.Sprintf("execution-%d", n),
		Origin:      idempotency.Origin{Provider: "github", DeliveryID: "delivery \"é\" 1"},
		Terms:       idempotency.Terms{Lease: long, Retention: 24 * long},
	}
}

// newForced returns a claim with Force.
func (f *fixture) newForced(k idempotency.Key) idempotency.Claim {
	c := f.newClaim(k)
	c.Force = true
	return c
}

// claim makes a claim, and fails the test on an error or on another verdict.
func (f *fixture) claim(c idempotency.Claim, want idempotency.Verdict) idempotency.Claimed {
	f.Helper()
	return f.claimAt(f.store, c, want)
}

func (f *fixture) claimAt(store idempotency.Store, c idempotency.Claim, want idempotency.Verdict) idempotency.Claimed {
	f.Helper()
	start := time.Now()
	claimed, err := store.Claim(f.ctx, c)
	Must(f, err, c.Token)
	f.slowest.Store(max(f.slowest.Load(), int64(time.Since(start))))
	if claimed.Verdict != want {
		f.Fatalf("claim %s: verdict %v, want %v; record %+v", c.Token, claimed.Verdict, want, claimed.Record)
	}
	if claimed.Record == nil {
		f.Fatalf("claim %s: verdict %v without a record", c.Token, claimed.Verdict)
	}
	if (claimed.Record.LargeBody > 0) != (claimed.Verdict == idempotency.ReplayKept && claimed.Response == nil) {
		f.Fatalf("claim %s: verdict %v, with a response: %v; record %+v", c.Token, claimed.Verdict, claimed.Response != nil, claimed.Record)
	}
	if claimed.Verdict == idempotency.ReplayKept && claimed.Response == nil {
		claimed.Response = f.responseAt(store, c.Key, claimed.Record.Token)
	}
	if claimed.Now.IsZero() {
		f.Fatalf("claim %s: verdict %v without the time", c.Token, claimed.Verdict)
	}
	return claimed
}

// lapse makes a claim, and returns when its lease has lapsed.
func (f *fixture) lapse(c idempotency.Claim) idempotency.Claimed {
	f.Helper()
	c.Lease = f.short()
	claimed := f.claim(c, idempotency.Proceed)
	f.pass(c.Lease)
	return claimed
}

// run claims a key, settles the claim, and returns its record.
func (f *fixture) run(k idempotency.Key, s idempotency.Settlement) *idempotency.Record {
	f.Helper()
	claimed := f.claim(f.newClaim(k), idempotency.Proceed).Record
	f.settle(k, claimed, s)
	return claimed
}

// settle ends a claim and fails the test on an error.
func (f *fixture) settle(k idempotency.Key, claimed *idempotency.Record, s idempotency.Settlement) {
	f.Helper()
	Must(f, f.store.Settle(f.ctx, k, claimed, s), claimed.Token, s.State)
}

// lookup returns the record of a key, and fails the test if there is none.
func (f *fixture) lookup(k idempotency.Key) *idempotency.Record {
	f.Helper()
	record, _, err := f.store.Lookup(f.ctx, k)
	Must(f, err)
	if record == nil {
		f.Fatal("lookup: no record")
	}
	return record
}

// absent fails the test if the key has a record.
func (f *fixture) absent(k idempotency.Key) {
	f.Helper()
	record, _, err := f.store.Lookup(f.ctx, k)
	Must(f, err)
	if record != nil {
		f.Fatalf("there is a record: %+v", record)
	}
}

// response returns the response of the run with this token, nil if there is none.
func (f *fixture) response(k idempotency.Key, token string) *idempotency.Response {
	f.Helper()
	return f.responseAt(f.store, k, token)
}

func (f *fixture) responseAt(store idempotency.Store, k idempotency.Key, token string) *idempotency.Response {
	f.Helper()
	response, err := store.Response(f.ctx, k, token)
	Must(f, err, token)
	return response
}

// complete returns a settlement that keeps a response with this body.
func complete(body string) idempotency.Settlement {
	return idempotency.Settlement{
		State: idempotency.Complete, Counted: true, Retention: 24 * long,
		Response: answer(201, body),
	}
}

// release returns a settlement that releases the key, and keeps a response for waiting requests.
func release(counted bool, body string) idempotency.Settlement {
	return idempotency.Settlement{
		State: idempotency.Released, Counted: counted, Retention: 24 * long, AnswerRetention: long,
		Response: answer(503, body),
	}
}

// hold returns a settlement after which the key is held.
func hold() idempotency.Settlement {
	return idempotency.Settlement{State: idempotency.Held, Counted: true, Retention: 24 * long}
}

func answer(status int, body string) *idempotency.Response {
	return &idempotency.Response{
		Status: status,
		Header: map[string][]string{"Content-Type": {"text/plain"}},
		Body:   []byte(body),
	}
}

// noResponse fails the subtest if there is a response.
func (f *fixture) noResponse(k idempotency.Key, token, what string, context ...any) {
	f.Helper()
	if response := f.response(k, token); response != nil {
		f.Error(append(context, fmt.Sprintf("%s: %+v", what, response))...)
	}
}
