package exchange

import (
	"net"
	"net/http"
	"sync"
	"time"
)

// progress watches a client while a response is written to it, and disconnects one that accepts no
// bytes for too long. A write says little: what the kernel holds for a slow client leaves in lumps.
// So the bytes that the client's system has acknowledged count, where the kernel tells (Linux, TCP).
// Of a connection that is shared, they may be another request's, and only whole writes count.
//
// What the client's system has accepted at once, its program may be reading for a while: a receiver
// opens a full window only when a good part of it was read, and over loopback when all of it was. On
// Linux with its defaults, a client at 2 KiB/s acknowledges nothing there for 63 seconds, and one at
// 8 KiB/s for 16 (measured). So a full window counts as being read for maxReading times as long as the
// client may be idle, and a smaller one in proportion: with the default, at about 2 KiB/s.
type progress struct {
	limit   writeLimit
	conn    net.Conn
	control http.ResponseController

	mu      sync.Mutex
	timer   *time.Timer
	writing bool
	checked bool  // since the write began
	written int64 // by the writes that have ended
	// accepted is what the client had accepted at the latest look. since is when that was less, or
	// when the write began.
	accepted int64
	since    time.Time
	// lump is how much the client has accepted from look to look since it accepted nothing; paused
	// reports whether it had accepted nothing more at the latest look.
	lump   int64
	paused bool
	// ended reports whether the write was ended.
	ended bool
}

const (
	// fullWindow is what a system accepts for a program that does not read, in bytes.
	fullWindow = 128 << 10
	// maxReading is for how many times client_idle a full window is being read.
	maxReading = 6
	// minCheckInterval is how often, at most, a write is looked at.
	minCheckInterval = 500 * time.Millisecond
	// resetTimeout is how long the server may take to tell the client of a reset HTTP/2 stream.
	resetTimeout = 5 * time.Second
)

func (p *progress) interval() time.Duration { return max(p.limit.idle/4, minCheckInterval) }

// begin begins to watch a write.
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

// end ends that, after n bytes.
func (p *progress) endWrite(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writing = false
	p.written += int64(n)
	if p.timer != nil {
		p.timer.Stop()
	}
}

// look ends a write whose client has accepted nothing for too long.
func (p *progress) check() {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !p.writing:
		return
	case p.ended: // and the end has not reached the client
		_ = p.conn.Close()
		return
	}
	now, accepted := time.Now(), p.acceptedNow()
	if accepted > p.accepted {
		if p.paused {
			p.lump = 0
		}
		p.lump += accepted - p.accepted
		if p.accepted, p.paused = accepted, false; p.checked { // else it was accepted when the write began
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
	if !p.limit.byServer {
		_ = p.control.SetWriteDeadline(now) // if it can have none, the server's own timeouts apply
	}
	if p.limit.shared && p.conn != nil {
		p.ended = true
		p.timer.Reset(resetTimeout)
	}
}

// acceptedNow returns how many bytes the client has accepted on its connection or, where that is
// unknown, how many were written.
func (p *progress) acceptedNow() int64 {
	if !p.limit.shared {
		if acked, known := ackedBytes(p.conn); known {
			return acked
		}
	}
	return p.written
}

// allowed returns for how long the client may accept nothing.
func (p *progress) allowed() time.Duration {
	full := float64(min(p.lump, fullWindow)) / fullWindow
	return p.limit.idle + time.Duration(full*maxReading*float64(p.limit.idle))
}
