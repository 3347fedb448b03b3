package recording

import (
	"net"
	"net/http"
	"sync"
	"time"
)

// progress is how far a client has come with what is written to it. Its methods are those of
// [budget.Client].
//
// Returning writes are a poor measure: the kernel's buffer for a slow client empties in lumps, and a write
// may block for 10 s at 1 Mbit/s (measured). So the bytes count that the client's system has acknowledged,
// where the kernel knows them (Linux, TCP). On a shared connection these may belong to another request, and
// only whole writes count.
type progress struct {
	limit WriteLimit
	conn  net.Conn
	leads *Recording // of which the client is the run's own; nil for any other
	// server is the innermost writer: its deadline ends a write of any writer around it.
	server http.ResponseController

	mu      sync.Mutex
	writing bool
	acked   int64     // unknown until the write was looked at
	since   time.Time // when the client last took something, or when the write started
	cut     time.Time // when the client was disconnected first; zero if it was not
}

const unknown = -1

// resetTimeout is how long the server may take to tell the client of a reset HTTP/2 stream.
const resetTimeout = 5 * time.Second

// newProgress returns the progress of a client.
func newProgress(w http.ResponseWriter, conn net.Conn, limit WriteLimit) *progress {
	for {
		around, is := w.(interface{ Unwrap() http.ResponseWriter })
		if !is {
			return &progress{limit: limit, conn: conn, server: *http.NewResponseController(w)}
		}
		w = around.Unwrap()
	}
}

// startWrite notes that a write starts. It returns an error if the client was disconnected.
func (p *progress) startWrite() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.cut.IsZero() {
		return errIdle
	}
	p.writing, p.since, p.acked = true, time.Now(), unknown
	return nil
}

// endWrite notes that a write has ended.
func (p *progress) endWrite() {
	p.mu.Lock()
	p.writing = false
	p.mu.Unlock()
}

func (p *progress) ackedNow() (n int64, known bool) {
	if p.limit.Shared {
		return 0, false
	}
	return ackedBytes(p.conn)
}

// Sample implements [budget.Client].
func (p *progress) Sample(now time.Time, waits bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.writing {
		return
	}
	before := p.since
	if waits {
		p.since = now
	}
	switch acked, known := p.ackedNow(); {
	case !known:
	case p.acked == unknown:
		p.acked = acked
	case acked > p.acked:
		p.acked, p.since = acked, now
	}
	if p.leads != nil && p.since != before {
		p.leads.ownTook.Store(now.UnixNano())
	}
}

// Idle implements [budget.Client].
func (p *progress) Idle(now time.Time) (since time.Time, idle bool) {
	p.Sample(now, false)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.since, p.writing && now.Sub(p.since) >= p.limit.Idle
}

// Waiting implements [budget.Client].
func (p *progress) Waiting() string { return p.limit.Within }

// Disconnect implements [budget.Client]. A deadline resets an HTTP/2 stream, which sends a frame to the
// client. If the whole connection takes nothing, the frame is not sent, and the connection is closed. Caddy's
// own writer sets a deadline before each write, so that this one is set again until the write has ended.
func (p *progress) Disconnect(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut.IsZero() {
		p.cut = now
	}
	if !p.writing {
		return
	}
	_ = p.server.SetWriteDeadline(now) // without support for deadlines, the server's own timeouts apply
	if p.conn != nil && now.Sub(p.cut) >= resetTimeout {
		_ = p.conn.Close()
	}
}
