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
		w.history = dashboard.NewHistory(&ends)
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

// ends counts for the pages how runs have ended in this process. How many requests had
// which outcome is counted for the metrics.
var ends endCounts

type endCounts struct{ failed, held, savedMillis atomic.Uint64 }

// spare counts the time of a run whose answer a duplicate gets.
func (c *endCounts) spare(r *idempotency.Record) {
	if took := r.Ended.Sub(r.Claimed); !r.Claimed.IsZero() && took > 0 {
		c.savedMillis.Add(uint64(took.Milliseconds()))
	}
}

// Counts implements [dashboard.Counter].
func (c *endCounts) Counts() map[string]uint64 {
	counts := processMetrics.byOutcome()
	counts[dashboard.RunFailed] = c.failed.Load()
	counts[dashboard.RunHeld] = c.held.Load()
	counts[dashboard.SavedMillis] = c.savedMillis.Load()
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
		ends.held.Add(1)
	case s.State == idempotency.Released:
		n.What = dashboard.Failed
		ends.failed.Add(1)
	}
	if s.Response != nil {
		n.Status = s.Response.Status
	}
	if !s.Counted {
		n.Attempt = 0
	}
	x.note(n)
}
