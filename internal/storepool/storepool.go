// Package storepool shares the stores that are open in a process, each with its engine, over
// the configurations that use them: a run that an old configuration has begun and a duplicate
// under the new one meet in the same engine. It does not import Caddy.
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

// Pool holds the open stores of a process. It is not Caddy's UsagePool, which removes a value
// before it is closed, so that a directory could be opened while it is still locked, and in
// which a look at all stores waits for the one that is being opened.
type Pool struct {
	// Observer is notified of what the engines do. It is set before the first store is
	// opened, and may be nil.
	Observer engine.Observer

	room   func() error
	copies *engine.Copies

	mu   sync.Mutex
	open map[string]*Store // by key
	// unreplicated is what the stores had counted that are closed.
	unreplicated int64
}

// New returns an empty pool. room and copies are for the engines ([engine.Options]).
func New(room func() error, copies *engine.Copies) *Pool {
	return &Pool{room: room, copies: copies, open: make(map[string]*Store)}
}

// enter returns the store of a handle, entered, and opens it if necessary. Opening one store
// does not delay requests that need another.
func (p *Pool) enter(h *Handle) (*Store, error) {
	for {
		p.mu.Lock()
		s, ok := p.open[h.Key]
		if !ok {
			s = &Store{pool: p, key: h.Key, name: h.Describe(), namespaces: []string{h.Namespace}, users: 1, tried: make(chan struct{}), closed: make(chan struct{})}
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
		slow := h.warnIfSlow("the store is still being closed for the previous configuration: its disk is slow, or hangs; what needs the store waits")
		<-s.closed
		slow.Stop()
	}
}

// start opens a store, for which others may be waiting already.
func (p *Pool) start(s *Store, h *Handle) {
	defer close(s.tried)
	s.log = newMovableLog(h.Logger)
	defer h.warnIfSlow("the store is still being opened: its disk is slow, or hangs; what needs the store waits").Stop()
	if s.store, s.err = h.Config.Open(s.log.logger); s.err != nil {
		p.remove(s)
		return
	}
	s.Engine = engine.New(s.store, engine.Options{
		Timeout:        h.Config.OperationTimeout(),
		Logger:         s.log.logger,
		NewToken:       rand.Text,
		NewExecutionID: func() string { return uuid.Must(uuid.NewV7()).String() }, // RFC 9562: in the order of time
		Room:           p.room,
		Copies:         p.copies,
		Observer:       p.Observer,
	})
	s.Configure(h.Settings) // until a configuration has started with it
}

func (p *Pool) remove(s *Store) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, s.key)
	p.unreplicated += s.unreplicated()
}

// all returns the stores that are open, without entering them.
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
		default: // it is being opened
		}
	}
	return open
}

// All returns the stores that are open now, entered, in a stable order.
func (p *Pool) All() []*Store {
	entered := slices.DeleteFunc(p.all(), func(s *Store) bool { return !s.enter() })
	slices.SortFunc(entered, func(a, b *Store) int { return cmp.Compare(a.key, b.key) })
	return entered
}

// InProgress is what goes on in the stores of a process, and what they have counted.
type InProgress struct {
	// InFlight are the runs, and the ends of runs that are not stored yet; Waiting are
	// the requests that wait for a run.
	InFlight, Waiting int
	// Unreplicated are the kept responses that were answered before they were on as many
	// replicas as configured, also those of closed stores. It never decreases.
	Unreplicated int64
}

// InProgress returns what goes on in all stores now. It asks no store.
func (p *Pool) InProgress() InProgress {
	p.mu.Lock()
	defer p.mu.Unlock()
	sum := InProgress{Unreplicated: p.unreplicated}
	for _, s := range p.allLocked() {
		inFlight, waiting := s.Engine.InProgress()
		sum.InFlight += inFlight
		sum.Waiting += waiting
		sum.Unreplicated += s.unreplicated()
	}
	return sum
}

// Drain waits until no run is in flight in any store, or the context ends.
func (p *Pool) Drain(ctx context.Context) {
	for _, s := range p.all() {
		_ = s.Drain(ctx) // Exit logs what is left
	}
}

// Exit ends all runs that are still in flight as unknown, and waits for the stores to close.
// The process is about to exit, and its configuration has left.
func (p *Pool) Exit() {
	var exits sync.WaitGroup
	for _, s := range p.all() {
		exits.Go(s.exit)
	}
	exits.Wait()
}

// exitTimeout is how long a process that exits waits for a store to close.
const exitTimeout = 5 * time.Second

func (s *Store) exit() {
	if err := s.Abandon(); err != nil {
		s.log.logger.Error("the process exits with work undone", zap.String("store", s.name), zap.Error(err))
		return
	}
	if s.UsedBy() > 0 {
		return // by requests that were cut off
	}
	timer := time.NewTimer(exitTimeout)
	defer timer.Stop()
	select {
	case <-s.closed:
	case <-timer.C:
		s.log.logger.Error("the store does not close; the process exits as if it had crashed", zap.String("store", s.name))
	}
}
