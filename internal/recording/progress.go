package recording

import (
	"net"
	"net/http"
	"sync"
	"time"
)

// progress watches a client while a response is written to it, and disconnects a client that
// accepts no bytes for too long. Returning writes are a poor measure: the kernel's buffer for a
// slow client empties in lumps. So progress counts the bytes that the client's system has
// acknowledged, where the kernel knows them (Linux, TCP). On a shared connection these may belong
// to another request, and only whole writes count.
//
// The client's program may read for a while what its system has accepted at once: a receiver
// reopens a full window only when the program has read a good part of it, and over loopback all of
// it. On Linux with its defaults, a client at 2 KiB/s acknowledges nothing there for 63 seconds,
// and one at 8 KiB/s for 16 (measured). So a client that has accepted a full window may be idle for
// maxReading times longer, and for a smaller window in proportion: with the defaults, a client at
// about 2 KiB/s is fast enough.
type progress struct {
	limit   WriteLimit
	conn    net.Conn
	control http.ResponseController

	mu      sync.Mutex
	timer   *time.Timer
	writing bool
	checked bool  // check has run since the write started
	written int64 // by the writes that have ended
	// accepted is how many bytes the client had accepted at the last check. since is when the
	// client last accepted some, or when the write started.
	accepted int64
	since    time.Time
	// lump is how many bytes the client has accepted since the last pause. paused reports whether
	// it had accepted nothing more at the last check.
	lump   int64
	paused bool
	// ended reports whether the write was ended by its deadline.
	ended bool
}

const (
	// fullWindow is how many bytes a system accepts for a program that does not read.
	fullWindow = 128 << 10
	// maxReading is for how many times client_idle the program may be reading a full window.
	maxReading = 6
	// minCheckInterval is the shortest interval between two checks of a write.
	minCheckInterval = 500 * time.Millisecond
	// resetTimeout is how long the server may take to tell the client of a reset HTTP/2 stream.
	resetTimeout = 5 * time.Second
)

func (p *progress) interval() time.Duration { return max(p.limit.Idle/4, minCheckInterval) }

// startWrite starts to watch a write.
func (p *progress) startWrite() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writing, p.checked, p.since = true, false, time.Now()
	if p.timer == nil {
		p.accepted = p.acceptedNow()
		p.timer = time.AfterFunc(p.interval(), p.check)
		return
	}
	p.timer.Reset(p.interval())
}

// endWrite stops watching a write, of n bytes.
func (p *progress) endWrite(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writing = false
	p.written += int64(n)
	if p.timer != nil {
		p.timer.Stop()
	}
}

// check ends the write if its client has accepted nothing for too long.
func (p *progress) check() {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !p.writing:
		return
	case p.ended: // the reset of the stream has not reached the client
		_ = p.conn.Close()
		return
	}
	now, accepted := time.Now(), p.acceptedNow()
	if accepted > p.accepted {
		if p.paused {
			p.lump = 0
		}
		p.lump += accepted - p.accepted
		if p.accepted, p.paused = accepted, false; p.checked { // before the first check, it may have been accepted before the write
			p.since = now
		}
	} else {
		p.paused = true
	}
	p.checked = true
	if left := p.allowed() - now.Sub(p.since); left > 0 {
		p.timer.Reset(min(left, p.interval()))
		return
	}
	if !p.limit.ByServer {
		_ = p.control.SetWriteDeadline(now) // without support for deadlines, the server's own timeouts apply
	}
	if p.limit.Shared && p.conn != nil {
		p.ended = true
		p.timer.Reset(resetTimeout)
	}
}

// acceptedNow returns how many bytes the client has accepted on its connection. If that is unknown, it
// returns how many were written.
func (p *progress) acceptedNow() int64 {
	if !p.limit.Shared {
		if acked, known := ackedBytes(p.conn); known {
			return acked
		}
	}
	return p.written
}

// allowed returns for how long the client may accept nothing.
func (p *progress) allowed() time.Duration {
	full := float64(min(p.lump, fullWindow)) / fullWindow
	return p.limit.Idle + time.Duration(full*maxReading*float64(p.limit.Idle))
}
