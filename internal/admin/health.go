package admin

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"
)

// lookLife is how long later probes get the result of a look at the stores.
const lookLife = 500 * time.Millisecond

// Health answers probes: whether the process lives, and whether it is ready. However many
// probes come, it asks the stores once in [lookLife], and never twice at a time.
type Health struct {
	// Open returns the stores that are open now, in a stable order, and the longest of the timeouts
	// of those that requests use. They are left when those have answered.
	Open func() (open []Store, timeout time.Duration)

	mu     sync.Mutex
	latest *look
}

// look is one look at the stores. What it found may be read when it is done.
type look struct {
	done   chan struct{}
	until  time.Time // when its probes stop waiting
	ended  time.Time
	answer ReadyAnswer
	err    error
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
		answer, err := h.ready(r.Context())
		if err != nil {
			return err
		}
		return answerJSON(w, http.StatusOK, answer)
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
func (h *Health) ready(ctx context.Context) (answer ReadyAnswer, err error) {
	l := h.look()
	timeout := time.NewTimer(time.Until(l.until))
	defer timeout.Stop()
	select {
	case <-l.done: // first: a finished look counts, even after the timeout
		return l.answer, l.err
	default:
	}
	select {
	case <-l.done:
		return l.answer, l.err
	case <-ctx.Done():
		// The client is gone; this keeps the log from reporting a failure.
		return answer, problemOf(http.StatusServiceUnavailable, errors.New("the probe was given up before the stores had answered"))
	case <-timeout.C: // a hanging disk ignores the timeout of its operations
		return answer, problemOf(http.StatusServiceUnavailable, errors.New("the stores have not answered within their timeout"))
	}
}

// look returns the latest look, or a new one if that is too old. An unfinished one is
// never too old: otherwise each probe would ask a hanging store once more.
func (h *Health) look() *look {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.latest; l != nil {
		select {
		case <-l.done:
			if time.Since(l.ended) < lookLife {
				return l
			}
		default:
			return l
		}
	}
	open, timeout := h.Open()
	l := &look{done: make(chan struct{}), until: time.Now().Add(timeout)}
	h.latest = l
	go func() { // not in the first probe's request: it may be cancelled
		l.answer, l.err = readiness(context.Background(), open)
		for i := range l.answer.Stores {
			l.answer.Stores[i].Writes = "" // for operators; a probe may be public
		}
		l.ended = time.Now()
		close(l.done)
	}()
	return l
}
