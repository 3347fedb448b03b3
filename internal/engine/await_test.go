package engine_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// A request that only waits gets what a duplicate gets, in the process of the run and in another one, however
// long that lasts, and never runs.
func TestAwait(t *testing.T) {
	kept, failed := &idempotency.Response{Status: 200}, &idempotency.Response{Status: 500}
	for name, response := range map[string]*idempotency.Response{"kept": kept, "released": failed} {
		for _, elsewhere := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				store := newShared(t)
				a := newReplica(t, store)
				b := a
				if elsewhere {
					b = newReplica(t, store)
				}
				req := someRequest()
				if _, err := b.Await(t.Context(), req.Key); !errors.Is(err, engine.ErrNoRecord) {
					t.Errorf("%s: a key without a record: %v", name, err)
				}
				run := a.run(req)
				got := make(chan engine.Decision)
				go func() {
					d, err := b.Await(context.Background(), req.Key)
					must(t, err)
					got <- d
				}()
				gone, leave := context.WithCancel(t.Context())
				left := make(chan error)
				go func() {
					_, err := b.Await(gone, req.Key)
					left <- err
				}()
				time.Sleep(10 * someWait)
				leave()
				if err := <-left; !errors.Is(err, context.Canceled) {
					t.Errorf("%s: whose client has left: %v", name, err)
				}
				end(run, response)
				if d, is := (<-got).(engine.Replay); !is || !d.Waited || d.Response.Status != response.Status {
					t.Errorf("%s, elsewhere %v: got %+v", name, elsewhere, d)
				}
				d, err := b.Await(t.Context(), req.Key)
				must(t, err)
				if d, is := d.(engine.Replay); !is || d.Record.Attempt != 1 || d.Response != nil && d.Response.Status != response.Status {
					t.Errorf("%s, elsewhere %v: afterwards %+v", name, elsewhere, d)
				}
				time.Sleep(time.Minute)
				if response == failed { // its response is gone
					d, err := b.Await(t.Context(), req.Key)
					must(t, err)
					if d, is := d.(engine.Replay); !is || !d.Response.Failed || d.Response.Status != 500 {
						t.Errorf("%s, elsewhere %v: a minute later %+v", name, elsewhere, d)
					}
				}
				if next, is := a.claim(req).(*engine.Run); is != (response == failed) {
					t.Errorf("%s: the next request runs: %v", name, is)
				} else if is {
					end(next, kept)
				}
			})
		}
	}
}
