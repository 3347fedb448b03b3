package exchange

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
// the run or for other readers, until the body outgrows what is kept: then the run's
// client holds the upstream back, and the others have to keep up with it.
type recording struct {
	// Declared is the length that the response promises, -1 for none. The last byte of
	// such a response is not shown before it is whole, and not at all if it is cut behind
	// that: a client must not know of a response that is not stored.
	Declared int64
	// Taken is the room that the bytes take of the budget.
	Taken *Allowance
	// room is how many bytes were taken of the budget before they came.
	room int64
	// Abandoned is called when a body is passing and its last reader has left: the rest
	// is not needed.
	Abandoned func()

	mu sync.Mutex
	// changed is closed at the next change; nil while no reader waits for one.
	changed chan struct{}
	// body has the bytes, but for those that were dropped.
	body    chunkBuffer
	state   recordingState
	readers []*recordingReader
	// first is the array of readers at the beginning: most recordings have only one.
	first [1]*recordingReader
	own   *recordingReader // the run's client's
	// kept is how many others need the bytes: the engine, until the response is
	// stored.
	kept int
}

// recordingState is how far a recording has come.
type recordingState int

const (
	// stateGrowing: bytes come, and all are kept.
	stateGrowing recordingState = iota
	// statePassing: the body is larger than is kept. What all readers have read is dropped, and
	// the upstream is read at the pace of the run's client.
	statePassing
	// stateWhole: all bytes have come, and the run is settled.
	stateWhole
	// stateCut: no more bytes come, and some are missing.
	stateCut
)

// window is how many bytes of a passing body wait for its readers. They take no room of the
// budget.
const window = 64 << 10

// maxDelay is how long, in all, a follower may delay the reader that leads a passing body.
const maxDelay = time.Second

var errNoReaders = errors.New("no client reads the rest of the response")

// Init makes a zero recording one without any bytes, which takes its room from the
// allowance.
func (r *recording) Init(taken *Allowance) {
	r.Declared, r.Taken, r.Abandoned = -1, taken, func() {}
	r.readers = r.first[:0]
}

func (r *recording) changedLocked() {
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

func (r *recording) awaitLocked() <-chan struct{} {
	if r.changed == nil {
		r.changed = make(chan struct{})
	}
	return r.changed
}

// Needs returns how many bytes have to be taken of the budget before n more are added, of
// a body of which most are kept. written counts all bytes, the n among them.
func (r *recording) Needs(n int, written, most int64) int {
	switch {
	case n > 0 && written == int64(n) && r.Declared > written: // an empty write comes before the first bytes
		r.room = min(r.Declared, most) // the upstream's word is trusted, and counts
		return int(r.room)
	case written <= r.room:
		return 0
	default:
		return n
	}
}

// Add appends bytes that are kept.
func (r *recording) Add(p []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.body.end == 0 && r.room > 0 && r.room == r.Declared { // else it is larger than is kept
		r.body.Reserve(int(r.room))
	}
	r.body.Append(p)
	r.changedLocked()
}

// Pass appends bytes of a body that is larger than is kept. It waits until the run's client has
// read what came before, and cuts the other readers that lag behind. The error says that there
// are no readers.
func (r *recording) Pass(p []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state == stateGrowing {
		r.state = statePassing
		r.Taken.Release(max(0, r.room-int64(r.body.Len())))
		r.dropLocked()
	}
	for {
		for len(r.readers) > 0 && r.body.end-r.leadLocked() >= window {
			r.waitLocked(nil)
		}
		r.awaitFollowersLocked()
		if len(r.readers) == 0 {
			return errNoReaders
		}
		n := min(len(p), window)
		r.body.Append(p[:n])
		r.changedLocked()
		if p = p[n:]; len(p) == 0 {
			return nil
		}
	}
}

// leadLocked returns how far the run's client has read or, if it has left, the fastest reader.
func (r *recording) leadLocked() (offset int64) {
	for _, rd := range r.readers {
		if rd == r.own {
			return rd.offset
		}
		offset = max(offset, rd.offset)
	}
	return offset
}

// awaitFollowersLocked waits for the readers that are a window behind the one that leads. Those that
// are fast enough are only not scheduled yet. One that has delayed it for too long is cut.
func (r *recording) awaitFollowersLocked() {
	for {
		lead, left := r.leadLocked(), maxDelay
		lags := func(rd *recordingReader) bool { return lead-rd.offset >= window }
		if !slices.ContainsFunc(r.readers, lags) {
			return
		}
		lagging := slices.DeleteFunc(slices.Clone(r.readers), func(rd *recordingReader) bool { return !lags(rd) })
		for _, rd := range lagging {
			left = min(left, maxDelay-rd.delayed)
		}
		began, timeout := time.Now(), time.NewTimer(left)
		r.waitLocked(timeout.C)
		timeout.Stop()
		for _, rd := range lagging {
			rd.delayed += time.Since(began)
		}
		readers := len(r.readers)
		r.readers = slices.DeleteFunc(r.readers, func(rd *recordingReader) bool { return lags(rd) && rd.delayed >= maxDelay })
		if len(r.readers) < readers {
			r.dropLocked()
		}
	}
}

// waitLocked waits for the next change, or until the timeout.
func (r *recording) waitLocked(timeout <-chan time.Time) {
	changed := r.awaitLocked()
	r.mu.Unlock()
	defer r.mu.Lock()
	select {
	case <-changed:
	case <-timeout:
	}
}

// End ends the recording: no more bytes come. Only its first call counts.
func (r *recording) Close(state recordingState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state == stateGrowing || r.state == statePassing {
		r.state = state
	}
	r.dropLocked()
}

// held returns how many bytes are held, and whether they are in one piece.
func (r *recording) held() (n int, joined bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.body.Len(), len(r.body.more) == 0
}

// Bytes returns the bytes that are held, when no more come. They are there twice meanwhile, for
// which the caller takes room.
func (r *recording) Bytes() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.body.Join()
}

// Keep keeps the bytes until [recording.Unkeep] is called.
func (r *recording) Keep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept++
}

// Unkeep ends one [recording.Keep].
func (r *recording) Unkeep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept--
	r.dropLocked()
}

// dropLocked drops what is no longer needed, and releases its room.
func (r *recording) dropLocked() {
	switch {
	case len(r.readers) == 0 && (r.state == statePassing || r.state != stateGrowing && r.kept == 0):
		r.body.Drop()
		r.Taken.ReleaseAll()
	case r.state == statePassing && len(r.readers) > 0:
		needed := slices.MinFunc(r.readers, func(a, b *recordingReader) int { return cmp.Compare(a.offset, b.offset) }).offset
		if n := needed - r.body.begin; n > 0 {
			r.body.dropTo(needed)
			r.Taken.Release(n)
		}
	}
	r.changedLocked()
}

// recordingReader follows a recording from its first byte.
type recordingReader struct {
	of *recording
	// Under the recording's lock, like the list of readers:
	offset  int64
	delayed time.Duration // for how long it has delayed the reader that leads
}

// NewReader returns a new reader, or nil if the first bytes are gone.
func (r *recording) NewReader() *recordingReader {
	rd := new(recordingReader)
	if !rd.attach(r) {
		return nil
	}
	return rd
}

// Begin makes a reader of a recording of a zero one, and reports whether it can: see
// [recording.NewReader].
func (rd *recordingReader) attach(r *recording) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state == statePassing || r.body.begin > 0 || r.state != stateGrowing && len(r.readers) == 0 && r.kept == 0 {
		return false
	}
	rd.of = r
	r.readers = append(r.readers, rd)
	return true
}

// next returns bytes that may be shown and were not read yet, how far the recording is,
// and, if there is nothing to show yet, a channel that is closed when that has changed. To a
// reader that has left, the recording is cut.
func (rd *recordingReader) next() ([]byte, recordingState, <-chan struct{}) {
	r := rd.of
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Contains(r.readers, rd) {
		return nil, stateCut, nil
	}
	shown := r.body.from(rd.offset)
	if (r.state == stateGrowing || r.state == stateCut) && r.Declared > 0 { // the last byte comes with the end, if that is whole
		shown = shown[:max(0, min(int64(len(shown)), r.Declared-1-rd.offset))]
	}
	if len(shown) > 0 || r.state == stateWhole || r.state == stateCut {
		return shown, r.state, nil
	}
	return nil, r.state, r.awaitLocked()
}

// took moves the reader on by n bytes.
func (rd *recordingReader) took(n int) {
	r := rd.of
	r.mu.Lock()
	defer r.mu.Unlock()
	rd.offset += int64(n)
	if r.state == statePassing {
		r.dropLocked()
	}
}

// Leave ends the reader. It may be called again.
func (rd *recordingReader) Leave() {
	r := rd.of
	r.mu.Lock()
	defer r.mu.Unlock()
	had := len(r.readers)
	r.readers = slices.DeleteFunc(r.readers, func(other *recordingReader) bool { return other == rd })
	if len(r.readers) == had {
		return
	}
	r.dropLocked()
	if r.state == statePassing && len(r.readers) == 0 {
		r.Abandoned()
	}
}
