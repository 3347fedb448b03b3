package admin

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"
)

// checkLife is how long the result of a check answers later probes.
const checkLife = 500 * time.Millisecond

// Health answers probes for liveness and readiness. It checks the stores at most once in [checkLife],
// and never twice at a time, however many probes arrive.
type Health struct {
	// Open returns the stores that are open now, in a stable order, and the longest of the timeouts
	// of those that requests use. Health leaves them after the check.
	Open func() (open []Store, timeout time.Duration)

	mu     sync.Mutex
	latest *check
}

// check is one check of the stores. Its result may be read once done is closed.
type check struct {
	done   chan struct{}
	until  time.Time // when its probes stop waiting
	ended  time.Time
	answer ReadyAnswer
	err    error
}

// ServeLive answers that the process lives.
func (*Health) ServeLive(w http.ResponseWriter, r *http.Request) error {
	return serveProbe(w, r, func() (any, error) {
		return struct {
			Live bool `json:"live"`
		}{true}, nil
	})
}

// ServeReady answers whether the stores are ready, like [API], within their timeouts.
func (h *Health) ServeReady(w http.ResponseWriter, r *http.Request) error {
	return serveProbe(w, r, func() (any, error) { return h.ready(r.Context()) })
}

func serveProbe(w http.ResponseWriter, r *http.Request, probe func() (any, error)) error {
	return withProblems(func(w http.ResponseWriter, r *http.Request) error {
		if err := onlyRead(w, r); err != nil {
			return err
		}
		answer, err := probe()
		if err != nil {
			return err
		}
		return answerJSON(w, answer)
	})(w, r)
}

// onlyRead refuses what is neither GET nor HEAD.
func onlyRead(w http.ResponseWriter, r *http.Request) error {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return nil
	}
	return wrongMethod(w, r, "GET, HEAD", "GET or HEAD")
}

// ready waits for the result of a check.
func (h *Health) ready(ctx context.Context) (answer ReadyAnswer, err error) {
	c := h.check()
	ctx, cancel := context.WithDeadline(ctx, c.until) // a hanging disk ignores the timeout of its operations
	defer cancel()
	select {
	case <-c.done: // first: a finished check counts, even after the timeout
		return c.answer, c.err
	default:
	}
	select {
	case <-c.done:
		return c.answer, c.err
	case <-ctx.Done(): // or the client is gone, which is no failure for the log
		return answer, problemOf(http.StatusServiceUnavailable, errors.New("the stores have not answered within their timeout"))
	}
}

// check returns the latest check, or starts a new one if that is too old. An unfinished one is
// never too old: otherwise each probe would ask a hanging store once more.
func (h *Health) check() *check {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.latest; c != nil {
		select {
		case <-c.done:
			if time.Since(c.ended) < checkLife {
				return c
			}
		default:
			return c
		}
	}
	open, timeout := h.Open()
	c := &check{done: make(chan struct{}), until: time.Now().Add(timeout)}
	h.latest = c
	go func() { // not in the first probe's request: it may be cancelled
		c.answer, c.err = readiness(context.Background(), open)
		for i := range c.answer.Stores {
			c.answer.Stores[i].Writes = "" // for operators; a probe may be public
		}
		c.ended = time.Now()
		close(c.done)
	}()
	return c
}
