package caddymodule

import (
	"math"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
	"github.com/caddy-dedup/caddy-dedup/internal/engine"
)

// Limits bound the resources of one process. Beyond a limit, requests with a key are refused
// with 503 and `overloaded`.
type Limits struct {
	// The memory for request bodies, responses and replays, in bytes. While nine tenths of
	// it are in use, new requests are refused and replays wait. Runs in flight continue, and
	// wait for free memory if necessary. Default: a quarter of the memory limit (GOMEMLIMIT,
	// which Caddy derives from the container's limit), at most 256 MiB.
	Buffered int64 `json:"buffered,omitempty"`

	// How long a client may accept no bytes of its response before it is disconnected. The
	// response is kept all the same. Default: 10 seconds. A server's own `timeouts write`
	// takes precedence.
	ClientIdle caddy.Duration `json:"client_idle,omitempty"`

	// The maximum number of duplicates that wait for a run. Default: 10000.
	Waiters int `json:"waiters,omitempty"`

	// The maximum number of duplicates that wait for the run of one key. Default: 1000.
	WaitersPerKey int `json:"waiters_per_key,omitempty"`

	// The maximum number of runs in flight, including those whose response is not stored
	// yet. Default: 10000.
	InFlight int `json:"in_flight,omitempty"`

	// The maximum size of the memory store, in bytes. When seven eighths are in use, it
	// refuses new keys. It never evicts a key. Default: 256 MiB.
	MemoryStore int64 `json:"memory_store,omitempty"`
}

func (l *Limits) setDefaults() {
	setDefault(&l.Buffered, defaultBuffered())
	setDefault(&l.ClientIdle, caddy.Duration(10*time.Second))
	setDefault(&l.Waiters, 10_000)
	setDefault(&l.WaitersPerKey, 1000)
	setDefault(&l.InFlight, 10_000)
	setDefault(&l.MemoryStore, 256<<20)
}

func (l *Limits) engineLimits() engine.Limits {
	return engine.Limits{Waiters: l.Waiters, WaitersPerKey: l.WaitersPerKey, InFlight: l.InFlight}
}

// buffered is the budget of the process. activeConfigs sets its limit.
var buffered = budget.New(math.MaxInt64)

// activeConfigs holds the active configurations, oldest first. The limits of the oldest one
// apply, as do its settings of a store.
var activeConfigs configurations

type configurations struct {
	mu   sync.Mutex
	apps []*App
}

// active returns the apps of the active configurations.
func (c *configurations) active() []*App {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.apps)
}

func (c *configurations) add(app *App) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.apps = append(c.apps, app)
	c.applyLocked()
}

func (c *configurations) remove(app *App) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.apps = slices.DeleteFunc(c.apps, func(other *App) bool { return other == app })
	if len(c.apps) > 0 {
		c.applyLocked()
	}
}

func (c *configurations) applyLocked() {
	app := c.apps[0]
	buffered.SetLimit(app.Limits.Buffered)
	localCopies.SetLimit(app.localCopies())
}

// localCopies holds the copies of kept responses. activeConfigs sets its limit.
var localCopies = engine.NewCopies(0)

// defaultLocalCopies is the default limit of localCopies, in bytes.
const defaultLocalCopies = 16 << 20

func (a *App) localCopies() int64 {
	if a.LocalCopies == nil {
		return defaultLocalCopies
	}
	return *a.LocalCopies
}

// maxBuffered is the maximum of the default of [Limits.Buffered], in bytes.
const maxBuffered = 256 << 20

// defaultBuffered returns a quarter of GOMEMLIMIT, which Caddy sets from the container's limit,
// and at most maxBuffered.
func defaultBuffered() int64 {
	limit := debug.SetMemoryLimit(-1)
	if limit == math.MaxInt64 {
		return maxBuffered
	}
	return min(limit/4, maxBuffered)
}
