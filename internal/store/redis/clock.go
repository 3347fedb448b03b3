package redis

import (
	"sync/atomic"
	"time"
)

// serverClock estimates the server's time from its latest reply.
type serverClock struct {
	// started is the origin of the local times; only its monotonic part counts.
	started time.Time
	// ahead is the server's time in ms at the origin. It means nothing before the
	// first reply.
	ahead atomic.Int64
}

// learn takes the server's time in ms from a reply that has just come. The
// server read its clock somewhat earlier, so the estimate is late by up to the
// round trip, and a deadline by it is never too long.
func (c *serverClock) learn(serverNow int64) {
	c.ahead.Store(serverNow - time.Since(c.started).Milliseconds())
}

// at returns the server's time, in ms, at a local time.
func (c *serverClock) at(local time.Time) int64 {
	return c.ahead.Load() + local.Sub(c.started).Milliseconds()
}

// fromMillis returns a time of the server's, without a time where it has none.
func fromMillis(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// processTime is the clock of this process as records have it.
func processTime() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// toMillis returns a duration for the server, which takes whole milliseconds
// and forgets at once what lives for none.
func toMillis(d time.Duration) int64 { return max(d.Milliseconds(), 1) }
