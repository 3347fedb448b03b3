package openstores

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Config is what opens a store, as a configuration has it.
type Config interface {
	// PoolKey is the same for settings that mean the same store. It shows no
	// secret.
	PoolKey() string
	// Tuning returns the settings that can change while the store is open; they are not
	// part of PoolKey. It can be compared, and is nil for a store that has none.
	Tuning() any
	// Tune applies them to a store that Open has returned.
	Tune(store idempotency.Store)
	// Describe says to people which store it is.
	Describe() string
	// OperationTimeout limits one operation of the store.
	OperationTimeout() time.Duration
	// Shared says that other processes may use the store too. They can take over what
	// this one is slow to renew.
	Shared() bool
	// Open opens the store.
	Open(logger *zap.Logger) (idempotency.Store, error)
}

// Handle gives one configuration and its requests access to a store.
type Handle struct {
	// Stores are those among which the store is, and Config opens it.
	Stores *Set
	Config Config
	// Key is the same for handles that mean the same store. Those that use it under
	// different settings have it open once for each: Times is how often it is open for
	// others of the configuration.
	Key    string
	Times  int
	Logger *zap.Logger
	// Settings are those of the store's engine.
	Settings engine.Settings
	// Namespace is that of the configuration's keys.
	Namespace string
	// MemoryLimit is that of a memory store, in bytes.
	MemoryLimit int64

	opened atomic.Pointer[Store]
}

// Describe says to people which store it is.
func (h *Handle) Describe() string { return h.Config.Describe() }

// Store returns the store that was opened last, nil before the first time.
func (h *Handle) Store() *Store { return h.opened.Load() }

// ErrNotOpen is the error for a request that comes before its configuration has opened
// the store: while the configuration starts, or after it has failed to.
var ErrNotOpen = errors.New("the configuration has not opened its store yet")

// Open opens the store for a configuration, which keeps it open until it leaves.
func (h *Handle) Open() (*Store, error) {
	store, err := h.Stores.enter(h)
	if err != nil {
		return nil, fmt.Errorf("opening the %s: %w", h.Describe(), err)
	}
	h.opened.Store(store)
	return store, nil
}

// Enter returns the store for a request, which keeps it open until it leaves. A request
// that outlives its configuration may open the store once more.
func (h *Handle) Enter() (*Store, error) {
	switch store := h.opened.Load(); {
	case store == nil:
		return nil, ErrNotOpen
	case store.enter():
		return store, nil
	default:
		return h.Open()
	}
}
