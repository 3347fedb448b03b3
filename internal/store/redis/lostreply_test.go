package redis

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// cutter closes connections after so many bytes of replies, so many times.
type cutter struct{ bytes, times atomic.Int64 }

func (c *cutter) arm(bytes, times int64) {
	c.bytes.Store(bytes)
	c.times.Store(times)
}

func (c *cutter) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	return &cuttableConn{conn, c, c.bytes.Load()}, err
}

type cuttableConn struct {
	net.Conn
	cutter *cutter
	again  int64 // after how many bytes later connections are cut
}

func (c *cuttableConn) Read(b []byte) (int, error) {
	if c.cutter.times.Load() == 0 {
		return c.Conn.Read(b)
	}
	left := c.cutter.bytes.Load()
	if left <= 0 {
		c.cutter.bytes.Store(c.again)
		c.cutter.times.Add(-1)
		_ = c.Close()
		return 0, io.EOF
	}
	n, err := c.Conn.Read(b[:min(int64(len(b)), left)])
	c.cutter.bytes.Add(-int64(n))
	return n, err
}

// claimWithLostReplies loses the reply to a claim after each of its bytes, once or twice. If the claim
// proceeds, no other claim does. If it was not written, another claim proceeds. If it is in doubt,
// another claim proceeds as soon as it is withdrawn.
func claimWithLostReplies(t *testing.T, o Options, flush func(), fresh func() string) {
	warmName, name := fresh(), fresh()
	other := closeAtEnd(t, openWith(t, o))
	cut := new(cutter)
	o.dial = cut.dial
	s := closeAtEnd(t, openWith(t, o))
	for _, hold := range []bool{false, true} {
		for _, times := range []int64{1, 2} {
			counts := map[string]int{}
			for bytes := int64(0); bytes == 0 || cut.times.Load() < times; bytes++ {
				cut.times.Store(0)
				flush()
				warm, c := claimOf(warmName, "warm"), claimOf(name, "lost")
				warm.Hold, c.Hold = hold, hold
				mustClaim(t, s, warm, idempotency.Proceed)
				cut.arm(bytes, times)
				claimed, err := s.Claim(ctx, c)
				next := mustClaimAny(t, other, withToken(c, "next"))
				what := fmt.Sprintf("hold %v, cut %d times after %d bytes", hold, times, bytes)
				switch {
				case err == nil && claimed.Verdict == idempotency.Proceed:
					counts["claimed"]++
					if next != idempotency.WaitForRun || mustFind(t, other, c.Key).Token != c.Token {
						t.Fatalf("%s: it runs, and the next claim has verdict %v", what, next)
					}
				case err == nil:
					t.Fatalf("%s: verdict %v", what, claimed.Verdict)
				case claimed.Record == nil:
					counts["not written"]++
					if next != idempotency.Proceed {
						t.Fatalf("%s: it was not written, and the next claim has verdict %v", what, next)
					}
				default:
					counts["in doubt"]++
					cut.times.Store(0)
					_ = s.Settle(ctx, c.Key, claimed.Record, idempotency.Settlement{
						State: idempotency.Released, Retention: c.Retention, AnswerRetention: c.Lease, Withdraws: true,
					})
					if again := mustClaimAny(t, other, withToken(c, "again")); next != idempotency.Proceed && again != idempotency.Proceed {
						t.Fatalf("%s: it was withdrawn, and the next claim has verdict %v", what, again)
					}
				}
			}
			t.Logf("hold %v, %d times: %v", hold, times, counts)
			if counts["claimed"] == 0 || times > 1 && counts["in doubt"] == 0 {
				t.Errorf("hold %v, %d times: %v; nothing is tested", hold, times, counts)
			}
		}
	}
}

func mustClaimAny(t *testing.T, s *Store, c idempotency.Claim) idempotency.Verdict {
	t.Helper()
	claimed, err := s.Claim(ctx, c)
	must(t, err, c.Token)
	return claimed.Verdict
}

func TestReplyLostAtEveryByte(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	claimWithLostReplies(t, Options{Addresses: []string{server.Addr}, Timeout: busyTimeout}, func() { server.Do("FLUSHALL") }, counting("lost"))
}

// testLostRedirects moves a slot: its master redirects each claim of a new key to the other master.
func testLostRedirects(t *testing.T, cluster *redistest.Cluster, o Options) {
	from, to := cluster.Masters[0], cluster.Masters[2]
	slot := slotOf(namesOn(0, 3, "slot")())
	next := counting("in the slot")
	cluster.StartMove(slot, from, to)
	claimWithLostReplies(t, o, func() { cluster.Do("FLUSHALL") }, func() string {
		for {
			if name := next(); slotOf(name) == slot {
				return name
			}
		}
	})
	cluster.FinishMove(slot, from, to)
	cluster.StartMove(slot, to, from)
	cluster.FinishMove(slot, to, from)
}
