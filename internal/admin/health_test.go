package admin

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// probed is a store that counts how often it is asked.
type probed struct {
	Store   // nothing else is asked
	asked   atomic.Int64
	left    atomic.Int64
	err     error
	refused string
	hangs   chan struct{} // until it is closed
}

func (p *probed) Name() string { return "probed store" }

func (p *probed) InUse() bool { return true }

func (p *probed) Leave() { p.left.Add(1) }

func (p *probed) Ready(context.Context) error {
	p.asked.Add(1)
	if p.hangs != nil {
		<-p.hangs
	}
	return p.err
}

func (p *probed) WritesRefused() string { return p.refused }

const probeTimeout = 500 * time.Millisecond

func (p *probed) health() *Health {
	return &Health{Open: func() ([]Store, time.Duration) { return []Store{p}, probeTimeout }}
}

func probe(t *testing.T, serve func(http.ResponseWriter, *http.Request) error, method string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	if err := serve(w, httptest.NewRequest(method, "/", nil)); err != nil {
		t.Error(err)
	}
	if w.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("the answer to a probe has the Cache-Control %q", w.Header().Get("Cache-Control"))
	}
	return w
}

func TestProbesAreAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := new(probed)
		h := store.health()
		if got := probe(t, h.ServeReady, "GET"); got.Code != 200 || !strings.Contains(got.Body.String(), `"store":"probed store","ready":true`) {
			t.Errorf("ready is answered %d %s", got.Code, got.Body)
		}
		// Refused writes are for operators.
		store.refused = "the store is full"
		time.Sleep(checkLife)
		if got := probe(t, h.ServeReady, "GET"); got.Code != 200 || strings.Contains(got.Body.String(), "full") {
			t.Errorf("with refused writes ready is answered %d %s", got.Code, got.Body)
		}
		store.err = errors.New("connection refused")
		time.Sleep(checkLife)
		got := probe(t, h.ServeReady, "HEAD")
		var p Problem
		if err := json.Unmarshal(got.Body.Bytes(), &p); err != nil || got.Code != 503 || p.Code != "store_unavailable" || len(p.Stores) != 1 || !strings.Contains(p.Detail, "refused") {
			t.Errorf("a store that is down is answered %d %s", got.Code, got.Body)
		}
		if got := probe(t, h.ServeLive, "GET"); got.Code != 200 {
			t.Errorf("live is answered %d beside a store that is down", got.Code)
		}
		for _, serve := range []func(http.ResponseWriter, *http.Request) error{h.ServeLive, h.ServeReady} {
			if got := probe(t, serve, "POST"); got.Code != 405 || got.Header().Get("Allow") != "GET, HEAD" {
				t.Errorf("POST is answered %d with Allow %q", got.Code, got.Header().Get("Allow"))
			}
		}
		none := &Health{Open: func() ([]Store, time.Duration) { return nil, 0 }}
		if got := probe(t, none.ServeReady, "GET"); got.Code != 503 {
			t.Errorf("without a store ready is answered %d", got.Code)
		}
		if asked, left := store.asked.Load(), store.left.Load(); asked != left {
			t.Errorf("a store was entered %d times and left %d times", asked, left)
		}
	})
}

// However many probe, and whatever becomes of each, the store is asked once at a time and
// once in half a second.
func TestProbesShareACheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &probed{hangs: make(chan struct{})}
		h := store.health()
		began := time.Now()
		gone, leave := context.WithCancel(context.Background())
		leave()
		var all sync.WaitGroup
		var refused atomic.Int64
		for n := range 1000 {
			all.Go(func() {
				ctx := context.Background()
				if n%2 == 0 {
					ctx = gone
				}
				_, err := h.ready(ctx)
				if p, ok := errors.AsType[*Problem](err); !ok || p.Status != 503 {
					t.Errorf("it gets %v", err)
				}
				if atOnce := time.Since(began) == 0; atOnce == (ctx == gone) {
					refused.Add(1)
				}
			})
		}
		all.Wait()
		if took := time.Since(began); took != probeTimeout || refused.Load() != 1000 {
			t.Errorf("%d were refused when their client or the timeout ended, want 1000; it took %v, want %v", refused.Load(), took, probeTimeout)
		}
		if _, err := h.ready(context.Background()); err == nil {
			t.Error("it is ready while the store hangs")
		}
		if n := store.asked.Load(); n != 1 {
			t.Errorf("a store that hangs was asked %d times", n)
		}
		close(store.hangs)
		synctest.Wait()
		for range 10 {
			if _, err := h.ready(context.Background()); err != nil {
				t.Error(err)
			}
		}
		if n := store.asked.Load(); n != 1 {
			t.Errorf("it was asked %d times within half a second", n)
		}
		time.Sleep(checkLife)
		if _, err := h.ready(context.Background()); err != nil {
			t.Error(err)
		}
		if n := store.asked.Load(); n != 2 {
			t.Errorf("it was asked %d times, want once more", n)
		}
	})
}
