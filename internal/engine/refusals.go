package engine

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// refusalLife is how long a refused write counts as the present state of the store. The engine does not
// probe whether the store accepts writes again: small writes may succeed while others fail.
const refusalLife = time.Minute

// refusals remembers that the store has refused or lost writes, although it can be read.
type refusals struct {
	mu sync.Mutex
	// first and last are the first and the last refusal of those that followed each other within
	// refusalLife. err is why the last one was refused.
	first, last time.Time
	err         error
}

// note notes the error of a write, if it is a refusal.
func (r *refusals) note(err error) {
	if _, refused := errors.AsType[*idempotency.RefusedError](err); !refused {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.err == nil || now.Sub(r.last) > refusalLife {
		r.first = now
	}
	r.last, r.err = now, err
}

// String returns why and since when writes are refused; "" if none was within refusalLife.
func (r *refusals) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil || time.Since(r.last) > refusalLife {
		return ""
	}
	return fmt.Sprintf("%v (since %s, last at %s)", r.err, timestamp(r.first), timestamp(r.last))
}

// timestamp returns a past time as today's clock would have shown it: it may have been set since.
func timestamp(t time.Time) string {
	return time.Now().Add(-time.Since(t)).UTC().Format(time.RFC3339)
}

// WritesRefused returns why and since when the store refuses or loses writes although it can be read, for
// operators. It returns "" if the store does not report damage ([idempotency.Impaired]) and has not
// refused a write for a minute. It does not call the store.
func (e *Engine) WritesRefused() string {
	var all []string
	if e.impaired != nil {
		if reason, since := e.impaired.Impairment(); reason != "" {
			all = append(all, fmt.Sprintf("%s (since %s)", reason, timestamp(since)))
		}
	}
	if refused := e.refusals.String(); refused != "" {
		all = append(all, refused)
	}
	return strings.Join(all, "; ")
}
