package recording

import (
	"maps"
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
)

// loan is a complete response in the hands of a client, which may take it at its own pace
// for as long as nobody else needs the room. Then a client that has stopped is let go: what
// it has is cut, and a retry gets the response from the store.
type loan struct {
	// Under the budget's lock: how many bytes it has, when the client last took some, and
	// whether it has its answer.
	size  int64
	moved time.Time
	ended bool

	mu      sync.Mutex
	control *http.ResponseController // nil while nobody writes to the client
}

func (l *loan) setControl(control *http.ResponseController) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.control = control
}

// lend says that a client takes a response of so many bytes, of which no more come.
func (b *Budget) lend(l *loan, size int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lent == nil {
		b.lent = make(map[*loan]struct{})
	}
	if !l.ended {
		l.size, l.moved = int64(size), time.Now()
		b.lent[l] = struct{}{}
	}
}

// borrow has the response lent to the reader's client once it is whole, and stored. It
// returns nil where it is too small for that.
func (rd *Reader) borrow(client http.ResponseWriter) *loan {
	r := rd.of
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != Growing && r.body.Len() <= smallReplay {
		return nil
	}
	if rd.loan == nil {
		rd.loan = new(loan)
	}
	rd.loan.setControl(http.NewResponseController(client))
	r.lendLocked(rd)
	return rd.loan
}

// lendLocked lends the response to these readers, as far as it can be: it would not be let
// go before it is stored. Those whose clients are not written to yet are not called in.
func (r *Recording) lendLocked(readers ...*Reader) {
	if r.state != Whole || r.kept > 0 || r.body.Len() <= smallReplay {
		return
	}
	for _, rd := range readers {
		if rd.loan == nil {
			rd.loan = new(loan)
		}
		r.Taken.Budget.lend(rd.loan, r.body.Len())
	}
}

// move says that the client takes of it.
func (b *Budget) move(l *loan) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l.moved = time.Now()
}

// end says that nobody writes to the client any more: its writer may be gone, and must not be
// called.
func (b *Budget) end(l *loan) {
	l.setControl(nil)
	b.mu.Lock()
	defer b.mu.Unlock()
	l.ended = true
	delete(b.lent, l)
	b.changedLocked()
}

// callIn ends the write to the client that is under way, and each one after it: a deadline
// that has passed may be moved by a handler in front, and so it is called again.
func (l *loan) callIn() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.control != nil {
		_ = l.control.SetWriteDeadline(time.Unix(1, 0)) // where there is none, the client's own time limit ends it
	}
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
	most := b.limit
	if b.wantedForReplays > 0 {
		most = b.mostForNewLocked()
	}
	missing := b.used + b.wanted + b.wantedForReplays - most
	longest := slices.SortedFunc(maps.Keys(b.lent), func(x, y *loan) int { return x.moved.Compare(y.moved) })
	var stalled []*loan
	atLeast := stalledFor
	if waited >= urgently {
		atLeast = stalledForUrgently
	}
	for _, l := range longest {
		if missing <= 0 || now.Sub(l.moved) < atLeast {
			break
		}
		stalled = append(stalled, l)
		missing -= l.size
	}
	b.mu.Unlock()
	defer b.mu.Lock()
	for _, l := range stalled {
		l.callIn()
	}
	return true
}
