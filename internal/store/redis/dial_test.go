package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// A dial takes longer than an operation may: the name server or the server does not answer. The error says what the
// caller waited for. TestSlowLink has what becomes of the connection.
func TestWhatADialWaitsFor(t *testing.T) {
	t.Parallel()
	silent := listen(t).Addr().String()
	var waits sync.WaitGroup
	defer waits.Wait()
	for want, all := range map[string][]Options{
		"its name is not resolved":          {{Addresses: []string{"redis.test:6379"}}},
		"does not answer the first command": {{}, {Cluster: true}, {Sentinel: redistest.MasterName}},
		"the TLS handshake is not answered": {{TLS: always(new(tls.Config))}},
	} {
		for _, o := range all {
			if o.Addresses == nil {
				o.Addresses = []string{silent}
			}
			s := openWith(t, o)
			if o.Addresses[0] != silent {
				s.dialer.lookUp = func(ctx context.Context, _ string) ([]net.IPAddr, error) {
					<-ctx.Done()
					return nil, ctx.Err()
				}
			}
			waits.Go(func() {
				if err := storetest.ErrOf(s.Claim(ctx, claimOf("a", "token"))); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v: %v; want %q", o, err, want)
				}
			})
		}
	}
}

// TestSlowLink has a round trip of 240 ms and the default timeout. A dial and the first commands take longer
// than the first caller waits. The dial goes on, and its connection serves the next one. A caller that
// times out in between closes no connection. The error of a caller that times out names the timeout to set.
func TestSlowLink(t *testing.T) {
	for name, use := range map[string]func(s *Store) error{
		"claim and settle": func(s *Store) error {
			c := claimOf("a", "token")
			claimed, err := s.Claim(ctx, c)
			if err == nil {
				err = s.Settle(ctx, c.Key, claimed.Record, kept(small))
			}
			return err
		},
		"renew": func(s *Store) error {
			if err := s.Renew(ctx, claimOf("a", "token")); !errors.Is(err, idempotency.ErrGone) {
				return err
			}
			return nil
		},
		"look up": func(s *Store) error { return s.Ready(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, server fake) {
				const roundTrip = 240 * time.Millisecond
				l := &link{dialServer: dialMini(server.Miniredis), dialed: func() { time.Sleep(roundTrip) }} // SYN and its reply
				t.Cleanup(l.cut)
				l.delay.Store(int64(roundTrip))
				s := openWith(t, Options{Addresses: []string{"pipe:1"}, dial: l.dial})
				// The dial, its first reply and the time take three round trips. Two callers give up
				// meanwhile, the second one perhaps.
				err := use(s)
				for n := 1; err != nil; n++ {
					if want := "timeout to 1.2s"; n > 1 && !strings.Contains(err.Error(), want) {
						t.Errorf("caller %d: %v; want %q", n, err, want)
					}
					if n == 3 {
						t.Fatalf("caller %d: %v", n, err)
					}
					err = use(s)
				}
				wantErr(t, use(s), nil)
				if n := l.dials.Load(); n > maxFlushes {
					t.Errorf("%d dials; one for each flush is enough", n)
				}
			})
		})
	}
}

// If only the last address of a name answers, a dial reaches it within one operation.
func TestNameWithSilentAddresses(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	_, port, _ := net.SplitHostPort(server.Addr)
	for _, silent := range [][]string{{"::1"}, {"127.0.0.2"}, {"::1", "127.0.0.2"}} {
		t.Run(strings.Join(silent, " "), func(t *testing.T) {
			t.Parallel()
			s := openWith(t, Options{Addresses: []string{net.JoinHostPort("redis.test", port)}, Timeout: 3 * time.Second})
			s.dialer.lookUp = namedBy(append(slices.Clone(silent), "127.0.0.1")...)
			s.dialer.control = func(ctx context.Context, _, address string, _ syscall.RawConn) error {
				if host, _, _ := net.SplitHostPort(address); slices.Contains(silent, host) {
					<-ctx.Done()
					return ctx.Err()
				}
				return nil
			}
			mustClaim(t, s, claimOf(t.Name(), "token"), idempotency.Proceed)
		})
	}
}

// Dials that hang are never more than flushes, and Close ends them.
func TestDialEndsWithTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dials, under atomic.Int64
		o := Options{Addresses: []string{"pipe:1"}}
		o.dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			dials.Add(1)
			under.Add(1)
			defer under.Add(-1)
			<-ctx.Done()
			return nil, ctx.Err()
		}
		s := must1(Open(o))
		start := time.Now()
		for time.Since(start) < dialTimeout-DefaultTimeout {
			if _, err := s.Claim(ctx, claimOf("a", "token")); err == nil {
				t.Fatal("a claim without a connection")
			}
		}
		storetest.Equal(t, dials.Load(), maxFlushes, "dials within the time of one")
		wantErr(t, s.Close(), nil)
		synctest.Wait()
		if n := under.Load(); n != 0 || time.Since(start) >= dialTimeout {
			t.Errorf("%d dials go on after the store was closed", n)
		}
	})
}

// Each of many addresses has the time for a round trip.
func TestDialManyAddresses(t *testing.T) {
	s := openWith(t, Options{Addresses: []string{"redis.test:6379"}})
	addresses := make([]string, 30)
	for n := range addresses {
		addresses[n] = fmt.Sprint("127.0.0.", n+1)
	}
	s.dialer.lookUp = namedBy(addresses...)
	var dials int
	before := time.Now()
	s.dialer.control = func(ctx context.Context, _, _ string, _ syscall.RawConn) error {
		dials++
		if deadline, _ := ctx.Deadline(); deadline.Sub(before) < minAddressTimeout {
			t.Errorf("dial %d ends after %v", dials, deadline.Sub(before))
		}
		return errors.New("it is not dialed")
	}
	if _, err := s.dialer.connect(ctx, "tcp", "redis.test:6379", func(string) {}); err == nil || dials != len(addresses) {
		t.Errorf("%d dials: %v", dials, err)
	}
}

// namedBy returns a function that finds the same addresses for each host.
func namedBy(addresses ...string) func(context.Context, string) ([]net.IPAddr, error) {
	var found []net.IPAddr
	for _, address := range addresses {
		found = append(found, net.IPAddr{IP: net.ParseIP(address)})
	}
	return func(context.Context, string) ([]net.IPAddr, error) { return found, nil }
}
