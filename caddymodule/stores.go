package caddymodule

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/file"
	"github.com/caddy-dedup/caddy-dedup/internal/store/memory"
)

// storeModule is what a module in the namespace dedup.stores has to be.
type storeModule interface {
	// poolKey is the same for settings that mean the same store. It shows no
	// secret.
	poolKey() string
	// tuning are the settings that can change while the store is open; they are not
	// part of poolKey. It can be compared, and is nil for a store that has none.
	tuning() any
	// describe says to people which store it is.
	describe() string
	// operationTimeout limits one operation of the store.
	operationTimeout() time.Duration
	// shared says that other processes may use the store too. They can take over what
	// this one is slow to renew.
	shared() bool
	// open opens the store.
	open(logger *zap.Logger) (idempotency.Store, error)
}

// storeHandle gives one configuration and its requests access to a store.
type storeHandle struct {
	config   storeModule
	key      string
	logger   *zap.Logger
	settings engine.Settings
	// namespace is that of the configuration's keys.
	namespace string
	// memoryLimit is that of a memory store, in bytes.
	memoryLimit int64

	opened atomic.Pointer[openStore]
}

func (h *storeHandle) describe() string { return h.config.describe() }

// leasePerTimeout is how many timeouts a lease has at least: one for the claim, of
// which nobody knows when in this time the store began the lease, one for a renewal
// that fails, and one for the renewal after it.
const leasePerTimeout = 3

// checkLease refuses a lease that could lapse while its own claim or renewals are under
// way. In a store of this process alone nobody can take over meanwhile.
func (h *storeHandle) checkLease(lease time.Duration) error {
	timeout := h.config.operationTimeout()
	if !h.config.shared() || timeout <= lease/leasePerTimeout {
		return nil
	}
	return fmt.Errorf("lease: %s is too short for the %s: one operation may take its timeout of %s, and a lease is at least three times as long; use a lease of at least %s, or a timeout of at most %s",
		lease, h.describe(), timeout, leasePerTimeout*min(timeout, math.MaxInt64/leasePerTimeout), lease/leasePerTimeout)
}

// enter returns the store, which it opens if need be. Who has entered keeps it
// open until it leaves. The handle's configuration is in from its start to its
// cleanup, so that a request finds it open; a request of a configuration that is
// gone already may open it once more.
func (h *storeHandle) enter() (*openStore, error) {
	if store := h.opened.Load(); store != nil && store.enter() {
		return store, nil
	}
	store, err := stores.enter(h)
	if err != nil {
		return nil, fmt.Errorf("opening the %s: %w", h.describe(), err)
	}
	h.opened.Store(store)
	return store, nil
}

func init() {
	caddy.RegisterModule(new(FileStore))
	caddy.RegisterModule(new(MemoryStore))
}

const (
	defaultDirectory = "dedup"
	// localTimeout limits one operation of a store in this process. It is long
	// against a disk that is busy, and short against a client that waits. Leases may
	// be shorter ([storeHandle.checkLease]).
	localTimeout = 5 * time.Second
)

// FileStore keeps claims and responses durably in the files of one directory, which
// survive crashes. Only one process can use it.
type FileStore struct {
	// The directory's path. A relative one lies in Caddy's data directory. Default:
	// `dedup`. Placeholders are replaced when the configuration is loaded.
	Path string `json:"path,omitempty"`
}

// CaddyModule returns the Caddy module information.
func (*FileStore) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "dedup.stores.file",
		New: func() caddy.Module { return new(FileStore) },
	}
}

// Provision finds the path. It opens nothing.
func (s *FileStore) Provision(caddy.Context) error {
	if s.Path != "" {
		path := caddy.NewReplacer().ReplaceAll(s.Path, "")
		if path == "" {
			return fmt.Errorf("file store: the path %s is empty once its placeholders are replaced", s.Path)
		}
		s.Path = path
	}
	orElse(&s.Path, defaultDirectory)
	if !filepath.IsAbs(s.Path) {
		s.Path = filepath.Join(caddy.AppDataDir(), s.Path)
	}
	s.Path = filepath.Clean(s.Path)
	return nil
}

func (s *FileStore) poolKey() string                 { return "file " + realPath(s.Path) }
func (s *FileStore) tuning() any                     { return nil }
func (s *FileStore) describe() string                { return "file store " + s.Path }
func (s *FileStore) operationTimeout() time.Duration { return localTimeout }
func (s *FileStore) shared() bool                    { return false }

func (s *FileStore) open(logger *zap.Logger) (idempotency.Store, error) {
	return file.Open(s.Path, logger)
}

// realPath returns a path without symbolic links, as far as it exists: two paths
// to one store are one store.
func realPath(path string) string {
	const mostLinks = 40 // as Linux has it; more of them are a loop
	for range mostLinks {
		target, err := os.Readlink(path)
		if err != nil {
			break
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(path), target)
		}
		path = target
	}
	if parent := filepath.Dir(path); parent != path {
		return filepath.Join(realPath(parent), filepath.Base(path))
	}
	return path
}

// MemoryStore keeps claims and responses in this process. They are gone when it
// exits: it is for trying out.
type MemoryStore struct{}

// CaddyModule returns the Caddy module information.
func (*MemoryStore) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "dedup.stores.memory",
		New: func() caddy.Module { return new(MemoryStore) },
	}
}

func (s *MemoryStore) poolKey() string                 { return "memory" }
func (s *MemoryStore) tuning() any                     { return nil }
func (s *MemoryStore) describe() string                { return "memory store, which is gone when the process exits" }
func (s *MemoryStore) operationTimeout() time.Duration { return localTimeout }
func (s *MemoryStore) shared() bool                    { return false }

func (s *MemoryStore) open(*zap.Logger) (idempotency.Store, error) {
	return memory.New(math.MaxInt64), nil // until the limit of a configuration is set
}

var (
	_ caddy.Provisioner = (*FileStore)(nil)
	_ storeModule       = (*FileStore)(nil)
	_ storeModule       = (*MemoryStore)(nil)
)
