package caddymodule

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"time"
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
	// room is how many bytes were taken of the budget before they came.
	room int64
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

func (r *recording) changedLocked() { wakeAll(&r.changed) }

// needs returns how many bytes have to be taken of the budget before n more are added, of
// a body of which that many are kept at most. written counts them all.
func (r *recording) needs(n int, written, most int64) int {
	switch {
	case written == int64(n) && r.declared > written:
		r.room = min(r.declared, most) // the upstream's word is trusted, and counts
		return int(r.room)
	case written <= r.room:
		return 0
	default:
		return n
	}
}

// add appends bytes that are kept.
func (r *recording) add(p []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.body == nil && r.room > 0 {
		r.body = make([]byte, 0, r.room)
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
		r.taken.giveBack(max(0, r.room-int64(len(r.body))))
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
	changed := awaited(&r.changed)
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
		r.dropped += int64(len(r.body))
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
	return shown, r.state, awaited(&r.changed)
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
