package redis

import (
	"sync/atomic"
	"time"
)

// serverClock estimates the server's time from its replies.
type serverClock struct {
	// started is the origin of local times, by the monotonic clock.
	started time.Time
	// ahead is the server's time at started, in ms; 0 before the first reply.
	ahead atomic.Int64
}

func (c *serverClock) known() bool { return c.ahead.Load() != 0 }

// learn updates the estimate by the server's time, in ms, in a reply that has just arrived. The server
// read its clock after the command was sent and before now. If the estimate fits into that interval,
// it stays; otherwise it moves to the nearer end. So the estimate is a lower bound, and behind the
// server's clock by at most the time of the fastest reply: a deadline or lease by it never ends too
// late, and hardly too early.
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

// fromMillis converts a time of the server's clock in ms; 0 becomes the zero time.
func fromMillis(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// processTime is the time of this process as records have it.
func processTime() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// toMillis returns a duration in whole milliseconds, and at least 1: the server removes a key with an
// expiry of 0 ms at once.
func toMillis(d time.Duration) int64 { return max(d.Milliseconds(), 1) }
