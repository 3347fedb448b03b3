package storepool

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Config opens a store, as a configuration has it.
type Config interface {
	// PoolKey is the same for settings that mean the same store. It has no secret in it.
	PoolKey() string
	// Tuning returns the settings that can change while the store is open, and are not
	// part of PoolKey. It can be compared, and is nil for a store that has none.
	Tuning() any
	// Tune applies these settings to a store that Open has returned.
	Tune(store idempotency.Store)
	// Describe describes the store to operators.
	Describe() string
	// OperationTimeout limits one operation of the store.
	OperationTimeout() time.Duration
	// Shared reports whether other processes may use the store too. They can take over
	// claims that this one is slow to renew.
	Shared() bool
	// Open opens the store.
	Open(logger *zap.Logger) (idempotency.Store, error)
}

// Handle gives one configuration and its requests access to a store.
type Handle struct {
	Pool   *Pool
	Config Config
	// Key is the Config's PoolKey.
	Key    string
	Logger *zap.Logger
	// Settings are those of the store's engine.
	Settings engine.Settings
	// Namespace is that of the configuration's keys.
	Namespace string
	// MemoryLimit is that of a memory store, in bytes.
	MemoryLimit int64

	opened atomic.Pointer[Store]
	// started is closed when the store is open for the first time.
	started               chan struct{}
	makeStarted, announce sync.Once
}

// ErrNotOpen is the error for a request whose configuration does not open the store in time.
var ErrNotOpen = errors.New("the configuration has not opened its store yet")

// Describe describes the store to operators.
func (h *Handle) Describe() string { return h.Config.Describe() }

// Store returns the store that was opened last, nil before the first time.
func (h *Handle) Store() *Store { return h.opened.Load() }

// Start opens the store for a configuration, until Stop.
func (h *Handle) Start() (*Store, error) {
	store, err := h.open()
	if err == nil {
		store.addConfiguration(h)
		h.announce.Do(func() { close(h.whenStarted()) })
	}
	return store, err
}

// whenStarted returns the channel that is closed when the store is open for the first time.
func (h *Handle) whenStarted() chan struct{} {
	h.makeStarted.Do(func() { h.started = make(chan struct{}) })
	return h.started
}

// Stop ends the configuration's use of the store.
func (h *Handle) Stop() {
	store := h.Store()
	store.removeConfiguration(h)
	store.Leave()
}

// Enter returns the store for a request, which has to leave it. One that comes while its
// configuration starts waits for the store, up to the time of an operation or until its context
// ends. A request that outlives its configuration may open the store once more.
func (h *Handle) Enter(ctx context.Context) (*Store, error) {
	store := h.opened.Load()
	if store == nil {
		timeout := time.NewTimer(h.Config.OperationTimeout())
		defer timeout.Stop()
		select {
		case <-h.whenStarted():
			store = h.opened.Load()
		case <-timeout.C:
			return nil, ErrNotOpen
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	if store.enter() {
		return store, nil
	}
	return h.open()
}

func (h *Handle) open() (*Store, error) {
	store, err := h.Pool.enter(h)
	if err != nil {
		return nil, fmt.Errorf("opening the %s: %w", h.Describe(), err)
	}
	h.opened.Store(store)
	return store, nil
}

// warnIfSlow logs a text unless the timer is stopped within the time of an operation: a start
// or a reload that waits for a store has to show what it waits for.
func (h *Handle) warnIfSlow(text string) *time.Timer {
	return time.AfterFunc(h.Config.OperationTimeout(), func() {
		h.Logger.Warn(text, zap.String("store", h.Describe()))
	})
}
