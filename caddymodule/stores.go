package caddymodule

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/file"
	"github.com/caddy-dedup/caddy-dedup/internal/store/memory"
	"github.com/caddy-dedup/caddy-dedup/internal/storepool"
)

// stores are the open stores of this process.
var stores = storepool.New(buffered.Busy, localCopies)

// leasePerTimeout is how many timeouts a lease has at least: one for the claim, in which the store
// may have begun the lease at any time, one for a renewal that fails, and one for the renewal after
// it.
const leasePerTimeout = 3

// checkLease refuses a lease that could lapse while its own claim or renewals are under
// way. In a store of this process alone no other process can take over.
func checkLease(store storepool.Config, lease time.Duration) error {
	timeout := store.OperationTimeout()
	if !store.Shared() || timeout <= lease/leasePerTimeout {
		return nil
	}
	return fmt.Errorf("lease: %s is too short for the %s: one operation may take its timeout of %s, and a lease is at least three times as long; use a lease of at least %s, or a timeout of at most %s",
		lease, store.Describe(), timeout, leasePerTimeout*min(timeout, math.MaxInt64/leasePerTimeout), lease/leasePerTimeout)
}

// checkStoreKind refuses a store in JSON whose kind is not a word, or is a URL: Caddy's own
// error would show the settings or the URL, and so the password in them.
func checkStoreKind(raw json.RawMessage) error {
	var settings map[string]json.RawMessage
	_ = json.Unmarshal(raw, &settings) // what is no object has no kind either
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

const (
	defaultDirectory = "dedup"
	// localTimeout limits one operation of a store in this process. It is long
	// against a disk that is busy, and short against a client that waits. Leases may
	// be shorter ([checkLease]).
	localTimeout = 5 * time.Second
)

// FileStore keeps claims and responses durably in the files of one directory, which
// survive crashes. Only one process can use it.
type FileStore struct {
	// The directory's path. A relative one lies in Caddy's data directory. Default:
	// `dedup`. Placeholders are replaced when the configuration is loaded; one that is
	// empty or unknown is an error.
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
		if err := checkBraces(s.Path); err != nil {
			return fmt.Errorf("file store: path: %w", err)
		}
		path, err := replacePlaceholders(s.Path)
		if err != nil {
			return fmt.Errorf("file store: path %s: %w", s.Path, err)
		}
		s.Path = path
	}
	setDefault(&s.Path, defaultDirectory)
	if !filepath.IsAbs(s.Path) {
		s.Path = filepath.Join(caddy.AppDataDir(), s.Path)
	}
	s.Path = filepath.Clean(s.Path)
	return nil
}

// PoolKey implements [storepool.Config].
func (s *FileStore) PoolKey() string { return "file " + realPath(s.Path) }

// Tuning implements [storepool.Config].
func (s *FileStore) Tuning() any { return nil }

// Tune implements [storepool.Config].
func (s *FileStore) Tune(idempotency.Store) {}

// Describe implements [storepool.Config].
func (s *FileStore) Describe() string { return "file store " + s.Path }

// OperationTimeout implements [storepool.Config].
func (s *FileStore) OperationTimeout() time.Duration { return localTimeout }

// Shared implements [storepool.Config].
func (s *FileStore) Shared() bool { return false }

// Open implements [storepool.Config].
func (s *FileStore) Open(logger *zap.Logger) (idempotency.Store, error) {
	return file.Open(s.Path, logger)
}

// realPath returns a path without symbolic links, as far as it exists: two paths
// to one store are one store.
func realPath(path string) string {
	links := 40 // as Linux has it; more of them are a loop
	return follow(path, &links)
}

// follow is realPath for at most so many more links. A link that is relative leads on from
// where it really lies: by its name alone, it could seem to lead to another store.
func follow(path string, links *int) string {
	if found, err := filepath.EvalSymlinks(path); err == nil {
		return found
	}
	parent := filepath.Dir(path)
	if parent == path {
		return path
	}
	path = filepath.Join(follow(parent, links), filepath.Base(path))
	target, err := os.Readlink(path)
	if err != nil || *links == 0 {
		return path
	}
	*links--
	if !filepath.IsAbs(target) {
		target = filepath.Join(filepath.Dir(path), target)
	}
	return follow(target, links)
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

// PoolKey implements [storepool.Config].
func (s *MemoryStore) PoolKey() string { return "memory" }

// Tuning implements [storepool.Config].
func (s *MemoryStore) Tuning() any { return nil }

// Tune implements [storepool.Config].
func (s *MemoryStore) Tune(idempotency.Store) {}

// Describe implements [storepool.Config].
func (s *MemoryStore) Describe() string { return "memory store, which is gone when the process exits" }

// OperationTimeout implements [storepool.Config].
func (s *MemoryStore) OperationTimeout() time.Duration { return localTimeout }

// Shared implements [storepool.Config].
func (s *MemoryStore) Shared() bool { return false }

// Open implements [storepool.Config].
func (s *MemoryStore) Open(*zap.Logger) (idempotency.Store, error) {
	return memory.New(math.MaxInt64), nil // until the limit of a configuration is set
}

var (
	_ caddy.Provisioner = (*FileStore)(nil)
	_ storepool.Config  = (*FileStore)(nil)
	_ storepool.Config  = (*MemoryStore)(nil)
)
