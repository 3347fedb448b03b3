package file

import (
	"context"
	"time"

	"go.uber.org/zap"
)

const (
	// probeInterval is how often the store looks whether a disk that failed takes writes again.
	probeInterval = 500 * time.Millisecond
	// maxBackoff bounds how long the store waits between two attempts to open a database. An
	// abandoned one keeps its memory and its files, so that a disk which takes writes and yet fails
	// again and again gets a new database less and less often.
	maxBackoff = time.Minute
)

// reopenFailed puts another database in the place of one that has failed, until the context ends.
func (s *Store) reopenFailed(ctx context.Context) {
	var opened time.Time
	backoff := probeInterval
	for {
		db := s.current()
		select {
		case <-ctx.Done():
			return
		case <-db.disk.failed:
		}
		s.logger.Error("the store failed: it is unavailable until its disk takes writes again",
			zap.String("path", s.path), plainError(db.disk.failure))
		db.disk.fence()
		if time.Since(opened) > maxBackoff {
			backoff = probeInterval
		}
		for available := false; !available; {
			if !pause(ctx, probeInterval) {
				return
			}
			if time.Since(opened) < backoff || s.dir.probe() != nil {
				continue
			}
			opened, backoff = time.Now(), min(2*backoff, maxBackoff)
			next, err := openDatabase(s.fs, s.path, false, s.logger)
			if err != nil {
				s.logger.Error("the store does not open again yet", zap.String("path", s.path), plainError(err))
				continue
			}
			if !s.replace(next) {
				_ = next.close()
				return
			}
			available = true
		}
		s.logger.Info("the store is available again", zap.String("path", s.path))
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
