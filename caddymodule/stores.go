package caddymodule

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/file"
	"github.com/caddy-dedup/caddy-dedup/internal/store/memory"
	"github.com/caddy-dedup/caddy-dedup/internal/storepool"
)

// stores has the open stores of the process.
var stores = storepool.New(buffered.Busy, localCopies, engine.NewUnstored(buffered.Half))

// leasePerTimeout is the minimum ratio of lease to store timeout: one timeout for the claim, during
// which the lease may start at any time, one for a renewal that fails, and one for the next.
const leasePerTimeout = 3

// checkLease refuses a lease that could lapse during its own claim or renewals. It accepts any
// lease in a local store, where no other process can take over.
func checkLease(store storepool.Config, lease time.Duration) error {
	timeout := store.OperationTimeout()
	if !store.Shared() || timeout <= lease/leasePerTimeout {
		return nil
	}
	return fmt.Errorf("lease: %s is too short for the %s: one operation may take its timeout of %s, and a lease must be at least three times as long; use a lease of at least %s, or a timeout of at most %s",
		lease, store.Describe(), timeout, leasePerTimeout*min(timeout, math.MaxInt64/leasePerTimeout), lease/leasePerTimeout)
}

// checkStoreKind refuses a JSON store without a kind, or with a URL as its kind: Caddy's own error
// would show the settings or the URL, including a password.
func checkStoreKind(raw json.RawMessage) error {
	var settings map[string]json.RawMessage
	_ = json.Unmarshal(raw, &settings) // anything but an object has no kind
	var kind string
	switch err := json.Unmarshal(settings["store"], &kind); {
	case err != nil || kind == "":
		return errors.New(`store: its member "store" is missing or is not a text; use file, memory or redis, such as {"store": "redis", "url": "{env.REDIS_URL}"}`)
	case mayHoldPassword(kind):
		return errors.New("store: a URL is not accepted here, and is not shown; for redis, write it in url")
	}
	return nil
}

func init() {
	caddy.RegisterModule(new(FileStore))
	caddy.RegisterModule(new(MemoryStore))
}

// localStore has what the stores of one process have in common, as [storepool.Config] has it.
type localStore struct{}

func (localStore) Tuning() any { return nil }

func (localStore) Tune(idempotency.Store) {}

// OperationTimeout is long enough for a busy disk, and short for a waiting client. Leases may be
// shorter ([checkLease]).
func (localStore) OperationTimeout() time.Duration { return 5 * time.Second }

func (localStore) Shared() bool { return false }

const defaultDirectory = "dedup"

// FileStore keeps claims and responses durably in files of one directory, which survive crashes.
// Only one process can use it at a time.
type FileStore struct {
	localStore

	// The path of the directory. A relative path is relative to Caddy's data directory.
	// Placeholders are replaced when the configuration is loaded; an empty or unknown
	// placeholder is an error. Default: `dedup`.
	Path string `json:"path,omitempty"`
}

// CaddyModule returns the Caddy module information.
func (*FileStore) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "dedup.stores.file",
		New: func() caddy.Module { return new(FileStore) },
	}
}

// Provision resolves the path. It opens nothing.
func (s *FileStore) Provision(caddy.Context) error {
	setDefault(&s.Path, defaultDirectory)
	path, err := s.Path, checkBraces(s.Path)
	if err == nil {
		path, err = replacePlaceholders(s.Path)
	}
	if err != nil {
		return fmt.Errorf("file store: path %s: %w", s.Path, err)
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(caddy.AppDataDir(), path)
	}
	s.Path = filepath.Clean(path)
	return nil
}

// PoolKey implements [storepool.Config].
func (s *FileStore) PoolKey() string { return "file " + realPath(s.Path) }

// Describe implements [storepool.Config].
func (s *FileStore) Describe() string { return "file store " + s.Path }

// Open implements [storepool.Config].
func (s *FileStore) Open(logger *zap.Logger) (idempotency.Store, error) {
	return file.Open(s.Path, logger)
}

// realPath resolves symbolic links, as far as the path exists: two paths to one directory are one
// store.
func realPath(path string) string {
	found, err := filepath.EvalSymlinks(path)
	if err == nil {
		return found
	}
	parent := filepath.Dir(path)
	if parent == path {
		return path
	}
	return filepath.Join(realPath(parent), filepath.Base(path))
}

// MemoryStore keeps claims and responses in memory. They are lost when the process exits, so it is
// for trying out and tests.
type MemoryStore struct {
	localStore
	limit int64 // bytes; [Limits.MemoryStore]
}

// CaddyModule returns the Caddy module information.
func (*MemoryStore) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "dedup.stores.memory",
		New: func() caddy.Module { return new(MemoryStore) },
	}
}

// PoolKey implements [storepool.Config].
func (s *MemoryStore) PoolKey() string { return "memory" }

// Describe implements [storepool.Config].
func (s *MemoryStore) Describe() string { return "memory store, which is lost when the process exits" }

// Open implements [storepool.Config].
func (s *MemoryStore) Open(*zap.Logger) (idempotency.Store, error) {
	return memory.New(math.MaxInt64), nil // until Tune
}

// Tune implements [storepool.Config].
func (s *MemoryStore) Tune(store idempotency.Store) { store.(*memory.Store).SetLimit(s.limit) }

var (
	_ caddy.Provisioner = (*FileStore)(nil)
	_ storepool.Config  = (*FileStore)(nil)
	_ storepool.Config  = (*MemoryStore)(nil)
)
