package engine_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
)

func TestDrainAndFinish(t *testing.T) {
	play(t, []scene{
		{"they wait for runs", "", `
			a draining; a done; a finishing; a done; a runs run; a draining; sleep 1h; a undone; run ends 201 kept; a done`},
		{"they wait for claims, which may run in a moment", "", `
			a pauses reply-to-claim; a asks w; a draining; sleep 1s; a undone; a busy; a resumes reply-to-claim; w runs run; a undone
			run ends 201 kept; a done; a idle`},
		// Drain is for a process that exits.
		{"Finish waits for a claim in doubt, Drain for a short time only", "hold", `
			a store hung; a store lost claim; a refuses unavailable - after=500ms; a draining; sleep 10s; a failed
			a finishing; sleep 1h; a undone; a store works; sleep 4s; a done; a has released 0`},
	})
}

// This test checks little itself: synctest fails it if a goroutine is left at the end.
func TestCloseEndsTheBackgroundWork(t *testing.T) {
	play(t, []scene{{"a renewal, a watcher, a withdrawal and a settlement", "", `
		a runs run; b asks watching; a store lost claim; a refuses unavailable - key=two after=500ms; a store works; a runs third key=three
		a store refused; third ends 201 trying; a closes; b closes; watching refused unavailable -
		a asks waiting; run ends 201 trying; waiting shares run`}})
}

// Abandon settles the runs in flight as unknown, so that no request waits for their leases.
func TestAbandonSettlesRunsAsUnknown(t *testing.T) {
	play(t, []scene{
		{"released", "", `
			a runs run; a asks w; a abandoning; a done; a has released 1; w refused overloaded -; b runs next
			run ends 201 fenced; next ends 201 kept; a has complete 2`},
		{"held, or exhausted", "", `
			a runs run {hold|attempts=1}; a asks w {hold|attempts=1}; a abandoning; a done; a has {held|released} 1; w refused {held|exhausted} run
			b refuses {held|exhausted} run {hold|attempts=1}; run ends 201 fenced; a has {held|released} 1`},
		{"a claim that is under way", "", `
			a pauses reply-to-claim; a asks w; a abandoning; a resumes reply-to-claim; a done; w runs run; run ends 201 fenced; a has released 1`},
		{"an end that is being stored is left alone", "hold", `
			a runs run; a pauses reply-to-settle; run ending 201; a abandoning; a resumes reply-to-settle; run ended kept; a done; a has complete 1`},
		{"it takes one operation", "", `
			a runs run; a store hung; a abandoning; sleep 499ms; a undone; sleep 1ms; a failed; a idle; a counts lost=1; run ends 201 fenced`},
	})
}

// A closed engine, with all that its store has in memory, is garbage at once, and not only when the
// next renewal was due. That also holds for a run that started during Close.
func TestClosedEngineIsCollected(t *testing.T) {
	for name, use := range map[string]func(e *engine.Engine){
		"run before": func(e *engine.Engine) {
			runWith(t, e, someRequest(), 1, created("paid"))
			_ = e.Close()
		},
		"run beside": func(e *engine.Engine) {
			_ = e.Close()
			runWith(t, e, someRequest(), 1, created("paid"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			gone := make(chan struct{})
			func() {
				e := engine.New(nothing{}, someOptions())
				runtime.AddCleanup(e, func(done chan struct{}) { close(done) }, gone)
				use(e)
			}()
			for deadline := time.Now().Add(someLease / 6); ; {
				runtime.GC()
				select {
				case <-gone:
					return
				case <-time.After(10 * time.Millisecond):
				}
				if time.Now().After(deadline) {
					t.Fatal("something holds the closed engine")
				}
			}
		})
	}
}

// A process that exits waits for a limited time: it may close the engine while requests
// are still being decided on.
func TestCloseBesideRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newReplica(t, newShared(t))
		var requests sync.WaitGroup
		for i := range 50 {
			requests.Go(func() {
				d, err := a.Claim(context.Background(), nth(i))
				if run, ok := d.(*engine.Run); ok {
					end(run, created("one"))
				} else {
					t.Errorf("decided %v %v", d, err)
				}
			})
		}
		wantErr(t, a.Close(), nil)
		requests.Wait()
		a.drain()
	})
}
