package redis

import (
	"context"
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

// claimAtOnce claims new keys, all at the same time. All claims must succeed.
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
func (s *pipes) state() (waiting int, flushed int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.open {
		p.mu.Lock()
		waiting += len(p.waiting)
		flushed += p.flushCount
		p.mu.Unlock()
	}
	return waiting, flushed
}

// warm dials the connections that flushes need, and claims a key.
func warm(t *testing.T, s *Store) {
	t.Helper()
	mustClaim(t, s, claimOf("warm", "warm"), idempotency.Proceed)
	for range maxFlushes {
		conn := s.client.(*goredis.Client).Conn()
		must(t, conn.Ping(ctx).Err())
		defer func() { _ = conn.Close() }() // back into the pool
	}
}

// With many more callers than connections, the commands that wait for a paused server are sent together
// when it resumes.
func TestBurst(t *testing.T) {
	const callers = 1000
	server, s := start(t)
	warm(t, s)
	_, before := s.pipes.state()
	sent := s.pipes.sent.Load()
	server.Pause()
	burst := claimAtOnce(t, s, callers)
	// Two flushes are under way, each with the commands that waited at its start.
	eventually(t, "all wait", func() bool {
		waiting, flushed := s.pipes.state()
		return flushed == before+maxFlushes && int64(waiting)+s.pipes.sent.Load()-sent == callers
	})
	server.Resume()
	burst.Wait()
	waiting, flushed := s.pipes.state()
	if maxFlushed := before + maxFlushes + callers/maxBatch + 2; waiting != 0 || flushed > maxFlushed {
		t.Errorf("%d commands still wait, after %d flushes; want none, after %d at most", waiting, flushed-before, maxFlushed-before)
	}
	if clients := s.client.(*goredis.Client).PoolStats().TotalConns; clients > 2*maxFlushes {
		t.Errorf("%d connections", clients)
	}
}

// slowConn delays what it reads, as a distant server does.
type slowConn struct {
	net.Conn
	delay time.Duration
}

func (c slowConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	time.Sleep(c.delay)
	return n, err
}

// To a distant server, concurrent claims share flushes. One after another, they would take seconds.
func TestBurstOverALongWay(t *testing.T) {
	server := redistest.Start(t)
	o := Options{Addresses: []string{server.Addr}, Timeout: busyTimeout}
	o.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		return slowConn{conn, 20 * time.Millisecond}, err
	}
	s := closeAtEnd(t, openWith(t, o))
	warm(t, s)
	_, before := s.pipes.state()
	claimAtOnce(t, s, 100).Wait()
	if _, flushed := s.pipes.state(); flushed-before > 20 {
		t.Errorf("%d flushes for 100 claims at once", flushed-before)
	}
}

// testSlowMaster pauses one master. The keys of the other masters are not affected.
func testSlowMaster(t *testing.T, cluster *redistest.Cluster, o Options) {
	s := closeAtEnd(t, openWith(t, o))
	for master := range cluster.Masters {
		mustClaim(t, s, claimOf(namesOn(master, 3, "warm")(), "token"), idempotency.Proceed)
	}
	slow, others := namesOn(0, 3, "slow"), namesOn(1, 3, "others")
	cluster.Masters[0].Pause()
	before := s.pipes.sent.Load()
	errs := make(chan error, 50)
	for range cap(errs) {
		c := claimOf(slow(), "token")
		go func() { _, err := s.Claim(ctx, c); errs <- err }()
	}
	eventually(t, "they wait", func() bool {
		n, _ := s.pipes.state()
		return int64(n)+s.pipes.sent.Load()-before == int64(cap(errs))
	})
	for range 50 {
		mustClaim(t, s, claimOf(others(), "token"), idempotency.Proceed)
	}
	select {
	case err := <-errs:
		t.Errorf("a claim at the paused master: %v, want a timeout", err)
	default:
	}
	cluster.Masters[0].Resume()
	for range cap(errs) {
		wantErr(t, <-errs, nil)
	}
}

// TestFlushIsCut loses the replies to flushes with many commands. Each command is sent again, and none
// takes effect twice.
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
		before := s.pipes.sent.Load()
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
			n, _ := s.pipes.state()
			return int64(n)+s.pipes.sent.Load()-before == callers
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
				wantErr(t, s.Settle(ctx, keyOf(fmt.Sprint(name, i)), records[i], kept(small)), nil)
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
