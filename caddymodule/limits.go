package caddymodule

import (
	"math"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/exchange"
)

// Limits bound what one process holds at a time. Past one of them, requests with
// a key are refused with 503 and `overloaded`.
type Limits struct {
	// All that is held for requests, in bytes: bodies as they arrive, responses and
	// replays until the client has read them. While nine tenths of it are taken, requests
	// that would begin are refused, and replays wait; what is in flight goes on, and waits
	// for room if it has to. Default: a quarter of the memory limit (GOMEMLIMIT, which is set by the
	// container's limit), at most 256 MiB.
	Buffered int64 `json:"buffered,omitempty"`

	// How long a client may accept no bytes of its response before it is disconnected. The
	// response is kept all the same. Default: 10 seconds. A server's own `timeouts write`
	// takes precedence.
	ClientIdle caddy.Duration `json:"client_idle,omitempty"`

	// Duplicates that wait for a run. Default: 10000.
	Waiters int `json:"waiters,omitempty"`

	// Duplicates that wait for the run of one key. Default: 1000.
	WaitersPerKey int `json:"waiters_per_key,omitempty"`

	// Runs in flight, and responses that could not be stored yet. Default: 10000.
	InFlight int `json:"in_flight,omitempty"`

	// What the memory store holds, in bytes. When seven eighths are taken, it refuses new
	// keys; it never evicts one. Default: 256 MiB.
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

// buffered is the budget of this process. A configuration sets its limit.
var buffered = exchange.NewBudget(math.MaxInt64)

// activeConfigs are the configurations that run, the oldest first. The limit of that one
// counts, as with the settings of a store.
var activeConfigs configurations

type configurations struct {
	mu   sync.Mutex
	apps []*App
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

// localCopies are the copies of kept responses in this process. A configuration sets
// their limit.
var localCopies = engine.NewCopies(0)

// defaultLocalCopies is the limit of the local copies where none is configured, in bytes.
const defaultLocalCopies = 16 << 20

func (a *App) localCopies() int64 {
	if a.LocalCopies == nil {
		return defaultLocalCopies
	}
	return *a.LocalCopies
}

// maxBuffered is the largest default limit.
const maxBuffered = 256 << 20

// defaultBuffered is a quarter of the memory limit (GOMEMLIMIT, which Caddy sets by the
// container's), at most maxBuffered.
func defaultBuffered() int64 {
	limit := debug.SetMemoryLimit(-1)
	if limit == math.MaxInt64 {
		return maxBuffered
	}
	return min(limit/4, maxBuffered)
}
