package caddymodule

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/seal"
)

func init() {
	caddy.RegisterModule(new(App))
}

// App holds what all `dedup` handlers of a configuration share.
type App struct {
	// The first part of every key: installations that share a store and must
	// not share keys have different ones. It may hold placeholders such as
	// `{env.DEDUP_NAMESPACE}`, which are replaced when the configuration is loaded;
	// a secret one makes keys unguessable for who can read the store. Default:
	// `default`.
	Namespace string `json:"namespace,omitempty"`

	// Where claims and responses are kept: `file` (the default), `memory` or
	// `redis`.
	StoreRaw json.RawMessage `json:"store,omitempty" caddy:"namespace=dedup.stores inline_key=store"`

	// The keys with which stored responses, delivery IDs and fingerprints are
	// encrypted (AES-256-GCM): each 32 random bytes in base64, and here only the
	// placeholder of each, `{env.*}` or `{file.*}`. The first encrypts, all decrypt.
	// What a key is stored under does not depend on them. Default: none, nothing is
	// encrypted.
	Encrypt []string `json:"encrypt,omitempty"`

	// What one process holds at a time.
	Limits Limits `json:"limits,omitzero"`

	ctx    caddy.Context
	logger *zap.Logger
	store  *storeHandle
	sealer *seal.Sealer // nil without encryption
	buffer *buffer

	mu      sync.Mutex
	stores  []*storeHandle // those that the configuration's handlers use
	started []*storeHandle // those whose store the configuration has entered
	longest time.Duration  // the longest time limit of a run
}

// CaddyModule returns the Caddy module information.
func (*App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "dedup",
		New: func() caddy.Module { return new(App) },
	}
}

// Provision finds the store. It opens nothing.
func (a *App) Provision(ctx caddy.Context) error {
	a.ctx = ctx
	a.logger = ctx.Logger()
	if err := a.setNamespace(); err != nil {
		return err
	}
	a.Limits.setDefaults()
	if err := a.Limits.check(); err != nil {
		return err
	}
	a.buffer = &buffer{limit: a.Limits.Buffered}
	if a.StoreRaw == nil {
		a.StoreRaw = json.RawMessage(`{"store":"file"}`)
	}
	var err error
	if a.sealer, err = newSealer(a.Encrypt); err != nil {
		return err
	}
	a.store, err = a.loadStore(ctx, a)
	return err
}

// setNamespace replaces the placeholders of the namespace. One that is empty would
// make all installations share their keys, which nobody who wrote it wants.
func (a *App) setNamespace() error {
	orElse(&a.Namespace, "default")
	namespace := caddy.NewReplacer().ReplaceAll(a.Namespace, "")
	if namespace == "" {
		return fmt.Errorf("namespace: %s is empty once its placeholders are replaced", a.Namespace)
	}
	a.Namespace = namespace
	return nil
}

// loadStore loads the store module in the field StoreRaw of an owner.
func (a *App) loadStore(ctx caddy.Context, owner any) (*storeHandle, error) {
	module, err := ctx.LoadModule(owner, "StoreRaw")
	if err != nil {
		return nil, fmt.Errorf("loading the store: %w", err)
	}
	config, ok := module.(storeModule)
	if !ok {
		return nil, fmt.Errorf("the store module %T is not a store of caddy-dedup", module)
	}
	return &storeHandle{
		config:      config,
		key:         config.poolKey(),
		logger:      a.logger,
		settings:    engine.Settings{Limits: a.Limits.ofEngine(), Sealer: a.sealer},
		memoryLimit: a.Limits.MemoryStore,
	}, nil
}

// use notes the store and the time limit of a handler, and returns the handle by
// which all handlers of the configuration use that store.
func (a *App) use(handle *storeHandle, limit time.Duration) *storeHandle {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.longest = max(a.longest, limit)
	for _, other := range a.stores {
		if other.key == handle.key {
			return other
		}
	}
	a.stores = append(a.stores, handle)
	return handle
}

// Start opens the stores, so that what is wrong with one fails the configuration
// and not the requests. A server that does not answer is no such failure: it may
// be back before the first request.
func (a *App) Start() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, handle := range a.stores {
		store, err := handle.enter()
		if err != nil {
			return err
		}
		store.configure(handle)
		a.started = append(a.started, handle)
		a.logger.Info("claims and responses are kept",
			zap.String("store", handle.describe()), zap.Strings("encrypted_with", a.sealer.KeyIDs()))
		go a.probe(store.Engine, handle.describe())
	}
	return nil
}

// probe asks the store once, so that an operator reads at the start, and not with
// the first refused request, that it does not answer.
func (a *App) probe(engine *engine.Engine, store string) {
	if _, _, err := engine.Lookup(a.ctx, idempotency.Key{}); err != nil && a.ctx.Err() == nil {
		a.logger.Error("the store does not answer; requests with a key are refused until it does",
			zap.String("store", store), zap.Error(err))
	}
}

// Stop does nothing: requests are still being served, and apps stop in no order.
func (a *App) Stop() error { return nil }

// Cleanup leaves the stores, each of which is closed when its last work is done.
// When the process exits, it waits for the runs that no server waits for, such as
// those whose HTTP/2 client has gone.
func (a *App) Cleanup() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if caddy.Exiting() {
		a.drain()
	}
	for _, handle := range a.started {
		store := handle.opened.Load()
		store.forget(handle)
		if caddy.Exiting() {
			store.leaveAtExit()
		} else {
			store.leave()
		}
	}
	a.started = nil
	return nil
}

// drain waits for runs, for as long as the servers' grace period, or, without
// one, for the longest run that is allowed.
func (a *App) drain() {
	limit := a.longest
	if module, err := a.ctx.AppIfConfigured("http"); err == nil {
		if grace := module.(*caddyhttp.App).GracePeriod; grace > 0 {
			limit = duration(grace)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for _, handle := range a.started {
		if err := handle.opened.Load().Drain(ctx); err != nil {
			a.logger.Error("the process exits with work undone",
				zap.String("store", handle.describe()), zap.Error(err))
		}
	}
}

var (
	_ caddy.App          = (*App)(nil)
	_ caddy.Provisioner  = (*App)(nil)
	_ caddy.CleanerUpper = (*App)(nil)
)
