// Package storepool shares the open stores of a process, each with its engine, between the
// configurations that use them: a run of an old configuration and a duplicate under the new one are in
// the same engine. The package does not import Caddy.
package storepool

import (
	"cmp"
	"context"
	"crypto/rand"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
)

// Pool holds the open stores of a process. It does not use Caddy's UsagePool, for two reasons: UsagePool
// removes a value before it closes it, so that a new store could open a directory that is still locked;
// and listing its values waits for a store that is being opened.
type Pool struct {
	// Observer observes the engines. It may be nil, and must be set before the first store is
	// opened.
	Observer engine.Observer

	room     func() error
	copies   *engine.Copies
	unstored *engine.Unstored

	mu   sync.Mutex
	open map[string]*Store // by key
	// unreplicated and damages are the sums of what closed stores have counted.
	unreplicated, damages int64
}

// New returns an empty pool. room, copies and unstored are for the engines ([engine.Options]).
func New(room func() error, copies *engine.Copies, unstored *engine.Unstored) *Pool {
	return &Pool{room: room, copies: copies, unstored: unstored, open: make(map[string]*Store)}
}

// enter enters the store of a handle and returns it. It opens the store if necessary, without delaying
// requests that need other stores.
func (p *Pool) enter(h *Handle) (*Store, error) {
	for {
		p.mu.Lock()
		s, ok := p.open[h.Key]
		if !ok {
			s = &Store{pool: p, key: h.Key, name: h.Describe(), namespaces: []string{h.Namespace}, users: 1, unusedSince: time.Now(), tried: make(chan struct{}), closed: make(chan struct{})}
			p.open[h.Key] = s
		}
		p.mu.Unlock()
		switch {
		case !ok:
			p.start(s, h)
			return s, s.err
		case s.enter():
			<-s.tried
			return s, s.err
		}
		slow := h.warnIfSlow("the store is still being closed for the previous configuration: its disk is slow or hangs; requests and reloads that need the store wait")
		<-s.closed
		slow.Stop()
	}
}

// start opens a store. Other callers may already be waiting for it.
func (p *Pool) start(s *Store, h *Handle) {
	defer close(s.tried)
	s.logTarget.Store(h.Logger)
	s.log = movableLog(s.logTarget.Load)
	defer h.warnIfSlow("the store is still being opened: its disk is slow or hangs; requests and reloads that need the store wait").Stop()
	if s.store, s.err = h.Config.Open(s.log); s.err != nil {
		s.store = nil // perhaps a nil pointer of its type
		p.remove(s)
		return
	}
	s.Engine = engine.New(s.store, engine.Options{
		Timeout:        h.Config.OperationTimeout(),
		Logger:         s.log,
		NewToken:       rand.Text,
		NewExecutionID: func() string { return uuid.Must(uuid.NewV7()).String() }, // RFC 9562: sorted by time
		Room:           p.room,
		Copies:         p.copies,
		Unstored:       p.unstored,
		Observer:       p.Observer,
	})
	s.Configure(h.Settings) // until addConfiguration
}

func (p *Pool) remove(s *Store) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, s.key)
	p.unreplicated += s.unreplicated()
	p.damages += s.damages()
}

// all returns the open stores, without entering them.
func (p *Pool) all() []*Store {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.allLocked()
}

func (p *Pool) allLocked() (open []*Store) {
	for _, s := range p.open {
		select {
		case <-s.tried:
			if s.err == nil {
				open = append(open, s)
			}
		default: // the store is still being opened
		}
	}
	return open
}

// All enters the open stores and returns them, sorted by key. The caller must leave them.
func (p *Pool) All() []*Store {
	entered := slices.DeleteFunc(p.all(), func(s *Store) bool { return !s.enter() })
	slices.SortFunc(entered, func(a, b *Store) int { return cmp.Compare(a.key, b.key) })
	return entered
}

// InProgress is the work in progress in the stores of a process, and their counters.
type InProgress struct {
	// InFlight is the number of runs, including those whose end is not stored yet. Waiting is
	// the number of requests that wait for a run.
	InFlight, Waiting int
	// Unreplicated is the number of kept responses that were answered before wait_replicas
	// replicas had them, including those of closed stores. It never decreases.
	Unreplicated int64
	// WritesRefused reports whether a store that a configuration uses refuses writes
	// ([engine.Engine.WritesRefused]).
	WritesRefused bool
	// Damages is how often stores have met damaged data, including closed ones. It never decreases.
	Damages int64
}

// InProgress returns the sum over all stores. It does not call any store.
func (p *Pool) InProgress() InProgress {
	p.mu.Lock()
	defer p.mu.Unlock()
	sum := InProgress{Unreplicated: p.unreplicated, Damages: p.damages}
	for _, s := range p.allLocked() {
		inFlight, waiting := s.Engine.InProgress()
		sum.InFlight += inFlight
		sum.Waiting += waiting
		sum.Unreplicated += s.unreplicated()
		sum.WritesRefused = sum.WritesRefused || s.InUse() && s.WritesRefused() != ""
		sum.Damages += s.damages()
	}
	return sum
}

// Drain waits until no run is in flight in any store, or the context ends.
func (p *Pool) Drain(ctx context.Context) {
	for _, s := range p.all() {
		_ = s.Drain(ctx) // Exit logs what is left
	}
}

// DropBodies stores all runs without their bodies that are not stored yet, for a process that is about to
// exit.
func (p *Pool) DropBodies() {
	for _, s := range p.all() {
		s.DropBodies()
	}
}

// Exit ends all runs that are still in flight with an unknown result, and waits until the stores are
// closed. It is called when the process exits and its configuration has been stopped.
func (p *Pool) Exit() {
	var exits sync.WaitGroup
	for _, s := range p.all() {
		exits.Go(s.exit)
	}
	exits.Wait()
}

// exitTimeout is how long Exit waits for a store to close.
const exitTimeout = 5 * time.Second

func (s *Store) exit() {
	if err := s.Abandon(); err != nil {
		s.log.Error("the process exits with work undone", zap.String("store", s.name), zap.Error(err))
		return
	}
	if s.UsedBy() > 0 {
		return // requests that were cut off still use it
	}
	timer := time.NewTimer(exitTimeout)
	defer timer.Stop()
	select {
	case <-s.closed:
	case <-timer.C:
		s.log.Error("the store could not be closed in time; the process exits as if it had crashed", zap.String("store", s.name))
	}
}
