package caddymodule

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
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
	// abandoned is called when a body is passing and its last reader has left: nobody
	// needs the rest.
	abandoned func()

	mu sync.Mutex
	// changed is closed at the next change; nil while nobody waits for one.
	changed chan struct{}
	// body begins behind the bytes that were dropped.
	body    []byte
	dropped int64
	state   recordingState
	readers []*reader
	// kept says how many others need the bytes: the engine, until the response is
	// stored.
	kept int
}

// recordingState is how far a recording has come.
type recordingState int

const (
	// growing: bytes come, and all are kept.
	growing recordingState = iota
	// passing: the body is larger than is kept. What all readers have is dropped, and
	// the upstream is read at the pace of the slowest.
	passing
	// whole: all bytes have come, and the run is settled.
	whole
	// cut: no more bytes come, and some are missing.
	cut
)

const (
	// window is how many bytes of a passing body wait for its readers, in bytes.
	window = 64 << 10
	// readerPatience is how long a reader of a passing body may take nothing while
	// another one waits for more: then it is cut, and the others go on.
	readerPatience = 5 * time.Second
)

var errNoReaders = errors.New("nobody takes the rest of the response")

func newRecording(taken *allowance) *recording {
	return &recording{declared: -1, taken: taken, abandoned: func() {}}
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

// pass appends bytes of a body that is larger than is kept. It waits until its readers
// have taken what came before.
func (r *recording) pass(p []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state == growing {
		r.state = passing
		r.taken.complete()
		r.dropLocked()
	}
	for len(r.body) >= window && len(r.readers) > 0 {
		r.awaitReadersLocked()
	}
	if len(r.readers) == 0 {
		return errNoReaders
	}
	r.body = append(r.body, p...)
	r.taken.count(len(p))
	r.changedLocked()
	return nil
}

// awaitReadersLocked waits until something changes. Readers that take nothing although
// others wait for more are cut.
func (r *recording) awaitReadersLocked() {
	behind, total := r.dropped, r.dropped+int64(len(r.body))
	var patience <-chan time.Time // a client alone is given up after client_idle
	if slices.ContainsFunc(r.readers, func(rd *reader) bool { return rd.offset == total }) {
		timer := time.NewTimer(readerPatience)
		defer timer.Stop()
		patience = timer.C
	}
	changed := r.waitLocked()
	r.mu.Unlock()
	select {
	case <-changed:
		r.mu.Lock()
	case <-patience:
		r.mu.Lock()
		r.readers = slices.DeleteFunc(r.readers, func(rd *reader) bool { return rd.offset == behind })
		r.dropLocked()
	}
}

// end says that no more bytes come. Only its first call counts.
func (r *recording) end(state recordingState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state == growing || r.state == passing {
		r.state = state
	}
	r.taken.complete()
	r.dropLocked()
}

// keep keeps the bytes until unkeep is called.
func (r *recording) keep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept++
}

func (r *recording) unkeep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept--
	r.dropLocked()
}

// dropLocked drops what nobody needs any more, and gives its room back.
func (r *recording) dropLocked() {
	switch {
	case len(r.readers) == 0 && (r.state == passing || r.state != growing && r.kept == 0):
		r.body = nil
		r.taken.giveAllBack()
	case r.state == passing && len(r.readers) > 0:
		needed := slices.MinFunc(r.readers, func(a, b *reader) int { return cmp.Compare(a.offset, b.offset) }).offset
		if n := needed - r.dropped; n > 0 {
			r.body, r.dropped = r.body[n:], needed
			if len(r.body) <= window { // so that what is left of a large one is copied once
				r.body = append(make([]byte, 0, len(r.body)), r.body...)
			}
			r.taken.giveBack(n)
		}
	}
	r.changedLocked()
}

// reader follows a recording from its first byte.
type reader struct {
	of     *recording
	offset int64 // under the recording's lock, like the list of readers
}

// reader returns a new reader, or nil where the first bytes are gone.
func (r *recording) reader() *reader {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state == passing || r.dropped > 0 || r.state != growing && len(r.readers) == 0 && r.kept == 0 {
		return nil
	}
	rd := &reader{of: r}
	r.readers = append(r.readers, rd)
	return rd
}

// next returns bytes that may be shown and were not taken yet, how far the recording is,
// and what is closed when that has changed. To a reader that was left behind the
// recording is cut.
func (rd *reader) next() ([]byte, recordingState, <-chan struct{}) {
	r := rd.of
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Contains(r.readers, rd) {
		return nil, cut, nil
	}
	shown := r.body[rd.offset-r.dropped:]
	if total := r.dropped + int64(len(r.body)); r.state == growing && r.declared > 0 && total >= r.declared {
		shown = shown[:max(0, int64(len(shown))-(total-r.declared+1))]
	}
	return shown, r.state, r.waitLocked()
}

// took says that the reader has taken that many bytes more.
func (rd *reader) took(n int) {
	r := rd.of
	r.mu.Lock()
	defer r.mu.Unlock()
	rd.offset += int64(n)
	if r.state == passing {
		r.dropLocked()
	}
}

// leave says that the reader takes no more. It may be called again.
func (rd *reader) leave() {
	r := rd.of
	r.mu.Lock()
	defer r.mu.Unlock()
	had := len(r.readers)
	r.readers = slices.DeleteFunc(r.readers, func(other *reader) bool { return other == rd })
	if len(r.readers) == had {
		return
	}
	r.dropLocked()
	if r.state == passing && len(r.readers) == 0 {
		r.abandoned()
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
// whole, or cut for whatever reason.
func (d *clientWriter) follow(ctx context.Context, rd *reader) recordingState {
	for {
		shown, state, changed := rd.next()
		if len(shown) > 0 {
			shown = shown[:min(len(shown), piece)]
			if err := d.write(shown); err != nil {
				return cut
			}
			rd.took(len(shown))
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
