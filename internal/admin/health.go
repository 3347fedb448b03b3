package admin

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"
)

// lookCounts is for how long a look at the stores counts for those who ask next.
const lookCounts = 500 * time.Millisecond

// Health answers probes: whether the process lives, and whether it is ready. However many
// ask, the stores are asked once in [lookCounts], and one look at a time.
type Health struct {
	// Open returns the stores that requests use and that are open now, in a stable order,
	// and the longest of their timeouts. They are left when they have answered.
	Open func() (open []Store, timeout time.Duration)

	mu     sync.Mutex
	latest *look
}

// look is one look at the stores. What it found may be read when it is done.
type look struct {
	done  chan struct{}
	until time.Time // when those who wait for it give up
	ended time.Time
	all   []Readiness
	err   error
}

// ServeLive answers that the process does.
func (*Health) ServeLive(w http.ResponseWriter, r *http.Request) error {
	return explained(func(w http.ResponseWriter, r *http.Request) error {
		if err := onlyRead(w, r); err != nil {
			return err
		}
		return answerJSON(w, http.StatusOK, struct {
			Live bool `json:"live"`
		}{true})
	})(w, r)
}

// ServeReady answers whether the stores do, as [API] does, within their timeouts.
func (h *Health) ServeReady(w http.ResponseWriter, r *http.Request) error {
	return explained(func(w http.ResponseWriter, r *http.Request) error {
		if err := onlyRead(w, r); err != nil {
			return err
		}
		all, err := h.ready(r.Context())
		if err != nil {
			return err
		}
		return answerReady(w, all)
	})(w, r)
}

// onlyRead refuses what is neither GET nor HEAD.
func onlyRead(w http.ResponseWriter, r *http.Request) error {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return nil
	}
	return wrongMethod(w, r, "GET, HEAD", "GET or HEAD")
}

// ready waits for what a look at the stores finds.
func (h *Health) ready(ctx context.Context) ([]Readiness, error) {
	l := h.look()
	patience := time.NewTimer(time.Until(l.until))
	defer patience.Stop()
	select {
	case <-l.done: // first: a look that is over counts, however late it is
		return l.all, l.err
	default:
	}
	select {
	case <-l.done:
		return l.all, l.err
	case <-ctx.Done():
		// Nobody reads it, but it is no failure of ours either, for the log.
		return nil, problemOf(http.StatusServiceUnavailable, errors.New("the probe was given up before the stores had answered"))
	case <-patience.C: // a disk that hangs knows of no timeout
		return nil, problemOf(http.StatusServiceUnavailable, errors.New("the stores have not answered within their timeout"))
	}
}

// look returns the latest look, or a new one where that is too old. One that goes on is
// never too old: whoever came while a store hangs would else ask it once more.
func (h *Health) look() *look {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.latest; l != nil {
		select {
		case <-l.done:
			if time.Since(l.ended) < lookCounts {
				return l
			}
		default:
			return l
		}
	}
	open, timeout := h.Open()
	l := &look{done: make(chan struct{}), until: time.Now().Add(timeout)}
	h.latest = l
	go func() { // not in the request of the first who asks: it may be given up
		l.all, l.err = readiness(context.Background(), open)
		l.ended = time.Now()
		close(l.done)
	}()
	return l
}
