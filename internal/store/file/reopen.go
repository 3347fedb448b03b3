package file

import (
	"context"
	"time"

	"go.uber.org/zap"
)

// probeInterval is how often the store looks whether a disk that failed takes writes again.
const probeInterval = 500 * time.Millisecond

// reopenFailed puts another database in the place of one that has failed, until the context ends.
func (s *Store) reopenFailed(ctx context.Context) {
	logger := sampled(s.logger.With(zap.String("path", s.path)), time.Minute) // a disk may fail again and again
	for {
		db := s.current()
		select {
		case <-ctx.Done():
			return
		case <-db.disk.failed:
		}
		logger.Error("the store failed: it is unavailable until its disk takes writes again", plainError(db.disk.failure))
		s.mu.Lock()   // every operation that uses the database has entered it by now
		s.mu.Unlock() //nolint:staticcheck // empty on purpose
		_ = db.close()
		for available := false; !available; {
			if !pause(ctx, probeInterval) {
				return
			}
			if s.dir.probe() != nil {
				continue
			}
			next, err := openDatabase(s.fs, s.path, false, s.logger)
			if err != nil {
				logger.Error("the store does not open again yet", plainError(err))
				continue
			}
			if !s.replace(next) {
				_ = next.close()
				return
			}
			available = true
		}
		logger.Info("the store is available again")
	}
}

func (s *Store) current() *database {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.database
}

// replace puts another database in the place of the one that failed. It reports false if the store
// is closed.
func (s *Store) replace(next *database) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.database = next
	return true
}
