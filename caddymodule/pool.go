package caddymodule

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/memory"
)

// storeModule is what a module in the namespace dedup.stores has to be.
type storeModule interface {
	// poolKey is the same for settings that mean the same store. It shows no
	// secret.
	poolKey() string
	// describe says to people which store it is.
	describe() string
	// operationTimeout limits one operation of the store.
	operationTimeout() time.Duration
	// open opens the store.
	open(logger *zap.Logger, limits Limits) (idempotency.Store, error)
}

// engines holds the engine of every store that is in use, over configuration
// reloads: a run that an old configuration has begun and a duplicate under the
// new one meet in the same engine. Configurations, requests and unsettled runs
// each hold a reference; with the last one the store is closed.
var engines = caddy.NewUsagePool()

// pooledEngine is an engine that closes when nobody uses it any more.
type pooledEngine struct {
	*engine.Engine
	store  idempotency.Store
	handle *storeHandle
	logger *zap.Logger
}

// Destruct implements caddy.Destructor.
func (p *pooledEngine) Destruct() error {
	err := p.Close()
	if err != nil {
		p.logger.Error("closing the store", zap.Error(err))
	}
	return err
}

// storeHandle gives a configuration and its requests access to one store.
type storeHandle struct {
	config storeModule
	key    string
	logger *zap.Logger
	limits Limits
}

func newStoreHandle(config storeModule, logger *zap.Logger, limits Limits) *storeHandle {
	return &storeHandle{config: config, key: config.poolKey(), logger: logger, limits: limits}
}

func (s *storeHandle) describe() string { return s.config.describe() }

// acquire returns the store's engine, which it opens if need be, and the
// function that gives it back.
func (s *storeHandle) acquire() (*engine.Engine, func(), error) {
	value, _, err := engines.LoadOrNew(s.key, s.open)
	if err != nil {
		return nil, nil, fmt.Errorf("opening the %s: %w", s.describe(), err)
	}
	return value.(*pooledEngine).Engine, s.giveBack, nil
}

func (s *storeHandle) giveBack() {
	_, _ = engines.Delete(s.key) // the engine logs why it could not be closed
}

func (s *storeHandle) open() (caddy.Destructor, error) {
	store, err := s.config.open(s.logger, s.limits)
	if err != nil {
		return nil, err
	}
	engine := engine.New(store, engine.Options{
		Timeout:        s.config.operationTimeout(),
		Logger:         s.logger,
		NewToken:       rand.Text,
		NewExecutionID: newExecutionID,
		OnBusy:         func() { _, _, _ = engines.LoadOrNew(s.key, s.open) }, // it is open: this counts a use
		OnIdle:         s.giveBack,
	})
	return &pooledEngine{Engine: engine, store: store, handle: s, logger: s.logger}, nil
}

// applyLimits gives the configuration's limit to a store that an earlier
// configuration has opened.
func (s *storeHandle) applyLimits() {
	engines.Range(func(key, value any) bool {
		if pooled, ok := value.(*pooledEngine); ok && key == s.key {
			if store, ok := pooled.store.(*memory.Store); ok {
				store.SetLimit(s.limits.MemoryStore)
			}
		}
		return true
	})
}

// openStores returns the stores that are in use now, in a stable order.
func openStores() []*storeHandle {
	var open []*storeHandle
	engines.Range(func(_, value any) bool {
		if engine, ok := value.(*pooledEngine); ok { // else it is being opened
			open = append(open, engine.handle)
		}
		return true
	})
	slices.SortFunc(open, func(a, b *storeHandle) int { return strings.Compare(a.key, b.key) })
	return open
}

// drain waits for the engine's runs, if there is an engine.
func (s *storeHandle) drain(ctx context.Context) error {
	if _, inUse := engines.References(s.key); !inUse {
		return nil
	}
	engine, release, err := s.acquire()
	if err != nil {
		return err
	}
	defer release()
	return engine.Drain(ctx)
}

// newExecutionID returns a UUIDv7 (RFC 9562): unique, and in the order of time.
func newExecutionID() string { return uuid.Must(uuid.NewV7()).String() }
