package caddymodule

import (
	"net/http"
	"sync"
	"time"
)

const (
	// mostEarly is how many informational responses of a run wait for its client.
	mostEarly = 4
	// earlyPatience is how long a run waits for a client that takes the first of them, so
	// that handlers in front, through which it goes, are not at work beside those behind; and
	// when its answer becomes a stream.
	earlyPatience = time.Second
)

// earlyResponses pass informational responses (1xx, RFC 9110, section 15.2) on to the
// client of a run, in a goroutine of their own: a run does not wait for a client that takes
// nothing. While it takes none, further ones are left out. Nothing else is written to the
// client meanwhile.
type earlyResponses struct {
	mu      sync.Mutex
	waiting []earlyResponse
	// passed is closed when none is left, nil where there was none.
	passed chan struct{}
}

type earlyResponse struct {
	status int
	header http.Header
}

func (e *earlyResponses) send(c *capture, next earlyResponse) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case len(e.waiting) == mostEarly:
	case e.passed != nil && !isClosed(e.passed):
		e.waiting = append(e.waiting, next)
	default:
		if e.passed == nil {
			c.found = c.found.Clone() // the client's own one is about to change
		}
		e.waiting, e.passed = append(e.waiting, next), make(chan struct{})
		go e.pass(c, c.found, e.passed)
		e.mu.Unlock()
		defer e.mu.Lock()
		e.awaitFor(earlyPatience)
	}
}

// pass writes to the client what waits. before is the header that the client then has again.
func (e *earlyResponses) pass(c *capture, before http.Header, passed chan struct{}) {
	defer func() {
		if failed := recover(); failed != nil {
			c.panicked = failed // for the request's own goroutine
			e.mu.Lock()
			defer e.mu.Unlock()
			e.waiting = nil
			close(passed)
		}
	}()
	for {
		e.mu.Lock()
		if len(e.waiting) == 0 {
			close(passed)
			e.mu.Unlock()
			return
		}
		next := e.waiting[0]
		e.mu.Unlock()
		c.replaceHeader(next.header)
		c.toClient.Inform(next.status)
		c.replaceHeader(before)
		e.mu.Lock()
		e.waiting = e.waiting[1:]
		e.mu.Unlock()
	}
}

// await waits until the client has all, or is gone.
func (e *earlyResponses) await() {
	if e.passed != nil {
		<-e.passed
	}
}

// awaitFor is await for so long, and reports whether it was long enough.
func (e *earlyResponses) awaitFor(patience time.Duration) bool {
	if e.passed == nil || isClosed(e.passed) {
		return true
	}
	over := time.NewTimer(patience)
	defer over.Stop()
	select {
	case <-e.passed:
		return true
	case <-over.C:
		return false
	}
}

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}
