package caddymodule

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/dashboard"
	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// watched is what this process keeps of its past for all pages. It lives from the first
// configuration with a page to the last one, and so over reloads.
var watched watching

type watching struct {
	mu      sync.Mutex
	pages   int
	end     context.CancelFunc
	ended   chan struct{}
	history *dashboard.History
	// journal is nil while there is no page.
	journal atomic.Pointer[dashboard.Journal]
}

func (w *watching) enter() (*dashboard.History, *dashboard.Journal) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pages++
	if w.pages == 1 {
		w.history = dashboard.NewHistory(tallied)
		w.journal.Store(dashboard.NewJournal())
		ctx, end := context.WithCancel(context.Background())
		ended := make(chan struct{})
		history := w.history
		go func() {
			defer close(ended)
			history.Run(ctx)
		}()
		w.end, w.ended = end, ended
	}
	return w.history, w.journal.Load()
}

func (w *watching) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pages--; w.pages > 0 {
		return
	}
	w.end()
	<-w.ended
	w.history = nil
	w.journal.Store(nil)
}

// tallied counts what becomes of requests and runs in this process.
var tallied = newTallies()

// tallies are counters by name.
type tallies map[string]*atomic.Uint64

func newTallies() tallies {
	t := tallies{dashboard.RunFailed: {}, dashboard.RunHeld: {}, dashboard.SavedMillis: {}}
	for _, o := range outcomes {
		t[string(o)] = new(atomic.Uint64)
	}
	return t
}

func (t tallies) count(name string) {
	if counter, known := t[name]; known {
		counter.Add(1)
	}
}

// spare counts the time of a run whose answer a duplicate gets.
func (t tallies) spare(r *idempotency.Record) {
	if took := r.Ended.Sub(r.Claimed); !r.Claimed.IsZero() && took > 0 {
		t[dashboard.SavedMillis].Add(uint64(took.Milliseconds()))
	}
}

// Counts implements [dashboard.Counter].
func (t tallies) Counts() map[string]uint64 {
	counts := make(map[string]uint64, len(t))
	for name, counter := range t {
		counts[name] = counter.Load()
	}
	return counts
}

// note tells the pages, if there are any, what happened to the request's key.
func (x *exchange) note(n dashboard.Note) {
	journal := watched.journal.Load()
	if journal == nil || x.key == (idempotency.Key{}) {
		return
	}
	n.At, n.Key = time.Now(), x.key
	journal.Add(n)
}

// noteEnd counts and notes how a run has ended.
func (x *exchange) noteEnd(run *engine.Run, s idempotency.Settlement, err error) {
	n := dashboard.Note{What: dashboard.Ended, ExecutionID: run.ExecutionID(), Attempt: run.Attempt()}
	switch {
	case errors.Is(err, idempotency.ErrFenced):
		return // another run has the key, and its end counts
	case s.State == idempotency.Held:
		n.What = dashboard.Unknown
		tallied.count(dashboard.RunHeld)
	case s.State == idempotency.Released:
		n.What = dashboard.Failed
		tallied.count(dashboard.RunFailed)
	}
	if s.Response != nil {
		n.Status = s.Response.Status
	}
	if !s.Counted {
		n.Attempt = 0
	}
	x.note(n)
}
