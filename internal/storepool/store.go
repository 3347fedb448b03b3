package storepool

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Store is an open store with its engine. The pool closes it when no configuration and no request uses
// it, and no work is left: no run, no response to store, no claim to withdraw.
type Store struct {
	*engine.Engine
	pool  *Pool
	key   string
	name  string
	store idempotency.Store
	log   *zap.Logger
	// logTarget is the logger of the configuration whose settings apply.
	logTarget atomic.Pointer[zap.Logger]

	// tried is closed when the store has been opened or err is set; closed, when the store has been
	// closed.
	tried, closed chan struct{}
	err           error

	mu sync.Mutex
	// users counts the configurations and requests that have entered and not left.
	users int
	// configurations are those that use the store, the oldest first. The settings of the oldest
	// apply, so a new configuration that fails to start changes nothing.
	configurations []*Handle
	// namespaces are those of all configurations since the store was opened, because it still has
	// keys of earlier ones.
	namespaces []string
	// unusedSince is since when no configuration uses the store.
	unusedSince time.Time
	// finishing reports whether finish runs, and closing whether it closes the store.
	finishing, closing bool
}

// Key identifies the store in its process. It contains no secret.
func (s *Store) Key() string { return s.key }

// Name describes the store to operators.
func (s *Store) Name() string { return s.name }

// Closed returns a channel that is closed when the store is closed.
func (s *Store) Closed() <-chan struct{} { return s.closed }

// enter adds a user of the store. It reports false if the store is closed or being closed.
func (s *Store) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.users++
	return true
}

// Leave ends a use of the store.
func (s *Store) Leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users--; s.users == 0 && !s.finishing {
		s.finishing = true
		go s.finish()
	}
}

// finish closes the store when no work is left, unless a user has entered it meanwhile.
func (s *Store) finish() {
	for {
		s.mu.Lock()
		s.finishing = s.users == 0 // otherwise the last user to leave starts finish again
		s.closing = s.finishing && s.Idle()
		finishing, closing := s.finishing, s.closing
		s.mu.Unlock()
		if !finishing {
			return
		}
		if closing {
			break
		}
		ctx, cancel := context.WithTimeout(context.Background(), unusedInterval)
		_ = s.Finish(ctx) // fails only when its context ends
		cancel()
		s.giveUpUnused()
	}
	if err := s.Close(); err != nil {
		s.log.Error("closing the store", zap.String("store", s.name), zap.Error(err))
	}
	s.pool.remove(s)
	close(s.closed)
}

const (
	// unusedTimeout is how long a store that no configuration uses may fail before its unstored runs are
	// given up. finish checks that every unusedInterval.
	unusedTimeout  = 5 * time.Minute
	unusedInterval = 10 * time.Second
)

var errUnused = fmt.Errorf("no configuration uses the store, which has failed for %v", unusedTimeout)

// giveUpUnused gives up the unstored runs if no configuration uses the store and it has failed for
// unusedTimeout. If its server no longer exists, they would hold memory until the retention ends.
func (s *Store) giveUpUnused() {
	since, failing := s.FailingSince()
	s.mu.Lock()
	unused := len(s.configurations) == 0
	if since.Before(s.unusedSince) {
		since = s.unusedSince
	}
	s.mu.Unlock()
	if !failing || !unused || time.Since(since) < unusedTimeout {
		return
	}
	if n := s.GiveUp(errUnused); n > 0 {
		s.log.Error("a store is given up: no configuration uses it, and it fails; the runs that it has not stored may be executed again",
			zap.String("store", s.name), zap.Int("runs", n), zap.Duration("failed_for", unusedTimeout))
	}
}

// UsedBy returns how many configurations and requests use the store.
func (s *Store) UsedBy() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.users
}

// InUse reports whether a configuration uses the store. Otherwise it gets no new requests, and is closed
// when no work is left.
func (s *Store) InUse() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.configurations) > 0
}

// Namespaces returns the namespaces of the configurations that use or have used the store: the prefixes
// of a delivery ID's keys depend on them.
func (s *Store) Namespaces() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.namespaces)
}

func (s *Store) addConfiguration(h *Handle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.configurations, s.unusedSince = append(s.configurations, h), time.Time{}
	if !slices.Contains(s.namespaces, h.Namespace) {
		s.namespaces = append(s.namespaces, h.Namespace)
	}
	s.applyLocked()
}

func (s *Store) removeConfiguration(h *Handle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.configurations = slices.DeleteFunc(s.configurations, func(other *Handle) bool { return other == h })
	if len(s.configurations) == 0 {
		s.unusedSince = time.Now()
	}
	s.applyLocked()
}

// applyLocked applies the settings of the oldest configuration to engine, store and log.
func (s *Store) applyLocked() {
	if len(s.configurations) == 0 {
		return
	}
	h := s.configurations[0]
	s.Configure(h.Settings)
	s.logTarget.Store(h.Logger)
	h.Config.Tune(s.store)
}

// damages returns how often the store has met damage.
func (s *Store) damages() int64 {
	if counts, ok := s.store.(interface{ Damages() int64 }); ok {
		return counts.Damages()
	}
	return 0
}

// unreplicated returns how many kept responses the store answered before wait_replicas replicas had
// them.
func (s *Store) unreplicated() int64 {
	if counts, ok := s.store.(interface{ Unreplicated() int64 }); ok {
		return counts.Unreplicated()
	}
	return 0
}
