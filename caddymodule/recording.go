package caddymodule

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// recording is the body of one response, as it comes from the upstream, at the
// upstream's pace. Any number of readers follow it, each at its own: the client of the
// run, and the duplicates that follow a stream. What a reader does changes nothing for
// the run or for other readers.
type recording struct {
	// declared is the length that the response promises, -1 for none. The last byte of
	// such a response is not shown before it is whole: a client must not know of a
	// response that is not stored.
	declared int64
	taken    *allowance

	mu sync.Mutex
	// changed is closed at the next change; nil while nobody waits for one.
	changed chan struct{}
	// body begins behind the bytes that were dropped.
	body    []byte
	dropped int64
	state   recordingState
	// holders are those who need the bytes: the run's client, followers, and the
	// engine until the response is stored.
	holders int
	// clientGone says that the client of the run reads no more.
	clientGone bool
}

// recordingState is how far a recording has come.
type recordingState int

const (
	// growing: bytes come, and all are kept.
	growing recordingState = iota
	// passing: the body is larger than is kept. What the client has is dropped, and the
	// upstream is read at the client's pace.
	passing
	// whole: all bytes have come, and the run is settled.
	whole
	// cut: no more bytes come, and some are missing.
	cut
)

// window is how many bytes of a passing body wait for its client, in bytes.
const window = 64 << 10

var errClientGone = errors.New("the client takes no more of the response")

func newRecording(taken *allowance) *recording {
	return &recording{declared: -1, taken: taken, holders: 1}
}

func (r *recording) changedLocked() {
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

func (r *recording) waitLocked() <-chan struct{} {
	if r.changed == nil {
		r.changed = make(chan struct{})
	}
	return r.changed
}

// add appends bytes that are kept, of a body of which that many are at most.
func (r *recording) add(p []byte, most int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.body == nil && r.declared > int64(len(p)) {
		r.body = make([]byte, 0, min(r.declared, most)) // the upstream's word is trusted
	}
	r.body = append(r.body, p...)
	r.changedLocked()
}

// pass appends bytes of a body that is larger than is kept. It waits until the client
// has taken what came before.
func (r *recording) pass(p []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state == growing {
		r.state = passing
		r.changedLocked()
	}
	for len(r.body) >= window && !r.clientGone {
		changed := r.waitLocked()
		r.mu.Unlock()
		<-changed // the client reads on, or is given up after client_idle
		r.mu.Lock()
	}
	if r.clientGone {
		return errClientGone
	}
	r.body = append(r.body, p...)
	r.changedLocked()
	return nil
}

// end says that no more bytes come.
func (r *recording) end(state recordingState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state = state
	r.taken.complete()
	r.changedLocked()
}

// leave says that the client of the run reads no more.
func (r *recording) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clientGone = true
	r.changedLocked()
}

// next returns the bytes from an offset on that may be shown, how far the recording is,
// and what is closed when that has changed.
func (r *recording) next(offset int64) ([]byte, recordingState, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if offset < r.dropped {
		return nil, cut, nil // a follower of a body that is not kept
	}
	shown := r.body[offset-r.dropped:]
	if total := r.dropped + int64(len(r.body)); r.state == growing && r.declared > 0 && total >= r.declared {
		shown = shown[:max(0, int64(len(shown))-(total-r.declared+1))]
	}
	return shown, r.state, r.waitLocked()
}

// took says that the run's client has all up to an offset. Of a passing body these are
// dropped, and their room is given back.
func (r *recording) took(offset int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != passing || offset == r.dropped {
		return
	}
	n := offset - r.dropped
	r.body, r.dropped = r.body[n:], offset
	if len(r.body) <= window { // so that what is left of a large one is copied once
		r.body = append(make([]byte, 0, len(r.body)), r.body...)
	}
	r.taken.giveBack(n)
	r.changedLocked()
}

// hold keeps the bytes for one more. It reports false where they are gone.
func (r *recording) hold() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.holders == 0 {
		return false
	}
	r.holders++
	return true
}

// drop is for a holder that needs the bytes no more.
func (r *recording) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holders--
	if r.holders == 0 {
		r.body = nil
		r.taken.giveAllBack()
	}
}

// clientWriter writes a recording to one client, at that client's pace.
type clientWriter struct {
	client  http.ResponseWriter
	control *http.ResponseController
	// idle is how long the client may take nothing; 0 leaves that to the server's own
	// timeouts.
	idle time.Duration
	// flushes says that each piece is to reach the client at once.
	flushes bool
}

// newClientWriter returns a delivery to a client. Where the server has a limit of its own for
// writing, that one counts.
func newClientWriter(w http.ResponseWriter, r *http.Request, idle time.Duration) *clientWriter {
	server, _ := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if server != nil && server.WriteTimeout > 0 {
		idle = 0
	}
	return &clientWriter{client: w, control: http.NewResponseController(w), idle: idle}
}

// piece is how much is written at a time: what the client has to take within idle.
const piece = 32 << 10

// write writes bytes. The error says that the client is gone, or took nothing for too
// long.
func (d *clientWriter) write(p []byte) error {
	for len(p) > 0 {
		n := min(len(p), piece)
		d.setDeadline(d.idle)
		if _, err := d.client.Write(p[:n]); err != nil {
			return err
		}
		p = p[n:]
	}
	if d.flushes {
		return d.flush()
	}
	return nil
}

func (d *clientWriter) flush() error {
	d.setDeadline(d.idle)
	if err := d.control.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// setDeadline limits the next write. Where none can be set the server's own timeouts
// apply.
func (d *clientWriter) setDeadline(after time.Duration) {
	if d.idle > 0 {
		_ = d.control.SetWriteDeadline(time.Now().Add(after))
	}
}

// done leaves the connection without a deadline of ours, for the next request on it.
func (d *clientWriter) done() {
	if d.idle > 0 {
		_ = d.control.SetWriteDeadline(time.Time{})
	}
}

// follow writes a recording from its first byte to its end. It reports how that was:
// whole, or cut for whatever reason. took is told, again and again, how far the client
// is.
func (d *clientWriter) follow(ctx context.Context, r *recording, took func(offset int64)) recordingState {
	var offset int64
	for {
		took(offset)
		shown, state, changed := r.next(offset)
		if len(shown) > 0 {
			shown = shown[:min(len(shown), piece)]
			if err := d.write(shown); err != nil {
				return cut
			}
			offset += int64(len(shown))
			continue
		}
		if state == whole || state == cut {
			return state
		}
		d.done() // HTTP/2 resets a stream whose deadline passes, even if nothing is written
		select {
		case <-changed:
		case <-ctx.Done():
			return cut
		}
	}
}
