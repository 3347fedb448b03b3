package file

import (
	"errors"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// A failed merge is repeated after mergePauseFactor times as long as it took, and at least after
// minMergePause.
const (
	minMergePause    = 10 * time.Second
	mergePauseFactor = 20
	mergeInterval    = 100 * time.Millisecond // of the scheduler's attempts, as of pebble's own
)

// mergeScheduler decides when pebble merges tables. It is like pebble's own, except that it pauses after
// a merge that failed. pebble repeats a merge at once: with a damaged block in a new table, that took
// half of a core, and wrote 200 MB a second.
type mergeScheduler struct {
	db            pebble.DBForCompaction
	stop, stopped chan struct{}

	mu      sync.Mutex // guards the rest; it is locked after those of db
	running int
	resume  time.Time // no merge starts before
}

func newMergeScheduler() *mergeScheduler {
	return &mergeScheduler{stop: make(chan struct{}), stopped: make(chan struct{})}
}

// pauseAfter pauses if a merge has failed.
func (s *mergeScheduler) pauseAfter(merge pebble.CompactionInfo) {
	if merge.Err == nil || errors.Is(merge.Err, pebble.ErrCancelledCompaction) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resume = time.Now().Add(max(minMergePause, mergePauseFactor*merge.TotalDuration))
}

// Register implements [pebble.CompactionScheduler].
func (s *mergeScheduler) Register(_ int, db pebble.DBForCompaction) {
	s.db = db
	go s.run()
}

// Unregister implements [pebble.CompactionScheduler].
func (s *mergeScheduler) Unregister() {
	close(s.stop)
	<-s.stopped
}

// run starts the merges that TrySchedule did not allow.
func (s *mergeScheduler) run() {
	defer close(s.stopped)
	ticker := time.NewTicker(mergeInterval)
	defer ticker.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-ticker.C:
		}
		for s.start() {
			if waiting, _ := s.db.GetWaitingCompaction(); !waiting || !s.db.Schedule(s) {
				s.Done()
				break
			}
		}
	}
}

// start counts a merge, if another one may run.
func (s *mergeScheduler) start() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running >= s.db.GetAllowedWithoutPermission() || time.Now().Before(s.resume) {
		return false
	}
	s.running++
	return true
}

// TrySchedule implements [pebble.CompactionScheduler].
func (s *mergeScheduler) TrySchedule() (bool, pebble.CompactionGrantHandle) { return s.start(), s }

// UpdateGetAllowedWithoutPermission implements [pebble.CompactionScheduler].
func (s *mergeScheduler) UpdateGetAllowedWithoutPermission() {}

// Started implements [pebble.CompactionGrantHandle].
func (s *mergeScheduler) Started() {}

// MeasureCPU implements [pebble.CompactionGrantHandle].
func (s *mergeScheduler) MeasureCPU(pebble.CompactionGoroutineKind) {}

// CumulativeStats implements [pebble.CompactionGrantHandle].
func (s *mergeScheduler) CumulativeStats(pebble.CompactionGrantHandleStats) {}

// Done implements [pebble.CompactionGrantHandle]. After it, pebble itself tries to schedule the next merge.
func (s *mergeScheduler) Done() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
}
