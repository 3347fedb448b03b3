package file

import (
	"context"
	"time"

	"go.uber.org/zap"
)

// probeInterval is the interval at which the store probes a disk that failed.
const probeInterval = 500 * time.Millisecond

// reopenFailed replaces a database that has failed by another one, until the context ends.
func (s *Store) reopenFailed(ctx context.Context) {
	logger := sampled(s.logger.With(zap.String("path", s.path)), time.Minute) // a disk may fail again and again
	for {
		db := s.current()
		select {
		case <-ctx.Done():
			return
		case <-db.disk.failed:
		}
		logger.Error("the store failed: it is unavailable until its disk accepts writes again", plainError(db.disk.failure))
		s.mu.Lock()   // wait for enter: after this, no operation enters the failed database
		s.mu.Unlock() //nolint:staticcheck // empty on purpose
		_ = db.close()
		for available := false; !available; {
			if !pause(ctx, probeInterval) {
				return
			}
			if s.dir.probe() != nil {
				continue
			}
			next, err := openDatabase(s.fs, s.path, false, &s.damages, s.logger)
			if err != nil {
				logger.Error("the store cannot be opened again yet", plainError(err))
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

// replace replaces the database that failed. It reports false if the store is closed.
func (s *Store) replace(next *database) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.database = next
	return true
}
