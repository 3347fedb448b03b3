package recording

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
)

// Recording is the body of one response, as it comes from the upstream, at the upstream's pace. Any
// number of readers follow it, each at its own pace: the client of the run, and the duplicates that
// follow a stream. A reader delays neither the run nor other readers, until the body outgrows what
// is kept: then the run's client holds the upstream back, and the other readers have to keep up
// with it.
type Recording struct {
	// Declared is the Content-Length, -1 for none. Readers get the last byte of such a response
	// only when it is whole, and not if it is cut behind that byte: a client must not get a
	// response that is not stored.
	Declared int64
	// Patience is how long the run's client may read nothing while others wait for it or
	// the run has to end; 0 for no limit.
	Patience time.Duration
	// Allowance is the room in the budget that the bytes take.
	Allowance *budget.Allowance
	// room is how many bytes of room were taken before the bytes came.
	room      int64
	abandoned func() // of [Recording.WhenAbandoned]

	mu sync.Mutex
	// changed is closed at the next change; nil while no reader waits for one.
	changed chan struct{}
	// body has the bytes that were not dropped.
	body    budget.Chunks
	state   State
	readers []*Reader
	// first is the initial array of readers: most recordings have only one.
	first [1]*Reader
	own   *Reader // that of the run's client
	// ownTook is when that has taken something, or when the body began to pass, in ns since 1970.
	ownTook atomic.Int64
	kept    bool // the engine needs the bytes until the response is stored
	users   int  // duplicates that are answered with the bytes
	// delayed is how long followers have delayed the leading reader.
	delayed time.Duration
}

// State is how far a recording has come.
type State uint8

const (
	// Growing: bytes come, and all of them are kept.
	Growing State = iota
	// Passing: the body has outgrown what is kept. What all readers have read is dropped, and
	// the upstream is read at the pace of the run's client.
	Passing
	// Whole: all bytes have come, and the run is settled.
	Whole
	// Cut: no more bytes come, and some are missing.
	Cut
)

// window is how many bytes of a passing body wait for its readers. They are not counted in the budget.
const window = 64 << 10

const (
	// maxDelay is how long, in all, followers may delay the leading reader of a passing body.
	maxDelay = time.Second
	// maxLag is how many bytes a follower may be behind when they have.
	maxLag = 4 * window
)

var errNoReaders = errors.New("no client reads the rest of the response")

// Init initializes a recording, which takes its room from the allowance.
func (r *Recording) Init(allowance *budget.Allowance) {
	r.Declared, r.Allowance, r.abandoned = -1, allowance, func() {}
	r.readers = r.first[:0]
}

// changedLocked notifies the readers that wait.
func (r *Recording) changedLocked() {
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

// awaitLocked returns a channel that is closed at the next change.
func (r *Recording) awaitLocked() <-chan struct{} {
	if r.changed == nil {
		r.changed = make(chan struct{})
	}
	return r.changed
}

// Needs returns how many bytes of room have to be taken before n more are added. written counts all
// bytes, including the n, and maxBody is how many are kept at most.
func (r *Recording) Needs(n int, written, maxBody int64) int {
	switch {
	case n > 0 && written == int64(n) && r.Declared > written: // an empty write comes before the first bytes
		r.room = min(r.Declared, maxBody) // room for the declared length is taken at once
		return int(r.room)
	case written <= r.room:
		return 0
	default:
		return n
	}
}

// Add appends bytes that are kept.
func (r *Recording) Add(p []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.body.End == 0 && r.room > 0 && r.room == r.Declared { // else the body is larger than is kept
		r.body.Reserve(int(r.room))
	}
	r.body.Append(p)
	r.changedLocked()
}

// Pass appends bytes of a body that has outgrown what is kept. It waits until the run's client has
// read what came before, and cuts other readers that lag behind. It returns an error if there are
// no readers.
func (r *Recording) Pass(p []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.passLocked()
	for {
		for start := time.Now(); r.isBehindLocked(0); {
			r.awaitLeadLocked(start, false)
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

// PassAhead appends bytes of a passing body without waiting for its readers. The caller has taken room for
// the bytes.
func (r *Recording) PassAhead(p []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.passLocked()
	r.body.Append(p)
	r.dropLocked()
}

// IsBehind reports whether [Recording.AwaitClient] would wait.
func (r *Recording) IsBehind(ahead int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.isBehindLocked(ahead)
}

// AwaitClient waits until the run's client has read a passing body but for a window and the last bytes, ahead of
// them. If it reads nothing for Patience, it is cut.
func (r *Recording) AwaitClient(ahead int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for start := time.Now(); r.isBehindLocked(ahead); {
		r.awaitLeadLocked(start, true)
	}
}

// passLocked begins to pass the body.
func (r *Recording) passLocked() {
	if r.state == Growing {
		r.state = Passing
		r.ownTook.Store(time.Now().UnixNano())
		r.Allowance.Release(max(0, r.room-int64(r.body.Len())))
		r.dropLocked()
	}
}

func (r *Recording) isBehindLocked(ahead int) bool {
	return len(r.readers) > 0 && r.body.End-int64(ahead)-r.leadLocked() >= window
}

// WhenAbandoned calls f when the last reader of a passing body has left: the rest is not needed.
func (r *Recording) WhenAbandoned(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.abandoned = f
	if len(r.readers) == 0 {
		f()
	}
}

// leadLocked returns how far the leading reader has read: the run's client or, if it has left, the
// fastest reader.
func (r *Recording) leadLocked() (offset int64) {
	for _, rd := range r.readers {
		if rd == r.own {
			return rd.offset
		}
		offset = max(offset, rd.offset)
	}
	return offset
}

// awaitLeadLocked waits, since start, for the leading reader. If that is the run's client and it reads nothing for
// Patience, although the run has to end or others have read all that there is, they go on without it.
func (r *Recording) awaitLeadLocked(start time.Time, hasToEnd bool) {
	if r.Patience == 0 || !hasToEnd && !slices.ContainsFunc(r.readers, func(rd *Reader) bool { return rd.offset == r.body.End }) {
		r.waitLocked(nil)
		return
	}
	left := r.Patience - time.Since(time.Unix(0, max(start.UnixNano(), r.ownTook.Load())))
	if left <= 0 {
		r.cutLocked(func(rd *Reader) bool { return rd == r.own })
		return
	}
	timeout := time.NewTimer(left)
	defer timeout.Stop()
	r.waitLocked(timeout.C)
}

// awaitFollowersLocked waits for the readers that are a window behind the leading one, for maxDelay in all.
// After that it waits for none, and cuts those that are maxLag behind: a reader that is fast enough may not
// have been scheduled yet.
func (r *Recording) awaitFollowersLocked() {
	lags := func(bytes int64) func(*Reader) bool {
		lead := r.leadLocked()
		return func(rd *Reader) bool { return lead-rd.offset >= bytes }
	}
	for r.delayed < maxDelay && slices.ContainsFunc(r.readers, lags(window)) {
		start, timeout := time.Now(), time.NewTimer(maxDelay-r.delayed)
		r.waitLocked(timeout.C)
		timeout.Stop()
		if r.delayed += time.Since(start); r.delayed >= maxDelay {
			r.cutLocked(lags(window))
			return
		}
	}
	r.cutLocked(lags(maxLag))
}

// cutLocked removes readers.
func (r *Recording) cutLocked(which func(*Reader) bool) {
	readers := len(r.readers)
	if r.readers = slices.DeleteFunc(r.readers, which); len(r.readers) < readers {
		r.dropLocked()
	}
}

// waitLocked waits for the next change, or for the timeout.
func (r *Recording) waitLocked(timeout <-chan time.Time) {
	changed := r.awaitLocked()
	r.mu.Unlock()
	defer r.mu.Lock()
	select {
	case <-changed:
	case <-timeout:
	}
}

// Close ends the recording: no more bytes come. Only the first call counts.
func (r *Recording) Close(state State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state == Growing || r.state == Passing {
		r.state = state
	}
	r.dropLocked()
}

// Held returns how many bytes are held, and whether they are in one chunk.
func (r *Recording) Held() (n int, joined bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.body.Len(), r.body.JoinCost() == 0
}

// Bytes returns the bytes that are held, in one slice. No more bytes may come. Joining them takes a
// copy, for which the caller takes room.
func (r *Recording) Bytes() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.body.Join()
}

// Keep keeps the bytes until [Recording.Unkeep] is called.
func (r *Recording) Keep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept = true
}

// Use implements [budget.Holder], for the body that was kept.
func (r *Recording) Use() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state == Passing || r.unneededLocked() {
		return false
	}
	r.users++
	return true
}

// Unuse implements [budget.Holder].
func (r *Recording) Unuse() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.users--
	r.dropLocked()
}

// Freeable implements [budget.Held].
func (r *Recording) Freeable(clients int) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state == Growing || r.kept || len(r.readers)+r.users > clients {
		return 0
	}
	return r.Allowance.Taken()
}

// Unkeep ends [Recording.Keep].
func (r *Recording) Unkeep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept = false
	r.dropLocked()
}

// unneededLocked reports whether neither a reader, nor the engine, nor a duplicate needs the kept bytes.
func (r *Recording) unneededLocked() bool { return len(r.readers) == 0 && !r.kept && r.users == 0 }

// dropLocked drops the bytes that are no longer needed, and releases their room.
func (r *Recording) dropLocked() {
	switch {
	case r.state == Passing && len(r.readers) == 0, r.state != Growing && r.unneededLocked():
		r.body.Drop()
		r.Allowance.ReleaseAll()
	case r.state == Passing:
		needed := slices.MinFunc(r.readers, func(a, b *Reader) int { return cmp.Compare(a.offset, b.offset) }).offset
		if n := needed - r.body.Start; n > 0 {
			r.body.DropTo(needed)
			r.Allowance.Release(n)
		}
	}
	r.changedLocked()
}

// Reader follows a recording from its first byte.
type Reader struct {
	of *Recording
	// Guarded by the recording's lock, like the list of readers.
	offset int64
}

// AttachOwn makes a reader that of the run's client.
func (r *Recording) AttachOwn(rd *Reader) {
	rd.attach(r)
	r.own = rd
}

// NewReader returns a new reader, or nil if the first bytes were dropped.
func (r *Recording) NewReader() *Reader {
	rd := new(Reader)
	if !rd.attach(r) {
		return nil
	}
	return rd
}

// attach initializes a reader of a recording. It reports false if the first bytes were dropped.
func (rd *Reader) attach(r *Recording) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state == Passing || r.body.Start > 0 || r.state != Growing && r.unneededLocked() {
		return false
	}
	rd.of = r
	r.readers = append(r.readers, rd)
	return true
}

// next returns bytes that the reader may have and has not read yet, and the state of the recording.
// If there are none yet, it also returns a channel that is closed at the next change. For a reader
// that has left, the state is Cut.
func (rd *Reader) next() ([]byte, State, <-chan struct{}) {
	r := rd.of
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Contains(r.readers, rd) {
		return nil, Cut, nil
	}
	shown := r.body.From(rd.offset)
	if (r.state == Growing || r.state == Cut) && r.Declared > 0 { // the last byte comes with the end, if that is whole
		shown = shown[:max(0, min(int64(len(shown)), r.Declared-1-rd.offset))]
	}
	if len(shown) > 0 || r.state == Whole || r.state == Cut {
		return shown, r.state, nil
	}
	return nil, r.state, r.awaitLocked()
}

// took advances the reader by n bytes.
func (rd *Reader) took(n int) {
	r := rd.of
	r.mu.Lock()
	defer r.mu.Unlock()
	rd.offset += int64(n)
	if rd == r.own {
		r.ownTook.Store(time.Now().UnixNano())
	}
	if r.state == Passing {
		r.dropLocked()
	}
}

// Leave removes the reader. It may be called again.
func (rd *Reader) Leave() {
	r := rd.of
	r.mu.Lock()
	defer r.mu.Unlock()
	had := len(r.readers)
	r.readers = slices.DeleteFunc(r.readers, func(other *Reader) bool { return other == rd })
	if len(r.readers) == had {
		return
	}
	r.dropLocked()
	if r.state == Passing && len(r.readers) == 0 {
		r.abandoned()
	}
}
