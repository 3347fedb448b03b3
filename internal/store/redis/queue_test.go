package redis

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// TestSecondFlush begins when the first takes long, when the server is far, or when there
// is more than a flush could take, and otherwise not: what waits goes out together.
func TestSecondFlush(t *testing.T) {
	for name, test := range map[string]struct {
		took     []time.Duration // by the flushes before
		commands int
		after    time.Duration
		begins   bool
	}{
		"at once":                   {nil, mostInFlush - 1, 0, false},
		"before it takes long":      {nil, 1, soon - 1, false},
		"when it takes long":        {nil, 1, soon, true},
		"with more than it can":     {nil, mostInFlush, 0, true},
		"to a server that is far":   {slices.Repeat([]time.Duration{20 * near}, 10), 1, 0, true},
		"to one that was slow once": {[]time.Duration{near / 4, 10 * near}, 1, 0, false},
		"to one that is near again": {append(slices.Repeat([]time.Duration{20 * near}, 10), near/4), 1, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := miniredis.NewMiniRedis()
				t.Cleanup(server.Close)
				s := closeAtEnd(t, openMini(server))
				f, to := s.flushes, s.client.(*goredis.Client)
				q := f.newQueue(to)
				f.queues[to] = q
				q.alone, q.began = true, time.Now()
				for _, d := range test.took {
					q.took(d)
				}
				for range test.commands {
					c := newRequest(ctx, "ping")
					c.done = make(chan struct{}, 1)
					f.add(to, c)
				}
				time.Sleep(test.after)
				synctest.Wait()
				f.mu.Lock()
				if begins := q.running == 1; begins != test.begins {
					t.Errorf("a second flush begins: %v, want %v", begins, test.begins)
				}
				f.mu.Unlock()
			})
		})
	}
}

// TestLoneFlushTakesItsOwnTime where a second flush began just before it was over, or there
// was none. A server that is far does not seem near then.
func TestLoneFlushTakesItsOwnTime(t *testing.T) {
	const far = 20 * near
	for name, second := range map[string]bool{"alone": false, "with a second one": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := miniredis.NewMiniRedis()
				t.Cleanup(server.Close)
				s := closeAtEnd(t, openMini(server))
				f := s.flushes
				warm(t, s)
				synctest.Wait()
				f.mu.Lock()
				for _, q := range f.queues {
					q.shortest = far
				}
				f.mu.Unlock()
				q, _ := f.beginAlone(s.client.(*goredis.Client), newRequest(ctx, "ping"))
				time.Sleep(far)
				if second {
					f.mu.Lock()
					q.began = time.Now() // as wakeOne does
					f.mu.Unlock()
				}
				f.endAlone(q)
				f.mu.Lock()
				defer f.mu.Unlock()
				if q.shortest != far {
					t.Errorf("a flush that took %v counts as one of %v", far, q.shortest)
				}
			})
		})
	}
}

// TestFlushWithoutConnection says nothing of how far the server is.
func TestFlushWithoutConnection(t *testing.T) {
	f := newFlushes(generous)
	refuse := func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("refused") }
	to := goredis.NewClient(&goredis.Options{Addr: "in-no-network", MaxRetries: -1, DialerRetries: 1, Dialer: refuse})
	defer func() { _ = to.Close() }()
	q := f.newQueue(to)
	q.shortest = 20 * near
	f.queues[to] = q
	if _, err := f.send(ctx, to, newRequest(ctx, "ping")); err == nil {
		t.Error("it was sent")
	}
	f.close()
	f.wait()
	if q.shortest != 20*near {
		t.Errorf("the server counts as one that answers within %v", q.shortest)
	}
}

// TestCommandThatComesWhileADialFails is not what that dial was for. It has one of its own.
func TestCommandThatComesWhileADialFails(t *testing.T) {
	server := redistest.Start(t)
	f := newFlushes(generous)
	defer f.wait()
	defer f.close()
	var dials atomic.Int64
	fail := make(chan struct{})
	to := goredis.NewClient(&goredis.Options{
		Addr: server.Addr, DisableIdentity: true, MaxRetries: -1, DialerRetries: 1,
		Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
			if dials.Add(1) <= flushers {
				<-fail
				return nil, errors.New("it stood still")
			}
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	})
	defer func() { _ = to.Close() }()
	send := func() <-chan error {
		done := make(chan error, 1)
		go func() { _, err := f.send(ctx, to, newRequest(ctx, "ping")); done <- err }()
		return done
	}
	var failing []<-chan error
	for n := range int64(flushers) {
		failing = append(failing, send())
		eventually(t, "one more is dialing", func() bool { return dials.Load() == n+1 })
	}
	late := send()
	eventually(t, "all wait", func() bool { n, _ := f.state(); return n == flushers+1 })
	close(fail)
	for _, done := range failing {
		if err := <-done; err == nil {
			t.Error("it was sent without a connection")
		}
	}
	if err := <-late; err != nil {
		t.Errorf("it fails by a dial of before: %v", err)
	}
}

// TestCloseWhileCommandsWait tells those at once that nobody sends theirs.
func TestCloseWhileCommandsWait(t *testing.T) {
	f := newFlushes(generous)
	to := goredis.NewClient(&goredis.Options{Addr: "in-no-network"})
	defer func() { _ = to.Close() }()
	q := f.newQueue(to)
	f.queues[to] = q
	q.alone, q.began = true, time.Now().Add(time.Hour) // and so nobody else sends
	done := make(chan error, 1)
	go func() { _, err := f.send(ctx, to, newRequest(ctx, "ping")); done <- err }()
	eventually(t, "it waits", func() bool { n, _ := f.state(); return n == 1 })
	f.close()
	if err := <-done; !errors.Is(err, goredis.ErrClosed) {
		t.Errorf("%v, want ErrClosed", err)
	}
	f.endAlone(q)
	f.wait()
}

// TestCallersTime ends while their claims wait, or are on their way, and nothing but the
// queue looks at it.
func TestCallersTime(t *testing.T) {
	server := redistest.Start(t)
	s := closeAtEnd(t, openAt(t, server.Addr))
	warm(t, s)
	server.Pause()
	begin, outcomes := claimsOf(s)
	const short = 300 * time.Millisecond
	_, flushed := s.flushes.state()
	begin(ctx, "stays")
	eventually(t, "it is on its way", func() bool { _, n := s.flushes.state(); return n == flushed+1 })
	begin(withTime(t, short), "sent")
	eventually(t, "it is on its way", func() bool { _, n := s.flushes.state(); return n == flushed+2 })
	begin(withTime(t, short/2), "waits")
	for range 2 {
		o := <-outcomes
		if !errors.Is(o.err, context.DeadlineExceeded) || (o.claimed.Record != nil) != (o.name == "sent") {
			t.Errorf("%s: %v, in doubt %v", o.name, o.err, o.claimed.Record != nil)
		}
		var unsent *unsentError
		if errors.As(o.err, &unsent) != (o.name == "waits") {
			t.Errorf("%s: %v", o.name, o.err)
		}
	}
	server.Resume()
	if o := <-outcomes; o.name != "stays" || o.err != nil || o.claimed.Verdict != idempotency.Proceed {
		t.Errorf("%s: %v, %v", o.name, o.claimed.Verdict, o.err)
	}
	eventually(t, "nothing is under way", func() bool {
		s.flushes.mu.Lock()
		defer s.flushes.mu.Unlock()
		return s.flushes.queues[s.client.(*goredis.Client)].underWay() == 0
	})
	mustBeAbsent(t, s, keyOf("waits"))
	if mustFind(t, s, keyOf("sent")).State != idempotency.InFlight {
		t.Error("the claim that was on its way is not there")
	}
}
