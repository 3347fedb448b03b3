package recording

import (
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	// stalledFor is how long a client has taken nothing that is let go when its room is
	// needed, and stalledForUrgently how long where a run has waited for urgently: it goes over
	// the limit in the end.
	stalledFor         = 2 * time.Second
	urgently           = RoomPatience / 3
	stalledForUrgently = stalledFor / 4
	// callInEvery is how often those who wait for room look for such clients.
	callInEvery = 500 * time.Millisecond
	// mostCalls is how often a client is told to go, before its room counts as one that does
	// not come back.
	mostCalls = 4
)

// loan is a whole response that clients take, each at its own pace, for as long as nobody
// else needs the room. Then, if all of them have stopped, they are let go: what they have is
// cut, and a retry gets the response from the store. All of it is under the budget's lock.
type loan struct {
	size      int64
	lent      time.Time
	borrowers map[*borrower]struct{}
	calls     int
	// steady says that somebody goes on reading, so that the room comes back in time.
	steady bool
}

// borrower is a client with a part in a loan.
type borrower struct {
	// Under the budget's lock: the loan, what the kernel of the client had acknowledged and
	// when the client last took some, whether it is written to, and whether that is over.
	of             any
	acknowledged   uint64
	moved          time.Time
	writing, ended bool

	conn net.Conn // nil where nobody says, and not that of HTTP/2, where others may read on

	mu      sync.Mutex
	close   net.Conn                 // what is closed where a deadline does not help, nil for nothing
	control *http.ResponseController // nil while nobody writes to the client
}

// lend says that a client takes a response of so many bytes, of which no more come. What has
// the same identity is held once.
func (b *Budget) lend(of any, size int, to *borrower) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if to.ended || to.of != nil {
		return
	}
	if b.lent == nil {
		b.lent = make(map[any]*loan)
	}
	l := b.lent[of]
	if l == nil {
		l = &loan{size: int64(size), lent: time.Now(), borrowers: make(map[*borrower]struct{})}
		b.lent[of] = l
	}
	l.borrowers[to] = struct{}{}
	to.of, to.moved, to.acknowledged = of, time.Now(), acknowledged(to.conn)
}

// write says that a writer writes to the client from now on, and may be stopped.
func (b *Budget) write(to *borrower, d *ClientWriter) {
	to.mu.Lock()
	to.control, to.close = http.NewResponseController(d.Client), d.conn
	to.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if d.patience == 0 {
		to.conn = d.conn
	}
	to.writing, to.moved = true, time.Now()
}

// stop says that nobody writes to the client any more: its writer may be gone, and must not
// be called.
func (to *borrower) stop() {
	to.mu.Lock()
	defer to.mu.Unlock()
	to.control, to.close = nil, nil
}

// move says that the client takes of it.
func (b *Budget) move(to *borrower) {
	b.mu.Lock()
	defer b.mu.Unlock()
	to.moved = time.Now()
}

// end says that the client holds nothing any more. It may be called again.
func (b *Budget) end(to *borrower) {
	to.stop()
	b.mu.Lock()
	defer b.mu.Unlock()
	to.ended = true
	if l := b.lent[to.of]; to.of != nil && l != nil {
		delete(l.borrowers, to)
		if len(l.borrowers) == 0 {
			delete(b.lent, to.of)
		}
	}
	b.changedLocked()
}

// callIn ends the write to the client that is under way, and each one after it. A deadline
// that has passed may be moved by a handler in front, and to a connection of HTTP/2 that takes
// nothing at all the end of a stream cannot be told: then its socket is closed, at once, for
// TLS would wait to say that this is the end.
func (to *borrower) callIn(again bool) {
	to.mu.Lock()
	defer to.mu.Unlock()
	if to.control == nil {
		return
	}
	_ = to.control.SetWriteDeadline(time.Unix(1, 0))
	if again && to.close != nil {
		_ = underlying(to.close).Close()
	}
}

// since is when one of the clients last took some of it. What is not written yet has not stopped.
func (l *loan) since(now time.Time) (latest time.Time) {
	for to := range l.borrowers {
		if got := acknowledged(to.conn); got != to.acknowledged {
			to.acknowledged, to.moved = got, now
		}
		if !to.writing {
			to.moved = now
		}
		if to.moved.After(latest) {
			latest = to.moved
		}
	}
	return latest
}

// comesBackLocked reports whether room is lent that comes back soon, or of which that is not
// known yet.
func (b *Budget) comesBackLocked() bool {
	for _, l := range b.lent {
		if !l.steady && l.calls < mostCalls {
			return true
		}
	}
	return false
}

// callInLocked lets clients go that have taken nothing for a while, those first that have
// done so for longest, until there is room for all who wait; waited is for how long the
// caller has. The room comes back when their writers have returned. It reports whether it
// has given the lock back meanwhile.
func (b *Budget) callInLocked(waited time.Duration) (unlocked bool) {
	now := time.Now()
	if now.Sub(b.calledIn) < callInEvery/2 {
		return false
	}
	b.calledIn = now
	atLeast := stalledFor
	if waited >= urgently {
		atLeast = stalledForUrgently
	}
	type stalled struct {
		*loan
		since time.Time
	}
	var all []stalled
	for _, l := range b.lent {
		since := l.since(now)
		has := now.Sub(since) >= atLeast
		l.steady = !has && l.calls == 0 && now.Sub(l.lent) >= stalledFor
		if has && l.calls < mostCalls {
			all = append(all, stalled{l, since})
		}
	}
	slices.SortFunc(all, func(x, y stalled) int { return x.since.Compare(y.since) })
	most := b.limit
	if b.wantedForReplays > 0 {
		most = b.mostForNewLocked()
	}
	missing := b.used + b.wanted + b.wantedForReplays - most
	called := make(map[*borrower]bool)
	for _, l := range all {
		if missing <= 0 {
			break
		}
		missing -= l.size
		l.calls++
		for to := range l.borrowers {
			called[to] = l.calls > 1
		}
	}
	b.mu.Unlock()
	defer b.mu.Lock()
	for to, again := range called {
		to.callIn(again)
	}
	return true
}

// borrow says that the reader's client is written to, and has the response lent to it once
// that is whole, and stored. It returns nil where it is too small for that, or not kept.
func (rd *Reader) borrow(d *ClientWriter) *borrower {
	r := rd.of
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.passed || r.state != Growing && r.body.Len() <= smallReplay {
		return nil
	}
	if rd.borrower == nil {
		rd.borrower = new(borrower)
	}
	d.Budget.write(rd.borrower, d)
	r.lendLocked(rd)
	return rd.borrower
}

// lendLocked lends the response to these readers, as far as it can be: it would not be let
// go before it is stored, and one that is larger than is kept cannot be had again.
func (r *Recording) lendLocked(readers ...*Reader) {
	if r.state != Whole || r.passed || r.kept > 0 || r.body.Len() <= smallReplay {
		return
	}
	for _, rd := range readers {
		if rd.borrower == nil {
			rd.borrower = new(borrower)
		}
		r.Taken.Budget.lend(r, r.body.Len(), rd.borrower)
	}
}
