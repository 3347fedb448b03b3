package redis

import (
	"sync/atomic"
	"time"
)

// serverClock estimates the server's time from its replies.
type serverClock struct {
	// started is when local times count from, by the monotonic clock.
	started time.Time
	// ahead is the server's time, in ms, at that moment; 0 before the first reply.
	ahead atomic.Int64
}

func (c *serverClock) known() bool { return c.ahead.Load() != 0 }

// learn takes the server's time, in ms, from a reply that has just come to what was sent at a
// local time. The server read its clock between the two. If the estimate is between them as
// well, it stays; otherwise it moves to the nearer end. So it is behind the server's clock by
// no more than the quickest reply took: a deadline or a lease by it is never too late, and
// hardly too early.
func (c *serverClock) learn(serverNow int64, sent time.Time) {
	earliest := serverNow - time.Since(c.started).Milliseconds()
	latest := serverNow + 1 - sent.Sub(c.started).Milliseconds()
	estimate := c.ahead.Load()
	if moved := min(max(estimate, earliest), latest); moved != estimate {
		c.ahead.Store(moved)
	}
}

// at returns the server's time, in ms, at a local time.
func (c *serverClock) at(local time.Time) int64 {
	return c.ahead.Load() + local.Sub(c.started).Milliseconds()
}

// fromMillis returns a time of the server's clock; 0 is the zero time.
func fromMillis(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// processTime is the time of this process as records have it.
func processTime() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// toMillis returns a duration in whole milliseconds, and at least one: the server would remove
// at once what lives for 0 ms.
func toMillis(d time.Duration) int64 { return max(d.Milliseconds(), 1) }
