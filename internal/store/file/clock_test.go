package file

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// steppedClock is a wall clock that can be set.
type steppedClock struct{ ahead atomic.Int64 }

func (c *steppedClock) now() time.Time          { return wallClock().Add(time.Duration(c.ahead.Load())) }
func (c *steppedClock) set(ahead time.Duration) { c.ahead.Store(int64(ahead)) }

func (c *steppedClock) open(t *testing.T, fs vfs.FS) *Store {
	t.Helper()
	s, err := openIn(c.now, fs, storePath, zaptest.NewLogger(t))
	must(t, err)
	t.Cleanup(func() { wantErr(t, s.Close(), nil) })
	return s
}

// Whatever the wall clock does, the disk counts as full only until there is space.
func TestClockStepsWhileTheDiskIsFull(t *testing.T) {
	for _, step := range []time.Duration{-2 * time.Hour, 2 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			clock := new(steppedClock)
			disk := volumeOf(1 << 30)
			s := clock.open(t, disk)
			disk.take(maxReservedSpace / 2)
			time.Sleep(bodySweepInterval)
			synctest.Wait()
			wantErr(t, storetest.ErrOf(ask(t.Context(), s, "low")), errNoSpace)
			clock.set(step)
			time.Sleep(2 * fullTimeout)
			wantErr(t, storetest.ErrOf(ask(t.Context(), s, "low")), errNoSpace)
			disk.take(1 << 30)
			time.Sleep(bodySweepInterval + fullTimeout)
			keep(t, s, 0, 10)
		})
	}
}

// If the wall clock is ahead for a short time, at a start or later, every kept response is there when it
// has been set back, whatever the size of its body. Later they expire as they should.
func TestWallClockBrieflyAhead(t *testing.T) {
	for _, atStart := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			clock, fs := new(steppedClock), newMemory()
			s := clock.open(t, fs)
			keep(t, s, 0, 10)
			for i := range 10 {
				must(t, keepAs(t.Context(), s, fmt.Sprint("large ", i), completeAs(largeText("large"))))
			}
			time.Sleep(3 * sweepDelay)
			running := claimed(t, s, claimOf("running"))
			clock.set(2 * time.Hour)
			if atStart {
				closeStore(t, s)
				s = clock.open(t, fs)
			}
			time.Sleep(sweepDelay - time.Second)
			synctest.Wait()
			clock.set(0)
			if !atStart {
				must(t, s.Settle(t.Context(), key("running"), running, completeAs("running")))
			}
			time.Sleep(lateness)
			replaysAll(t, s, 0, 10)
			for i := range 10 {
				replays(t, s, fmt.Sprint("large ", i), largeText("large"))
			}
			if !atStart {
				replays(t, s, "running", "running")
			}
			time.Sleep(time.Hour + bucketInterval + lateness)
			synctest.Wait()
			counts := names(t, s)
			storetest.Equal(t, counts[valueTable], 0, "values")
			found, err := fs.List(s.bodies.root)
			must(t, err)
			storetest.Equal(t, len(found), 0, "buckets")
		})
	}
}

// NewTicker makes the clock a [zapcore.Clock].
func (c *steppedClock) NewTicker(d time.Duration) *time.Ticker { return time.NewTicker(d) }

// Now makes the clock a [zapcore.Clock].
func (c *steppedClock) Now() time.Time { return c.now() }

// A message that repeats is logged once in an interval, whatever the wall clock does.
func TestSampledLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := new(steppedClock)
		core, lines := observer.New(zap.DebugLevel)
		logger := sampled(zap.New(core, zap.WithClock(clock)), time.Second)
		for range 3 {
			logger.With(zap.Bool("first", true)).Warn("a")
			logger.Warn("a")
			logger.Warn("b")
			clock.set(time.Duration(clock.ahead.Load()) - time.Hour)
			time.Sleep(time.Second)
		}
		storetest.Equal(t, lines.Len(), 6, "lines")
	})
}

// If the wall clock is set back after a start, what a dead process has left in flight has lapsed all
// the same.
func TestClockSetBackAfterAStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock, fs := new(steppedClock), newMemory()
		s := clock.open(t, fs)
		claimed(t, s, holding("a"))
		closeStore(t, s)
		s = clock.open(t, fs)
		clock.set(-2 * time.Hour)
		c := holding("a")
		c.Token = "second"
		if got, err := s.Claim(t.Context(), c); err != nil || got.Verdict != idempotency.RefuseHeld {
			t.Errorf("verdict %v, %v; want RefuseHeld", got.Verdict, err)
		}
		page, _, err := s.List(t.Context(), "", 10)
		if err != nil || len(page) != 1 || !page[0].Record.Lapsed(page[0].Now) {
			t.Errorf("%+v, %v; want a lapsed record", page, err)
		}
	})
}
