package caddymodule

import (
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// openStore is a store that is open in this process, with its engine. All
// configurations that name the same store share it: a run that an old one has
// begun and a duplicate under the new one meet in the same engine.
type openStore struct {
	*engine.Engine
	key   string
	name  string // for people
	store idempotency.Store
	log   *movableLog

	// tried is closed when the store is open, or err is set; ended when it is
	// closed.
	tried, ended chan struct{}
	err          error

	mu sync.Mutex
	// users are the configurations and requests that have entered.
	users int
	// configurations are those that use the store, the oldest first. Its settings
	// count: a new configuration that fails to start has changed nothing.
	configurations []*storeHandle
	finishing      bool // somebody waits for the last work, to close the store
	closed         bool
}

// Key returns the store's key, which is the same for settings that mean the same store.
func (o *openStore) Key() string { return o.key }

// Name says to people which store it is.
func (o *openStore) Name() string { return o.name }

// enter reports false where the store is closed already.
func (o *openStore) enter() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return false
	}
	o.users++
	return true
}

// Leave ends a use of the store. After the last one it is closed, in the
// background, when nothing is left to do: no run, no response to be stored, no
// claim to be withdrawn.
func (o *openStore) Leave() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.users--
	if o.users == 0 && !o.finishing {
		o.finishing = true
		go o.finish(context.Background())
	}
}

// leaveAtExit is [openStore.Leave] for a process that exits: it has waited already.
func (o *openStore) leaveAtExit() {
	o.mu.Lock()
	o.users--
	last := o.users == 0 && !o.finishing
	o.finishing = o.finishing || last
	o.mu.Unlock()
	if last {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		o.finish(ctx)
	}
}

// finish closes the store when nothing is left to do, or the context ends, unless
// somebody has entered again by then.
func (o *openStore) finish(ctx context.Context) {
	for !o.mayClose(ctx) {
		if !o.mustFinish() {
			return
		}
		_ = o.Finish(ctx) // what is undone at the end of the context, Drain has said
	}
	if err := o.Close(); err != nil {
		o.log.logger.Error("closing the store", zap.String("store", o.name), zap.Error(err))
	}
	stores.remove(o)
	close(o.ended)
}

// mayClose marks the store as closed, so that nobody enters any more, if nobody is in
// and nothing is left to do.
func (o *openStore) mayClose(ctx context.Context) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = o.closed || o.users == 0 && (o.Idle() || ctx.Err() != nil)
	return o.closed
}

// mustFinish reports whether the store is still without users. Else the next one that
// leaves as the last finishes it.
func (o *openStore) mustFinish() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.finishing = o.users == 0
	return o.finishing
}

// configure adds a configuration to those that use the store.
func (o *openStore) configure(h *storeHandle) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.configurations = append(o.configurations, h)
	o.applyLocked()
}

// forget takes a configuration out of those that use the store: the next one's
// settings count from now on.
func (o *openStore) forget(h *storeHandle) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.configurations = slices.DeleteFunc(o.configurations, func(other *storeHandle) bool { return other == h })
	o.applyLocked()
}

// Namespaces returns those of the configurations that use the store: what the keys of a
// delivery ID begin with depends on them.
func (o *openStore) Namespaces() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var names []string
	for _, h := range o.configurations {
		if !slices.Contains(names, h.namespace) {
			names = append(names, h.namespace)
		}
	}
	return names
}

// applyLocked gives engine, store and log the settings that count.
func (o *openStore) applyLocked() {
	if len(o.configurations) == 0 {
		return
	}
	h := o.configurations[0]
	o.Configure(h.settings)
	o.log.moveTo(h.logger)
	if tuned, ok := o.store.(*tunedStore); ok {
		if err := tuned.tune(h.config, o.log.logger); err != nil {
			o.log.logger.Error("the store does not open with its new settings, and goes on with the old ones", zap.String("store", o.name), zap.Error(err))
		}
	}
	if limited, ok := o.store.(interface{ SetLimit(bytes int64) }); ok {
		limited.SetLimit(h.memoryLimit)
	}
}

// storeSet are the stores that are open in this process. It is not Caddy's
// UsagePool: that one forgets a value before it is closed, so that a store's
// directory could be opened while it is still locked; and who looks through it waits for
// whatever is being opened.
type storeSet struct {
	mu   sync.Mutex
	open map[string]*openStore
}

var stores = storeSet{open: make(map[string]*openStore)}

// enter returns the store that a handle means, entered, and opens it if need be.
// Opening one store keeps nobody waiting who wants another.
func (s *storeSet) enter(h *storeHandle) (*openStore, error) {
	for {
		s.mu.Lock()
		o, ok := s.open[h.key]
		if !ok {
			o = &openStore{key: h.key, name: h.describe(), users: 1, tried: make(chan struct{}), ended: make(chan struct{})}
			s.open[h.key] = o
		}
		s.mu.Unlock()
		switch {
		case !ok:
			s.start(o, h)
			return o, o.err
		case o.enter():
			<-o.tried
			return o, o.err
		}
		<-o.ended // it is being closed: then it can be opened again
	}
}

// start opens a store that others may wait for already.
func (s *storeSet) start(o *openStore, h *storeHandle) {
	defer close(o.tried)
	o.log = newMovableLog(h.logger)
	if o.store, o.err = openStoreOf(h.config, o.log.logger); o.err != nil {
		s.remove(o)
		return
	}
	o.Engine = engine.New(o.store, engine.Options{
		Timeout:        h.config.operationTimeout(),
		Logger:         o.log.logger,
		NewToken:       rand.Text,
		NewExecutionID: newExecutionID,
		Room:           buffered.Busy,
	})
	o.Configure(h.settings) // until a configuration has started with it
}

func (s *storeSet) remove(o *openStore) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[o.key] == o {
		delete(s.open, o.key)
	}
}

// all returns the stores that are open now, entered, in a stable order.
func (s *storeSet) all() []*openStore {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*openStore
	for _, o := range s.open {
		select {
		case <-o.tried:
			if o.enter() {
				all = append(all, o)
			}
		default: // it is being opened
		}
	}
	slices.SortFunc(all, func(a, b *openStore) int { return strings.Compare(a.key, b.key) })
	return all
}

// newExecutionID returns a UUIDv7 (RFC 9562): unique, and in the order of time.
func newExecutionID() string { return uuid.Must(uuid.NewV7()).String() }

// movableLog is a logger whose entries go to the log of one configuration after
// the other: a store that stays open over a reload writes to the new log.
type movableLog struct {
	logger *zap.Logger
	target atomic.Pointer[zapcore.Core]
}

func newMovableLog(target *zap.Logger) *movableLog {
	l := new(movableLog)
	l.moveTo(target)
	l.logger = zap.New(movableCore{log: l}).Named(target.Name())
	return l
}

func (l *movableLog) moveTo(target *zap.Logger) {
	core := target.Core()
	l.target.Store(&core)
}

// movableCore is the core of a [movableLog], with the fields that were added.
type movableCore struct {
	log    *movableLog
	fields []zapcore.Field
}

func (c movableCore) core() zapcore.Core { return (*c.log.target.Load()).With(c.fields) }

// Enabled implements [zapcore.LevelEnabler].
func (c movableCore) Enabled(level zapcore.Level) bool { return (*c.log.target.Load()).Enabled(level) }

// With implements [zapcore.Core].
func (c movableCore) With(fields []zapcore.Field) zapcore.Core {
	return movableCore{c.log, append(slices.Clip(c.fields), fields...)}
}

// Check implements [zapcore.Core]: the target itself takes the entry.
func (c movableCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if !c.Enabled(entry.Level) {
		return checked
	}
	return c.core().Check(entry, checked)
}

// Write implements [zapcore.Core].
func (c movableCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	return c.core().Write(entry, fields)
}

// Sync implements [zapcore.Core].
func (c movableCore) Sync() error { return (*c.log.target.Load()).Sync() }
