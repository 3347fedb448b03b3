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
	// All servers have stopped by then. This also settles runs of configurations that were
	// replaced by one without dedup.
	caddy.OnExit(func(context.Context) { stores.Exit() })
}

// App holds what all `dedup` handlers of a configuration share.
type App struct {
	// The first part of every key. Installations that share a store but not their keys
	// need different namespaces. Placeholders such as `{env.DEDUP_NAMESPACE}` are replaced
	// when the configuration is loaded. A secret namespace keeps readers of the store from
	// guessing keys. Default: `default`.
	Namespace string `json:"namespace,omitempty"`

	// Where claims and responses are kept: `file` (the default), `memory` or
	// `redis`.
	StoreRaw json.RawMessage `json:"store,omitempty" caddy:"namespace=dedup.stores inline_key=store"`

	// The maximum size of the kept responses in memory, in bytes. The process answers their
	// duplicates without asking the store, even while the store is unavailable. 0 disables
	// the copies (`off` in a Caddyfile). Default: 16 MiB.
	LocalCopies *int64 `json:"local_copies,omitempty"`

	// The keys that encrypt stored responses, delivery IDs and fingerprints (AES-256-GCM).
	// Each is a placeholder, `{env.*}` or `{file.*}`, for 32 random bytes in base64. The
	// first key encrypts; all of them decrypt. The names of stored keys do not depend on
	// them. Default: none, nothing is encrypted.
	Encrypt []string `json:"encrypt,omitempty"`

	// The limits of one process.
	Limits Limits `json:"limits,omitzero"`

	ctx    caddy.Context
	logger *zap.Logger
	store  *storepool.Handle
	sealer *seal.Sealer // nil without encryption

	// shownNamespace is the namespace if it is written, without a placeholder: one of those may be
	// secret.
	shownNamespace string

	mu      sync.Mutex
	stores  []*storepool.Handle // used by the handlers of this configuration
	started []*storepool.Handle // opened by Start

	// Set before the configuration is active.
	maxRun         time.Duration // the longest `timeout` of a handler
	limitsAttempts bool          // a handler has `max_attempts`

	// stopTime is when the first server started to stop; nil before.
	stopTime atomic.Pointer[time.Time]
}

// CaddyModule returns the Caddy module information.
func (*App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "dedup",
		New: func() caddy.Module { return new(App) },
	}
}

// Provision checks the settings and loads the store module. It opens nothing.
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

// setNamespace replaces the placeholders of the namespace. An empty or unknown one is an error:
// without it the namespace could be that of another installation.
func (a *App) setNamespace() error {
	written := a.Namespace != ""
	setDefault(&a.Namespace, "default")
	namespace, err := replacePlaceholders(a.Namespace)
	if err != nil {
		return fmt.Errorf("namespace: %s: %w", a.Namespace, err)
	}
	if namespace == a.Namespace && written {
		a.shownNamespace = namespace
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
	if memory, ok := module.(*MemoryStore); ok {
		memory.limit = a.Limits.MemoryStore
	}
	return &storepool.Handle{
		Pool:      stores,
		Config:    config,
		Key:       config.PoolKey(),
		Logger:    a.logger,
		Namespace: a.Namespace,
		Settings:  engine.Settings{Limits: a.Limits.engineLimits(), Timeout: config.OperationTimeout(), Sealer: a.sealer},
	}, nil
}

// use registers a handler and its store. It returns the handle that all handlers of the configuration
// share for that store.
func (a *App) use(handle *storepool.Handle, by *Settings) (*storepool.Handle, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.maxRun = max(a.maxRun, duration(by.Timeout))
	a.limitsAttempts = a.limitsAttempts || by.MaxAttempts > 0
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

// Start opens the stores: a broken store fails the configuration instead of every request. A
// server that does not answer is only logged: it may be back before the first request.
func (a *App) Start() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	activeConfigs.add(a)
	a.warnUnreachable()
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

// probe logs at the start, before the first request is refused, that the store does not answer.
func (a *App) probe(engine *engine.Engine, store string) {
	if err := engine.Ready(a.ctx); err != nil && a.ctx.Err() == nil {
		a.logger.Error("the store does not answer; requests with a key are refused until it does",
			zap.String("store", store), zap.Error(err))
	}
}

// Stop does nothing: requests are still being served, and apps stop in no order.
func (a *App) Stop() error { return nil }

// Cleanup stops using the stores; each closes when its last run has settled. When the process
// exits, Cleanup first waits for runs that no server waits for, such as those whose HTTP/2 client
// has disconnected.
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

// noteServerStop records when the first server started to stop. If the process exits, responses that are
// not stored in time are stored without their bodies.
func (a *App) noteServerStop() {
	now := time.Now()
	if a.stopTime.CompareAndSwap(nil, &now) && caddy.Exiting() {
		time.AfterFunc(a.bodyLimit(), stores.DropBodies)
	}
}

// bodyLimit returns how long after the stop began a body may be stored: until a second before the grace
// period ends, so that there is time for the rest.
func (a *App) bodyLimit() time.Duration {
	const withoutGrace, rest = 5 * time.Second, time.Second
	if grace := a.gracePeriod(); grace > 0 {
		return max(grace-rest, grace/2)
	}
	return withoutGrace
}

// drain waits for runs, at most for drainLimit.
func (a *App) drain() {
	a.noteServerStop() // there may be no server
	ctx, cancel := context.WithTimeout(context.Background(), a.drainLimit())
	defer cancel()
	stores.Drain(ctx)
}

// drainLimit returns what is left of the grace period of the servers. Servers and runs share one
// period: a supervisor is configured to kill the process after it. Without a grace period the
// limit is the longest `timeout` of a handler.
func (a *App) drainLimit() time.Duration {
	grace := a.gracePeriod()
	if grace <= 0 {
		return a.maxRun
	}
	if started := a.stopTime.Load(); started != nil {
		grace -= time.Since(*started)
	}
	return max(grace, 0)
}

// gracePeriod returns the grace period of the servers, 0 for none.
func (a *App) gracePeriod() time.Duration {
	module, err := a.ctx.AppIfConfigured("http")
	if err != nil {
		return 0
	}
	return duration(module.(*caddyhttp.App).GracePeriod)
}

var (
	_ caddy.App          = (*App)(nil)
	_ caddy.Provisioner  = (*App)(nil)
	_ caddy.CleanerUpper = (*App)(nil)
)

// secretPlaceholder matches the accepted origins of a secret. One in the configuration itself would
// leak into backups, responses of the admin API and Caddy's autosave.
var secretPlaceholder = regexp.MustCompile(`^\{(env|file)\.[^{}]+\}$`)

// checkEncryptionKeys refuses anything but placeholders. Errors do not show it: it may be a key.
func checkEncryptionKeys(texts []string) error {
	for i, text := range texts {
		if !secretPlaceholder.MatchString(text) {
			return fmt.Errorf("argument %d is not one placeholder {env.NAME} or {file./path}; keys must not be in the configuration", i+1)
		}
		if first := slices.Index(texts, text); first < i {
			return fmt.Errorf("arguments %d and %d are the same key", first+1, i+1)
		}
	}
	return nil
}

// newSealer reads the keys. Errors name the placeholder and never show a value.
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
