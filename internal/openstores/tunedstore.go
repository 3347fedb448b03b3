package openstores

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// tunedStore is a store that is used under other settings from one operation to the
// next, such as with another timeout ([Config.Tuning]). It opens the store anew,
// and closes the one before when its last operation has ended. All that a process has
// still to write lies in the engine, which stays. A store that is in this process must
// not be opened twice, and has no such settings.
type tunedStore struct {
	// wake is that of the one subscriber, the engine; nil without it.
	wake atomic.Pointer[func(idempotency.Key)]

	// mu is locked for writing while current changes, for reading while an operation
	// begins.
	mu      sync.RWMutex
	current *tuned
	// open are those that are not closed yet, the current one among them, and
	// unreplicated is what those had counted that are.
	open         []*tuned
	unreplicated int64
	closing      sync.WaitGroup // of those that were current before
}

// tuned is the store under one tuning.
type tuned struct {
	idempotency.Store
	tuning      any
	operations  sync.WaitGroup
	unsubscribe func()
	// only is closed when the one before is closed. They are closed one after the
	// other, because each hands over to the next who waits.
	only chan struct{}
}

// successor is a store that wakes also those who began to wait through the store that
// was open before it.
type successor interface {
	Succeed(earlier idempotency.Store) (takeOver func())
}

// replicating is a store that counts what it could not replicate in time.
type replicating interface{ Unreplicated() int64 }

var _ idempotency.Store = (*tunedStore)(nil)

// openStoreOf opens the store of a configuration.
func openStoreOf(config Config, logger *zap.Logger) (idempotency.Store, error) {
	if config.Tuning() == nil {
		return config.Open(logger)
	}
	s := new(tunedStore)
	return s, s.tune(config, logger)
}

// tune uses the store under the tuning of a configuration from now on.
func (s *tunedStore) tune(config Config, logger *zap.Logger) error {
	s.mu.RLock()
	before := s.current
	s.mu.RUnlock()
	if before != nil && before.tuning == config.Tuning() {
		return nil
	}
	store, err := config.Open(logger)
	if err != nil {
		return err
	}
	next := &tuned{Store: store, tuning: config.Tuning(), only: make(chan struct{})}
	takeOver := func() {}
	if heir, ok := store.(successor); ok && before != nil {
		takeOver = heir.Succeed(before.Store)
	}
	next.unsubscribe = store.Subscribe(s.tell)
	s.mu.Lock()
	s.current = next
	s.open = append(s.open, next)
	s.mu.Unlock()
	if before == nil {
		close(next.only)
		return nil
	}
	s.closing.Go(func() {
		defer close(next.only)
		<-before.only
		before.operations.Wait()
		takeOver()
		if err := before.close(); err != nil {
			logger.Error("closing the store", zap.String("store", config.Describe()), zap.Error(err))
		}
		s.forget(before)
	})
	return nil
}

// forget takes a closed one out of those that are open.
func (s *tunedStore) forget(t *tuned) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = slices.DeleteFunc(s.open, func(other *tuned) bool { return other == t })
	s.unreplicated += t.unreplicated()
}

// Unreplicated returns how many kept responses were answered before they were on as
// many replicas as were wanted at the time. It never goes back.
func (s *tunedStore) Unreplicated() int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	n := s.unreplicated
	for _, t := range s.open {
		n += t.unreplicated()
	}
	return n
}

func (t *tuned) unreplicated() int64 {
	if counts, ok := t.Store.(replicating); ok {
		return counts.Unreplicated()
	}
	return 0
}

func (t *tuned) close() error {
	t.unsubscribe()
	return t.Store.Close()
}

// begin returns the store for one operation, which is to call operations.Done.
func (s *tunedStore) begin() *tuned {
	s.mu.RLock()
	defer s.mu.RUnlock()
	s.current.operations.Add(1)
	return s.current
}

// Claim implements [idempotency.Store].
func (s *tunedStore) Claim(ctx context.Context, c idempotency.Claim) (idempotency.Claimed, error) {
	t := s.begin()
	defer t.operations.Done()
	return t.Store.Claim(ctx, c)
}

// Renew implements [idempotency.Store].
func (s *tunedStore) Renew(ctx context.Context, c idempotency.Claim) error {
	t := s.begin()
	defer t.operations.Done()
	return t.Store.Renew(ctx, c)
}

// Settle implements [idempotency.Store].
func (s *tunedStore) Settle(ctx context.Context, key idempotency.Key, claimed *idempotency.Record, settlement idempotency.Settlement) error {
	t := s.begin()
	defer t.operations.Done()
	return t.Store.Settle(ctx, key, claimed, settlement)
}

// Lookup implements [idempotency.Store].
func (s *tunedStore) Lookup(ctx context.Context, key idempotency.Key) (*idempotency.Record, time.Time, error) {
	t := s.begin()
	defer t.operations.Done()
	return t.Store.Lookup(ctx, key)
}

// Ready implements [idempotency.Store].
func (s *tunedStore) Ready(ctx context.Context) error {
	t := s.begin()
	defer t.operations.Done()
	return t.Store.Ready(ctx)
}

// Response implements [idempotency.Store].
func (s *tunedStore) Response(ctx context.Context, key idempotency.Key, token string) (*idempotency.Response, error) {
	t := s.begin()
	defer t.operations.Done()
	return t.Store.Response(ctx, key, token)
}

// Free implements [idempotency.Store].
func (s *tunedStore) Free(ctx context.Context, key idempotency.Key, token string, seen idempotency.Seen) (*idempotency.Record, error) {
	t := s.begin()
	defer t.operations.Done()
	return t.Store.Free(ctx, key, token, seen)
}

// Forget implements [idempotency.Store].
func (s *tunedStore) Forget(ctx context.Context, key idempotency.Key, seen idempotency.Seen) error {
	t := s.begin()
	defer t.operations.Done()
	return t.Store.Forget(ctx, key, seen)
}

// List implements [idempotency.Store].
func (s *tunedStore) List(ctx context.Context, cursor string, limit int) ([]idempotency.Listed, string, error) {
	t := s.begin()
	defer t.operations.Done()
	return t.Store.List(ctx, cursor, limit)
}

// Find implements [idempotency.Store].
func (s *tunedStore) Find(ctx context.Context, of []idempotency.Beginning, cursor string, limit int) ([]idempotency.Listed, string, error) {
	t := s.begin()
	defer t.operations.Done()
	return t.Store.Find(ctx, of, cursor, limit)
}

// Subscribe implements [idempotency.Store], for one subscriber.
func (s *tunedStore) Subscribe(wake func(idempotency.Key)) (stop func()) {
	s.wake.Store(&wake)
	return func() { s.wake.Store(nil) }
}

// tell passes a hint of the store on, whichever is current.
func (s *tunedStore) tell(key idempotency.Key) {
	if wake := s.wake.Load(); wake != nil {
		(*wake)(key)
	}
}

// Close implements [idempotency.Store].
func (s *tunedStore) Close() error {
	s.closing.Wait()
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.current.close()
}
