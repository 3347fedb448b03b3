package dashboard

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// stalled is a client that does not read its answer.
type stalled struct {
	*httptest.ResponseRecorder
	deadline time.Time
	writes   func()
}

func (s *stalled) SetWriteDeadline(at time.Time) error {
	s.deadline = at
	return nil
}

func (s *stalled) Write(p []byte) (int, error) {
	s.writes()
	return s.ResponseRecorder.Write(p)
}

// A client that does not read its answer keeps no store open, and not for ever what it does
// not read.
func TestClientThatDoesNotReadHoldsNoStore(t *testing.T) {
	r := newRig(t)
	key := r.store.put(t, put{id: "held", state: idempotency.Held})
	for _, target := range []string{"/", "/?part=live", "/?key=" + key.String(), "/?q=held", "/?file=page.css", "/?file=none", "/?q=none"} {
		w, wrote := &stalled{ResponseRecorder: httptest.NewRecorder()}, false
		w.writes = func() {
			wrote = true
			if n := r.all[0].users.Load(); n != 0 {
				t.Errorf("%s: the store is held %d times while the client is written to", target, n)
			}
			if away := time.Until(w.deadline); away <= 0 || away > writeFor {
				t.Errorf("%s: the client may take %v", target, away)
			}
		}
		r.page.ServeHTTP(w, httptest.NewRequest(http.MethodGet, target, nil))
		if !wrote {
			t.Errorf("%s: nothing was written", target)
		}
	}
}

// A page that has grown too large is not kept in memory.
func TestPageIsBounded(t *testing.T) {
	out := new(bounded)
	chunk := []byte(strings.Repeat("x", 1<<20))
	for range mostPage / len(chunk) {
		if _, err := out.Write(chunk); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := out.Write([]byte("x")); !errors.Is(err, errLarge) || out.Len() != mostPage {
		t.Errorf("it took %d bytes: %v", out.Len(), err)
	}
}
