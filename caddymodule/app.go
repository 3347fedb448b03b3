package caddymodule

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/seal"
	"github.com/caddy-dedup/caddy-dedup/internal/storepool"
)

func init() {
	caddy.RegisterModule(new(App))
	// By then all servers have stopped. A run may also be one of a configuration that was
	// replaced, by one without dedup.
	caddy.OnExit(func(context.Context) { stores.Exit() })
}

// App holds what all `dedup` handlers of a configuration share.
type App struct {
	// The first part of every key: installations that share a store and must
	// not share keys have different ones. It may hold placeholders such as
	// `{env.DEDUP_NAMESPACE}`, which are replaced when the configuration is loaded;
	// a secret one makes keys unguessable for readers of the store. Default:
	// `default`.
	Namespace string `json:"namespace,omitempty"`

	// Where claims and responses are kept: `file` (the default), `memory` or
	// `redis`.
	StoreRaw json.RawMessage `json:"store,omitempty" caddy:"namespace=dedup.stores inline_key=store"`

	// How many bytes of kept responses this process holds, so that it answers their
	// duplicates without asking the store, and also while the store is unavailable. 0 holds
	// none: it is `off` in a Caddyfile. Default: 16 MiB.
	LocalCopies *int64 `json:"local_copies,omitempty"`

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
	store  *storepool.Handle
	sealer *seal.Sealer // nil without encryption

	mu      sync.Mutex
	stores  []*storepool.Handle // those that the configuration's handlers use
	started []*storepool.Handle // those whose store the configuration has entered
	maxRun  time.Duration       // the longest `timeout` of a handler

	// stopTime is when the servers began to stop, nil until they do.
	stopTime atomic.Pointer[time.Time]
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
	if err := processMetrics.register(ctx.GetMetricsRegistry()); err != nil {
		return err
	}
	a.Limits.setDefaults()
	err := globalBlock.check(a)
	if err != nil {
		return err
	}
	if err := a.setNamespace(); err != nil {
		return err
	}
	if a.StoreRaw == nil {
		a.StoreRaw = json.RawMessage(`{"store":"file"}`)
	}
	if a.sealer, err = newSealer(a.Encrypt); err != nil {
		return err
	}
	a.store, err = a.loadStore(ctx, a, a.StoreRaw)
	return err
}

// setNamespace replaces the placeholders of the namespace. Where one of them is empty
// or unknown the rest would be another namespace, which others may have too.
func (a *App) setNamespace() error {
	setDefault(&a.Namespace, "default")
	namespace, err := replacePlaceholders(a.Namespace)
	if err != nil {
		return fmt.Errorf("namespace: %s: %w", a.Namespace, err)
	}
	a.Namespace = namespace
	return nil
}

// loadStore loads the store module that is configured in the field StoreRaw of an owner.
func (a *App) loadStore(ctx caddy.Context, owner any, raw json.RawMessage) (*storepool.Handle, error) {
	if err := checkStoreKind(raw); err != nil {
		return nil, err
	}
	module, err := ctx.LoadModule(owner, "StoreRaw")
	if err != nil {
		return nil, fmt.Errorf("loading the store: %w", err)
	}
	config, ok := module.(storepool.Config)
	if !ok {
		return nil, fmt.Errorf("the store module %T is not a store of caddy-dedup", module)
	}
	return &storepool.Handle{
		Pool:        stores,
		Config:      config,
		Key:         config.PoolKey(),
		Logger:      a.logger,
		Namespace:   a.Namespace,
		Settings:    engine.Settings{Limits: a.Limits.engineLimits(), Timeout: config.OperationTimeout(), Sealer: a.sealer},
		MemoryLimit: a.Limits.MemoryStore,
	}, nil
}

// use notes the store and the time limit of a handler, and returns the handle by
// which all handlers of the configuration use that store.
func (a *App) use(handle *storepool.Handle, limit time.Duration) (*storepool.Handle, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.maxRun = max(a.maxRun, limit)
	for _, other := range a.stores {
		switch {
		case other.Key != handle.Key:
		case other.Config.Tuning() == handle.Config.Tuning():
			return other, nil
		default:
			return nil, fmt.Errorf("store: another handler uses the %s with another timeout or wait_replicas; use the same ones, or another prefix", handle.Describe())
		}
	}
	a.stores = append(a.stores, handle)
	return handle, nil
}

// Start opens the stores, so that what is wrong with one fails the configuration
// and not the requests. A server that does not answer is no such failure: it may
// be back before the first request.
func (a *App) Start() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	activeConfigs.add(a)
	for _, handle := range a.stores {
		store, err := handle.Start()
		if err != nil {
			return err
		}
		a.started = append(a.started, handle)
		a.logger.Info("claims and responses are kept",
			zap.String("store", handle.Describe()), zap.Strings("encrypted_with", a.sealer.KeyIDs()))
		go a.probe(store.Engine, handle.Describe())
	}
	return nil
}

// probe asks the store once, so that an operator reads at the start, and not with
// the first refused request, that it does not answer.
func (a *App) probe(engine *engine.Engine, store string) {
	if err := engine.Ready(a.ctx); err != nil && a.ctx.Err() == nil {
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
	activeConfigs.remove(a)
	for _, handle := range a.started {
		handle.Stop()
	}
	a.started = nil
	return nil
}

// noteServerStop notes when the first server began to stop.
func (a *App) noteServerStop() {
	now := time.Now()
	a.stopTime.CompareAndSwap(nil, &now)
}

// drain waits for runs, for as long as drainLimit says.
func (a *App) drain() {
	ctx, cancel := context.WithTimeout(context.Background(), a.drainLimit())
	defer cancel()
	stores.Drain(ctx)
}

// drainLimit returns what the servers have left of their grace period, which is one for
// the whole stop: what kills a process that takes longer was told of one. Without a grace
// period it is the time of the longest run that is allowed.
func (a *App) drainLimit() time.Duration {
	module, err := a.ctx.AppIfConfigured("http")
	if err != nil {
		return a.maxRun
	}
	grace := duration(module.(*caddyhttp.App).GracePeriod)
	if grace <= 0 {
		return a.maxRun
	}
	if started := a.stopTime.Load(); started != nil {
		grace -= time.Since(*started)
	}
	return max(grace, 0)
}

var (
	_ caddy.App          = (*App)(nil)
	_ caddy.Provisioner  = (*App)(nil)
	_ caddy.CleanerUpper = (*App)(nil)
)

// keyPlaceholder is where an encryption key may come from. A key in the
// configuration itself would lie in its backups, in the admin API's answers and in
// Caddy's autosave.
var keyPlaceholder = regexp.MustCompile(`^\{(env|file)\.[^{}]+\}$`)

// checkEncryptionKeys refuses what is not a placeholder. No error shows it, for it may be a key.
func checkEncryptionKeys(texts []string) error {
	for i, text := range texts {
		if !keyPlaceholder.MatchString(text) {
			return fmt.Errorf("argument %d is not one placeholder {env.NAME} or {file./path}; keys must not be in the configuration", i+1)
		}
		if first := slices.Index(texts, text); first < i {
			return fmt.Errorf("arguments %d and %d are the same key", first+1, i+1)
		}
	}
	return nil
}

// newSealer reads the keys. Errors name their placeholders, and never a value.
func newSealer(texts []string) (*seal.Sealer, error) {
	var keys [][]byte
	for _, text := range texts {
		key, err := encryptionKey(caddy.NewReplacer().ReplaceAll(text, ""))
		if err != nil {
			return nil, fmt.Errorf("encrypt: %s %w; a key is %d random bytes in base64, such as `openssl rand -base64 %[3]d` prints",
				text, err, seal.KeySize)
		}
		keys = append(keys, key)
	}
	sealer, err := seal.New(keys...)
	if err != nil {
		return nil, fmt.Errorf("encrypt: %w", err)
	}
	return sealer, nil
}

// encryptionKey decodes a key. Both alphabets of base64 are accepted (RFC 4648,
// sections 4 and 5), with padding or without, and white space around it.
func encryptionKey(text string) ([]byte, error) {
	text = strings.TrimRight(strings.TrimSpace(text), "=")
	if text == "" {
		return nil, errors.New("is empty")
	}
	text = strings.NewReplacer("-", "+", "_", "/").Replace(text)
	key, err := base64.RawStdEncoding.DecodeString(text)
	switch {
	case err != nil:
		return nil, fmt.Errorf("has %d characters that are not base64", len(text))
	case len(key) != seal.KeySize:
		return nil, fmt.Errorf("has %d bytes in base64", len(key))
	}
	return key, nil
}
