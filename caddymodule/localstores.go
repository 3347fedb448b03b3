package caddymodule

import (
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
)

func init() {
	caddy.RegisterModule(new(FileStore))
	caddy.RegisterModule(new(MemoryStore))
}

const (
	defaultFile = "dedup.db"
	// localTimeout limits one operation of a store in this process. It is long
	// against a disk that is busy, and short against a client that waits.
	localTimeout = 5 * time.Second
)

// FileStore keeps claims and responses in one durable file, which survives
// crashes. Only one process can use it.
type FileStore struct {
	// The file's path. A relative one lies in Caddy's data directory. Default:
	// `dedup.db`. Placeholders are replaced when the configuration is loaded.
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
	orElse(&s.Path, defaultFile)
	if !filepath.IsAbs(s.Path) {
		s.Path = filepath.Join(caddy.AppDataDir(), s.Path)
	}
	s.Path = filepath.Clean(s.Path)
	return nil
}

func (s *FileStore) poolKey() string                 { return "file " + realPath(s.Path) }
func (s *FileStore) describe() string                { return "file store " + s.Path }
func (s *FileStore) operationTimeout() time.Duration { return localTimeout }

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
func (s *MemoryStore) describe() string                { return "memory store, which is gone when the process exits" }
func (s *MemoryStore) operationTimeout() time.Duration { return localTimeout }

func (s *MemoryStore) open(*zap.Logger) (idempotency.Store, error) {
	return memory.New(math.MaxInt64), nil // until the limit of a configuration is set
}

var (
	_ caddy.Provisioner = (*FileStore)(nil)
	_ storeModule       = (*FileStore)(nil)
	_ storeModule       = (*MemoryStore)(nil)
)
