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
	// PoolKey returns a key that is equal for settings of the same store. It contains no secret.
	PoolKey() string
	// Tuning returns the settings that can change while the store is open, which are not
	// part of PoolKey. The result is comparable, and nil if there are none.
	Tuning() any
	// Tune applies these settings to a store that Open has returned.
	Tune(store idempotency.Store)
	// Describe describes the store to operators.
	Describe() string
	// OperationTimeout limits one operation of the store.
	OperationTimeout() time.Duration
	// Shared reports whether other processes may use the store. They can take over claims
	// that this process renews too late.
	Shared() bool
	// Open opens the store.
	Open(logger *zap.Logger) (idempotency.Store, error)
}

// Handle gives one configuration and its requests access to a store.
type Handle struct {
	Pool   *Pool
	Config Config
	// Key is Config.PoolKey().
	Key    string
	Logger *zap.Logger
	// Settings are those of the store's engine.
	Settings engine.Settings
	// Namespace is the namespace of the configuration's keys.
	Namespace string

	opened atomic.Pointer[Store]
	// started is closed when Start has opened the store for the first time.
	started               chan struct{}
	makeStarted, announce sync.Once
}

// ErrNotOpen is the error if a configuration does not open its store within the timeout of a request.
var ErrNotOpen = errors.New("the configuration has not opened its store yet")

// Describe describes the store to operators.
func (h *Handle) Describe() string { return h.Config.Describe() }

// Store returns the store that was opened last, nil if none was opened yet.
func (h *Handle) Store() *Store { return h.opened.Load() }

// Start opens the store for a configuration, which uses it until Stop.
func (h *Handle) Start() (*Store, error) {
	store, err := h.open()
	if err == nil {
		store.addConfiguration(h)
		h.announce.Do(func() { close(h.whenStarted()) })
	}
	return store, err
}

// whenStarted returns the channel that is closed when Start has opened the store for the first time.
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

// Enter returns the store for a request, which must call Leave. While the configuration starts, Enter
// waits for the store, for up to the timeout of an operation or until the context ends. For a request
// that outlives its configuration, Enter may open the store again.
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

// warnIfSlow logs a text unless the timer is stopped within the timeout of an operation: if a start or a
// reload waits for a store, the log must say so.
func (h *Handle) warnIfSlow(text string) *time.Timer {
	return time.AfterFunc(h.Config.OperationTimeout(), func() {
		h.Logger.Warn(text, zap.String("store", h.Describe()))
	})
}
