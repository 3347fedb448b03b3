package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// claimAtOnce claims fresh keys, all at the same time. None may be refused.
func claimAtOnce(t *testing.T, s *Store, n int) *sync.WaitGroup {
	callers := new(sync.WaitGroup)
	for i := range n {
		callers.Go(func() {
			c := claimOf(fmt.Sprint("burst ", i), "token")
			claimed, err := s.Claim(ctx, c)
			if err != nil || claimed.Verdict != idempotency.Proceed {
				t.Errorf("%d of %d at once: %v, %v", i, n, claimed.Verdict, err)
			}
		})
	}
	return callers
}

// state returns how many commands wait to be sent, and how many flushes there were.
func (f *flushes) state() (waiting int, flushed int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, q := range f.queues {
		waiting += len(q.waiting)
	}
	return waiting, f.count.Load()
}

// warm makes the connections that flushes need, and claims a key.
func warm(t *testing.T, s *Store) {
	t.Helper()
	mustClaim(t, s, claimOf("warm", "warm"), idempotency.Proceed)
	for range flushers {
		conn := s.client.(*goredis.Client).Conn()
		if err := conn.Ping(ctx).Err(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }() // back into the pool
	}
}

// TestBurst has many more callers than connections. Those of a server that stands still
// go out together when it goes on.
func TestBurst(t *testing.T) {
	const callers = 1000
	server := redistest.Start(t)
	s := closeAtEnd(t, openAt(t, server.Addr))
	warm(t, s)
	_, before := s.flushes.state()
	sent := s.flushes.sent.Load()
	server.Pause()
	burst := claimAtOnce(t, s, callers)
	// Two flushes are on their way, each with what there was when it began.
	eventually(t, "all wait", func() bool {
		waiting, flushed := s.flushes.state()
		return flushed == before+flushers && int64(waiting)+s.flushes.sent.Load()-sent == callers
	})
	server.Resume()
	burst.Wait()
	waiting, flushed := s.flushes.state()
	if most := before + flushers + callers/mostInFlush + 2; waiting != 0 || flushed > most {
		t.Errorf("%d commands still wait, after %d flushes; want none, after %d at most", waiting, flushed-before, most-before)
	}
	if clients := s.client.(*goredis.Client).PoolStats().TotalConns; clients > 2*flushers {
		t.Errorf("%d connections", clients)
	}
}

// slowConn delays what it reads, as a long way does.
type slowConn struct {
	net.Conn
	delay time.Duration
}

func (c slowConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	time.Sleep(c.delay)
	return n, err
}

// TestBurstOverALongWay has a round trip that would take one connection seconds for all
// the claims, one after another.
func TestBurstOverALongWay(t *testing.T) {
	server := redistest.Start(t)
	o := Options{Addresses: []string{server.Addr}, Timeout: generous}.withDefaults()
	options := clientOptions(o)
	options.Dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return slowConn{conn, 20 * time.Millisecond}, err
	}
	s := closeAtEnd(t, newStore(watched(goredis.NewClient(options), o), o))
	warm(t, s)
	_, before := s.flushes.state()
	claimAtOnce(t, s, 100).Wait()
	if _, flushed := s.flushes.state(); flushed-before > 20 {
		t.Errorf("%d flushes for 100 claims at once", flushed-before)
	}
}

// claimOutcome is what became of the claim of a name.
type claimOutcome struct {
	name    string
	claimed idempotency.Claimed
	err     error
}

// claimsOf returns a function that begins to claim a name, and where it tells the outcome.
func claimsOf(s *Store) (begin func(ctx context.Context, name string), outcomes chan claimOutcome) {
	outcomes = make(chan claimOutcome, 10)
	return func(ctx context.Context, name string) {
		go func() {
			claimed, err := s.Claim(ctx, claimOf(name, "token"))
			outcomes <- claimOutcome{name, claimed, err}
		}()
	}, outcomes
}

// TestCallerGivesUp has callers that end while their claims wait, or are on their way.
// The others lose nothing by that.
func TestCallerGivesUp(t *testing.T) {
	server := redistest.Start(t)
	s := closeAtEnd(t, openAt(t, server.Addr))
	warm(t, s)
	server.Pause()
	begin, outcomes := claimsOf(s)
	leaving, leave := context.WithCancel(ctx)
	defer leave()
	_, flushed := s.flushes.state()
	for i := range int64(flushers) { // each flush has one caller who leaves
		begin(leaving, fmt.Sprint("sent ", i))
		eventually(t, "it is on its way", func() bool { _, n := s.flushes.state(); return n == flushed+i+1 })
	}
	begin(leaving, "waits")
	begin(ctx, "stays")
	eventually(t, "the others wait", func() bool { n, _ := s.flushes.state(); return n == 2 })
	leave()
	for range flushers + 1 {
		o := <-outcomes
		if !errors.Is(o.err, context.Canceled) || (o.claimed.Record != nil) != (o.name != "waits") {
			t.Errorf("%s: %v, in doubt %v", o.name, o.err, o.claimed.Record != nil)
		}
	}
	server.Resume()
	if o := <-outcomes; o.name != "stays" || o.err != nil || o.claimed.Verdict != idempotency.Proceed {
		t.Errorf("%s: %v, %v", o.name, o.claimed.Verdict, o.err)
	}
	mustBeAbsent(t, s, keyOf("waits"))
	for i := range flushers {
		if mustFind(t, s, keyOf(fmt.Sprint("sent ", i))).State != idempotency.InFlight {
			t.Error("a claim on its way was not executed")
		}
	}
}

// testSlowMaster has one master that stands still. The others' keys go on.
func testSlowMaster(t *testing.T, cluster *redistest.Cluster, o Options) {
	s := closeAtEnd(t, openWith(t, o))
	for master := range cluster.Masters {
		mustClaim(t, s, claimOf(namesOn(master, 3, "warm")(), "token"), idempotency.Proceed)
	}
	slow, others := namesOn(0, 3, "slow"), namesOn(1, 3, "others")
	cluster.Masters[0].Pause()
	before := s.flushes.sent.Load()
	errs := make(chan error, 50)
	for range cap(errs) {
		c := claimOf(slow(), "token")
		go func() { _, err := s.Claim(ctx, c); errs <- err }()
	}
	eventually(t, "they wait", func() bool {
		n, _ := s.flushes.state()
		return int64(n)+s.flushes.sent.Load()-before == int64(cap(errs))
	})
	for range 50 {
		mustClaim(t, s, claimOf(others(), "token"), idempotency.Proceed)
	}
	select {
	case err := <-errs:
		t.Errorf("a master that stands still answered: %v", err)
	default:
	}
	cluster.Masters[0].Resume()
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Errorf("when it goes on: %v", err)
		}
	}
}

// TestFlushIsCut loses the replies to flushes with many commands: each is made again,
// and none is done twice.
func TestFlushIsCut(t *testing.T) {
	server := redistest.Start(t)
	p := startProxy(t, listen(t), server.Addr)
	s := closeAtEnd(t, openAt(t, p.addr))
	warm(t, s)
	const callers = 200
	for _, scripts := range []bool{true, false} { // whether the server knows them
		name := fmt.Sprint("cut ", scripts)
		if !scripts {
			command(t, server, "SCRIPT", "FLUSH")
		}
		server.Pause()
		before := s.flushes.sent.Load()
		var all sync.WaitGroup
		records := make([]*idempotency.Record, callers)
		for i := range callers {
			all.Go(func() {
				claimed, err := s.Claim(ctx, claimOf(fmt.Sprint(name, i), "token"))
				if err != nil || claimed.Verdict != idempotency.Proceed || claimed.Record.Attempt != 1 || claimed.Previous != nil {
					t.Errorf("%+v, %v", claimed, err)
				}
				records[i] = claimed.Record
			})
		}
		// Two flushes may have taken all of them by now.
		eventually(t, "all wait", func() bool {
			n, _ := s.flushes.state()
			return int64(n)+s.flushes.sent.Load()-before == callers
		})
		p.lose.Store(1)
		server.Resume()
		all.Wait()
		if slices.Contains(records, nil) {
			t.FailNow()
		}
		p.lose.Store(1)
		for i := range callers {
			all.Go(func() {
				if err := s.Settle(ctx, keyOf(fmt.Sprint(name, i)), records[i], kept(small)); err != nil {
					t.Errorf("settle: %v", err)
				}
			})
		}
		all.Wait()
		if left := p.lose.Load(); left != 0 {
			t.Fatalf("%d replies were not lost", left)
		}
		for i := range callers {
			mustClaim(t, s, claimOf(fmt.Sprint(name, i), "again"), idempotency.ReplayKept)
		}
	}
}
