package engine_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// chaos wraps the shared store of a random test. It records what clients and upstreams have seen and
// what the store has promised, and fails the test when a promise is broken.
type chaos struct {
	idempotency.Store
	t *testing.T

	mu sync.Mutex
	// leases says of each run until when the store has promised it the key.
	leases map[string]time.Time
	// running has, for each operation, the runs that have not ended.
	running map[int]map[string]bool
	// kept has, for each operation, the run whose response is kept, as Settle has said.
	kept    map[int]string
	results map[string]result
	replays map[string]int
	waited  int
}

// Claim implements [idempotency.Store].
func (c *chaos) Claim(ctx context.Context, claim idempotency.Claim) (idempotency.Claimed, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	got, err := c.Store.Claim(ctx, claim)
	if err == nil && got.Verdict == idempotency.Proceed {
		c.leases[claim.ExecutionID] = time.Now().Add(claim.Lease)
	}
	return got, err
}

// Renew implements [idempotency.Store].
func (c *chaos) Renew(ctx context.Context, claim idempotency.Claim) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.Store.Renew(ctx, claim)
	if err == nil {
		c.leases[claim.ExecutionID] = time.Now().Add(claim.Lease)
	}
	return err
}

func (c *chaos) runStarted(operation int, run *engine.Run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	executionID := run.ExecutionID()
	for other := range c.running[operation] {
		if left := time.Until(c.leases[other]); left > 0 {
			c.t.Errorf("%s runs beside %s, whose lease holds for %v", executionID, other, left)
		}
	}
	if other := c.kept[operation]; other != "" {
		c.t.Errorf("%s runs though the response of %s is kept", executionID, other)
	}
	if record, _, err := c.Store.Lookup(context.Background(), keyed(operation).Key); err != nil || record.ExecutionID != executionID {
		c.t.Errorf("%s runs and the store says %+v (%v)", executionID, record, err)
	}
	if c.running[operation] == nil {
		c.running[operation] = make(map[string]bool)
	}
	c.running[operation][executionID] = true
}

func (c *chaos) runEnded(operation int, run *engine.Run, how idempotency.How, response *idempotency.Response) {
	c.mu.Lock()
	delete(c.running[operation], run.ExecutionID())
	c.mu.Unlock()
	result := ended(run, idempotency.End{How: how, Response: response})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.results[run.ExecutionID()] = result
	if result == resultKept {
		if other := c.kept[operation]; other != "" {
			c.t.Errorf("%s is kept though %s was", run.ExecutionID(), other)
		}
		c.kept[operation] = run.ExecutionID()
	}
}

func (c *chaos) replayed(replay engine.Replay) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if got := string(replay.Response.Body); got != replay.Record.ExecutionID {
		c.t.Errorf("the replay of %s has the answer of %s", replay.Record.ExecutionID, got)
	}
	c.replays[replay.Record.ExecutionID]++
	if replay.Waited {
		c.waited++
	}
}

// request is one client: it claims, and if it may run, it runs and ends in a random way.
func (c *chaos) request(random *rand.Rand, r *replica, operation int, req engine.Request) {
	ctx := context.Background()
	if random.IntN(10) == 0 {
		impatient, cancel := context.WithTimeout(ctx, time.Duration(random.IntN(3000))*time.Millisecond)
		defer cancel()
		ctx = impatient
	}
	d, err := r.Claim(ctx, req)
	switch d := d.(type) {
	case *engine.Run:
		c.runStarted(operation, d)
		time.Sleep(time.Duration(random.IntN(6000)) * time.Millisecond)
		response := &idempotency.Response{Status: 500, Body: []byte(d.ExecutionID())}
		how := idempotency.Answered
		switch random.IntN(8) {
		case 0:
			how = idempotency.Unknown
		case 1:
			how = idempotency.NotSent
		case 2, 3:
			response.Status = 201
		}
		c.runEnded(operation, d, how, response)
	case engine.Replay:
		c.replayed(d)
	case engine.Refusal:
		if d.Reason == engine.ReasonReused || d.Reason == engine.ReasonUnreadable || d.Reason == engine.ReasonOverloaded {
			c.t.Errorf("refused with %q: %v", d.Reason, d.Err)
		}
	case nil:
		if err == nil || ctx.Err() == nil {
			c.t.Errorf("decided nothing: %v", err)
		}
	default:
		c.t.Errorf("decided %T", d)
	}
}

// disturb makes one operation of one replica fail for a while.
func disturb(random *rand.Rand, r *replica) {
	operations := []string{"claim", "renew", "settle", "lookup", "response"}
	operation := operations[random.IntN(len(operations))]
	faults := []fault{refused, hung, replyLost}
	if operation == "claim" {
		faults = append(faults, executedLater, twice)
	}
	r.link.fail(faults[random.IntN(len(faults))], operation)
	time.Sleep(time.Duration(random.IntN(8000)) * time.Millisecond)
	r.link.fail(works)
	time.Sleep(time.Duration(random.IntN(8000)) * time.Millisecond)
}

func TestRandomInterleavings(t *testing.T) {
	interleavings(t, 0, "", "")
}

// The same, with local copies on each replica.
func TestRandomInterleavingsWithCopies(t *testing.T) {
	interleavings(t, someCopies, "", "")
}

// The same, with encryption keys that have a different order on each replica.
func TestRandomInterleavingsUnderTwoKeys(t *testing.T) {
	interleavings(t, someCopies, "ab", "ba")
}

// interleavings runs many seeds. There is an element of keys for each replica: its encryption keys.
// copies is the limit of each replica's local copies.
func interleavings(t *testing.T, copies int64, keys ...string) {
	var replays, waited int
	for seed := range uint64(30) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := interleave(t, seed, copies, keys)
				waited += c.waited
				for executionID, n := range c.replays {
					replays += n
					switch c.results[executionID] {
					case resultKept, resultReleased, resultNotSent, resultTrying:
					default:
						t.Errorf("%s was replayed, and ended %q", executionID, c.results[executionID])
					}
				}
			})
		})
	}
	if replays == 0 || waited == 0 || waited == replays {
		t.Errorf("of %d replays %d had waited: the interleavings show nothing", replays, waited)
	}
}

// interleave runs many requests on two replicas, whose links to the store fail at times. It returns
// what it has recorded.
func interleave(t *testing.T, seed uint64, copies int64, sealedWith []string) *chaos {
	c := &chaos{
		Store:   newShared(t),
		t:       t,
		leases:  make(map[string]time.Time),
		running: make(map[int]map[string]bool),
		kept:    make(map[int]string),
		results: make(map[string]result),
		replays: make(map[string]int),
	}
	var replicas []*replica
	for _, keys := range sealedWith {
		r := newReplicaWithCopies(t, c, engine.NewCopies(copies))
		r.Configure(engine.Settings{Sealer: sealing(t, keys)})
		replicas = append(replicas, r)
	}
	request := func(n int) engine.Request {
		req := keyed(n)
		req.Policy.Hold = n%4 == 0
		req.Policy.Lease = 3 * time.Second
		req.Wait = 4 * time.Second
		return req
	}
	const keys = 8
	var clients, disturbers sync.WaitGroup
	stop := make(chan struct{})
	for i := range 60 {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		clients.Go(func() {
			for range 10 {
				time.Sleep(time.Duration(random.IntN(4000)) * time.Millisecond)
				replica, operation := random.IntN(2), random.IntN(keys)
				c.request(random, replicas[replica], operation, request(operation))
			}
		})
	}
	for i, r := range replicas {
		random := rand.New(rand.NewPCG(seed, 1000+uint64(i)))
		disturbers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					disturb(random, r)
				}
			}
		})
	}
	clients.Wait()
	close(stop)
	disturbers.Wait()
	time.Sleep(2 * idempotency.ClaimTimeout)
	for _, r := range replicas {
		r.drain()
	}
	// Whatever has happened, no key may be left in flight without a run.
	for n := range keys {
		req := request(n)
		switch d := replicas[n%2].claim(req).(type) {
		case *engine.Run:
			c.runStarted(n, d)
			c.runEnded(n, d, idempotency.Answered, &idempotency.Response{Status: 201, Body: []byte(d.ExecutionID())})
		case engine.Replay:
			c.replayed(d)
		case engine.Refusal:
			if d.Reason != engine.ReasonHeld || !req.Policy.Hold {
				t.Errorf("key %d is left refused with %q of %+v", n, d.Reason, d.Record)
			}
		}
	}
	return c
}
