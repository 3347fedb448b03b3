// Package openstores has the stores that are open in a process, each with its engine, for
// as long as a configuration or a request uses it. It knows nothing of Caddy.
package openstores

import (
	"context"
	"crypto/rand"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Store is a store that is open in this process, with its engine. All
// configurations that name the same store share it: a run that an old one has
// begun and a duplicate under the new one meet in the same engine.
type Store struct {
	*engine.Engine
	set   *Set
	key   string
	entry entry  // where it is in the set
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
	configurations []*Handle
	// namespaces are those of all configurations that have used the store since it was
	// opened: it has the keys of earlier ones too.
	namespaces []string
	finishing  bool // somebody waits for the last work, to close the store
	closed     bool
}

// Key returns the store's key, which is the same for settings that mean the same store.
func (o *Store) Key() string { return o.key }

// Name says to people which store it is.
func (o *Store) Name() string { return o.name }

// enter reports false where the store is closed already.
func (o *Store) enter() bool {
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
func (o *Store) Leave() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.users--
	if o.users == 0 && !o.finishing {
		o.finishing = true
		go o.finish()
	}
}

// UsedBy returns how many configurations and requests have entered and not left.
func (o *Store) UsedBy() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.users
}

// Gone is closed when the store is.
func (o *Store) Gone() <-chan struct{} { return o.ended }

// finish closes the store when nothing is left to do, unless it has been entered again by
// then.
func (o *Store) finish() {
	for !o.mayClose() {
		if !o.mustFinish() {
			return
		}
		_ = o.Finish(context.Background()) // ends without an error
	}
	if err := o.Close(); err != nil {
		o.log.logger.Error("closing the store", zap.String("store", o.name), zap.Error(err))
	}
	o.set.remove(o)
	close(o.ended)
}

// mayClose marks the store as closed, so that it cannot be entered again, if it has no
// users and nothing is left to do.
func (o *Store) mayClose() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = o.closed || o.users == 0 && o.Idle()
	return o.closed
}

// mustFinish reports whether the store is still without users. Else the next one that
// leaves as the last finishes it.
func (o *Store) mustFinish() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.finishing = o.users == 0
	return o.finishing
}

// AddConfiguration adds a configuration to those that use the store.
func (o *Store) AddConfiguration(h *Handle) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.configurations = append(o.configurations, h)
	if !slices.Contains(o.namespaces, h.Namespace) {
		o.namespaces = append(o.namespaces, h.Namespace)
	}
	o.applyLocked()
}

// RemoveConfiguration takes a configuration out of those that use the store: the next one's
// settings count from now on.
func (o *Store) RemoveConfiguration(h *Handle) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.configurations = slices.DeleteFunc(o.configurations, func(other *Handle) bool { return other == h })
	o.applyLocked()
}

// applyLocked gives engine, store and log the settings that count.
func (o *Store) applyLocked() {
	if len(o.configurations) == 0 {
		return
	}
	h := o.configurations[0]
	o.Configure(h.Settings)
	o.log.moveTo(h.Logger)
	h.Config.Tune(o.store)
	if limited, ok := o.store.(interface{ SetLimit(bytes int64) }); ok {
		limited.SetLimit(h.MemoryLimit)
	}
}

// Set are the stores that are open in this process. It is not Caddy's
// UsagePool: that one forgets a value before it is closed, so that a store's
// directory could be opened while it is still locked; and who looks through it waits for
// whatever is being opened.
type Set struct {
	// Observer is told what the engines do, as [engine.Options] has it; nil is nobody. It is
	// set before the first store is opened.
	Observer engine.Observer

	room func() error
	// copies are those of all stores together.
	copies *engine.Copies

	mu   sync.Mutex
	open map[entry]*Store
	// unreplicated is what the stores had counted that are closed.
	unreplicated int64
}

// entry is a store under one of its settings, as [Handle] has them.
type entry struct {
	key   string
	times int
}

// NewSet returns a set without a store. room returns an error while nothing is to
// begin, and copies are those of the process, as [engine.Options] has them.
func NewSet(room func() error, copies *engine.Copies) *Set {
	return &Set{room: room, copies: copies, open: make(map[entry]*Store)}
}

// enter returns the store that a handle means, entered, and opens it if need be.
// Opening one store keeps nobody waiting who wants another.
func (s *Set) enter(h *Handle) (*Store, error) {
	for {
		s.mu.Lock()
		at := entry{h.Key, h.Times}
		o, ok := s.open[at]
		if !ok {
			o = &Store{set: s, key: h.Key, entry: at, name: h.Describe(), namespaces: []string{h.Namespace}, users: 1, tried: make(chan struct{}), ended: make(chan struct{})}
			s.open[at] = o
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
		told := h.tellIfSlow("the store is still being closed for the configuration before: its disk is slow, or hangs; what needs the store waits")
		<-o.ended // it is being closed: then it can be opened again
		told.Stop()
	}
}

// tellIfSlow logs a text unless the timer is stopped within the time of an operation. Whoever
// opens a store waits, and with it the start of the process, or a reload: what for is not to
// be guessed.
func (h *Handle) tellIfSlow(text string) *time.Timer {
	return time.AfterFunc(h.Config.OperationTimeout(), func() {
		h.Logger.Warn(text, zap.String("store", h.Describe()))
	})
}

// start opens a store that others may wait for already.
func (s *Set) start(o *Store, h *Handle) {
	defer close(o.tried)
	o.log = newMovableLog(h.Logger)
	defer h.tellIfSlow("the store is still being opened: its disk is slow, or hangs; what needs the store waits").Stop()
	if o.store, o.err = h.Config.Open(o.log.logger); o.err != nil {
		s.remove(o)
		return
	}
	o.Engine = engine.New(o.store, engine.Options{
		Timeout:        h.Config.OperationTimeout(),
		Logger:         o.log.logger,
		NewToken:       rand.Text,
		NewExecutionID: newExecutionID,
		Room:           s.room,
		Copies:         s.copies,
		Observer:       s.Observer,
	})
	o.Configure(h.Settings) // until a configuration has started with it
}

func (s *Set) remove(o *Store) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[o.entry] == o {
		delete(s.open, o.entry)
		s.unreplicated += o.unreplicated()
	}
}

// unreplicated returns how many kept responses the store answered before they were on as
// many replicas as were wanted.
func (o *Store) unreplicated() int64 {
	if counts, ok := o.store.(interface{ Unreplicated() int64 }); ok {
		return counts.Unreplicated()
	}
	return 0
}

// InProgress is what goes on in the stores of a process, and what they have counted.
type InProgress struct {
	// InFlight are the runs, and the ends of runs that are not stored yet; Waiting are
	// the requests that wait for a run.
	InFlight, Waiting int
	// Unreplicated are the kept responses that were answered before they were on as many
	// replicas as were wanted, in the stores that are closed, too. It never goes back.
	Unreplicated int64
}

// InProgress returns what goes on in all stores now. It asks no store.
func (s *Set) InProgress() InProgress {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := InProgress{Unreplicated: s.unreplicated}
	for _, o := range s.allLocked() {
		inFlight, waiting := o.Engine.InProgress()
		sum.InFlight += inFlight
		sum.Waiting += waiting
		sum.Unreplicated += o.unreplicated()
	}
	return sum
}

// Drain waits until no run is in flight in any store, or the context ends.
func (s *Set) Drain(ctx context.Context) {
	for _, o := range s.all() {
		_ = o.Drain(ctx) // Exit says what is left
	}
}

// Exit ends all runs that are still in flight as unknown, and waits for the stores to
// close. The process is about to exit, and its configuration has left.
func (s *Set) Exit() {
	var exits sync.WaitGroup
	for _, o := range s.all() {
		exits.Go(o.exit)
	}
	exits.Wait()
}

// exitTimeout is how long a process that exits waits for a store to close.
const exitTimeout = 5 * time.Second

func (o *Store) exit() {
	if err := o.Abandon(); err != nil {
		o.log.logger.Error("the process exits with work undone", zap.String("store", o.name), zap.Error(err))
		return
	}
	if o.UsedBy() > 0 {
		return // by requests that were cut off
	}
	timer := time.NewTimer(exitTimeout)
	defer timer.Stop()
	select {
	case <-o.ended:
	case <-timer.C:
		o.log.logger.Error("the store does not close; the process exits as if it had crashed", zap.String("store", o.name))
	}
}

// all returns the stores that are open, without entering them.
func (s *Set) all() []*Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.allLocked()
}

func (s *Set) allLocked() (open []*Store) {
	for _, o := range s.open {
		select {
		case <-o.tried:
			if o.err == nil {
				open = append(open, o)
			}
		default: // it is being opened
		}
	}
	return open
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
