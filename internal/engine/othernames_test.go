package engine_test

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// rotation is one operation as two processes know it whose first key differs.
type rotation struct{ small, large engine.Request }

// rotating names an operation under two keys. Small claims under the name that is
// the smaller one in the order of bytes, large under the other.
func rotating(t *testing.T, req engine.Request) rotation {
	t.Helper()
	id := idempotency.Identity{ID: "rotated"}
	named := func(keys string) engine.Request {
		r := req
		r.Sealer = sealing(t, keys)
		name, others := r.Sealer.Names(id, req.Fingerprint)
		r.Key, r.Fingerprint, r.OtherNames = name.Key, name.Fingerprint, others
		return r
	}
	one, two := named("ab"), named("ba")
	if bytes.Compare(one.Key[:], two.Key[:]) < 0 {
		return rotation{one, two}
	}
	return rotation{two, one}
}

// inBothOrders runs a test with the operation's first request under the smaller
// name and the later one under the larger, and the other way round.
func inBothOrders(t *testing.T, base engine.Request, test func(t *testing.T, first, later *replica, firstReq, laterReq engine.Request)) {
	for _, order := range []string{"smaller name first", "larger name first"} {
		t.Run(order, func(t *testing.T) {
			onBoth(t, func(t *testing.T, owner, other *replica) {
				r := rotating(t, base)
				if order == "larger name first" {
					r.small, r.large = r.large, r.small
				}
				test(t, owner, other, r.small, r.large)
			})
		})
	}
}

// wantAbout checks which record has decided.
func wantAbout(t *testing.T, d engine.Decision, req engine.Request) {
	t.Helper()
	if d.About() != req.Key {
		t.Errorf("the decision is about the key %s, want %s", d.About(), req.Key)
	}
}

func TestResponseUnderAnotherNameIsReplayed(t *testing.T) {
	inBothOrders(t, someRequest(), func(t *testing.T, first, later *replica, firstReq, laterReq engine.Request) {
		run := first.run(firstReq)
		wantAbout(t, run, firstReq)
		wantEnd(t, run, created("one"), engine.ResultKept)
		for range 2 {
			d := later.begin(laterReq)
			wantReplay(t, d, run.ExecutionID(), created("one"), false)
			wantAbout(t, d, firstReq)
		}
		// What the claims under the later name have left soon goes.
		time.Sleep(someLease)
		if left := later.stored(laterReq); left != nil {
			t.Errorf("under its own name it left %+v", left)
		}
	})
}

func TestDuplicatesUnderAnotherNameAskTheStoreOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, r := newShared(t), rotating(t, someRequest())
		a, b := newReplica(t, store), newReplica(t, store)
		run := a.run(r.small)
		wantEnd(t, run, created("one"), engine.ResultKept)
		letClaim, letLookup := b.link.hold("claim"), b.link.hold("lookup")
		all := b.waiters(100, r.large)
		synctest.Wait()
		letClaim()
		synctest.Wait() // the claim stands, and looks
		letClaim = b.link.hold("claim")
		letLookup()
		synctest.Wait() // all have moved
		letClaim()
		for _, w := range all {
			wantReplay(t, w.decision(), run.ExecutionID(), created("one"), false)
		}
		if n := b.link.count("claim"); n != 2 {
			t.Errorf("the store saw %d claims of 100 duplicates, want one under each name", n)
		}
	})
}

func TestRunUnderAnotherNameIsWaitedFor(t *testing.T) {
	for name, answer := range map[string]*idempotency.Response{"kept": created("one"), "released": broken("busy")} {
		t.Run(name, func(t *testing.T) {
			inBothOrders(t, someRequest(), func(t *testing.T, first, later *replica, firstReq, laterReq engine.Request) {
				run := first.run(firstReq)
				all := later.waiters(5, laterReq)
				time.Sleep(time.Second)
				for _, w := range all {
					if w.decided() {
						t.Fatalf("decided beside a run in flight: %+v", w.d)
					}
				}
				end(run, answer)
				for _, w := range all {
					wantReplay(t, w.decision(), run.ExecutionID(), answer, true)
					wantAbout(t, w.d, firstReq)
				}
				if answer.Status == 500 {
					next := later.run(laterReq)
					wantAbout(t, next, laterReq)
					wantEnd(t, next, created("two"), engine.ResultKept)
				}
			})
		})
	}
}

func TestRunUnderAnotherNameRefusesWithoutWaiting(t *testing.T) {
	req := someRequest()
	req.Policy.Wait = 0
	inBothOrders(t, req, func(t *testing.T, first, later *replica, firstReq, laterReq engine.Request) {
		run := first.run(firstReq)
		for range 2 {
			d := later.begin(laterReq)
			wantRefusal(t, d, engine.ReasonInFlight, run.ExecutionID())
			wantAbout(t, d, firstReq)
		}
		wantEnd(t, run, created("one"), engine.ResultKept)
	})
}

func TestRefusalsUnderAnotherName(t *testing.T) {
	failed := &idempotency.Response{Status: 504, Failed: true}
	for name, c := range map[string]struct {
		end    func(*engine.Run)
		change func(*engine.Request)
		want   engine.Reason
	}{
		"held": {
			func(run *engine.Run) { run.End(idempotency.End{How: idempotency.Unknown}, failed) },
			func(r *engine.Request) { r.Policy.Settle.Hold = true },
			engine.ReasonHeld,
		},
		"exhausted": {
			func(run *engine.Run) { run.End(idempotency.End{How: idempotency.Unknown}, failed) },
			func(r *engine.Request) { r.Policy.Settle.MaxAttempts = 1 },
			engine.ReasonExhausted,
		},
	} {
		t.Run(name, func(t *testing.T) {
			req := someRequest()
			c.change(&req)
			inBothOrders(t, req, func(t *testing.T, first, later *replica, firstReq, laterReq engine.Request) {
				run := first.run(firstReq)
				c.end(run)
				d := later.begin(laterReq)
				wantRefusal(t, d, c.want, run.ExecutionID())
				wantAbout(t, d, firstReq)
			})
		})
	}
}

func TestReusedUnderAnotherName(t *testing.T) {
	inBothOrders(t, someRequest(), func(t *testing.T, first, later *replica, firstReq, laterReq engine.Request) {
		reused := rotating(t, func() engine.Request {
			r := someRequest()
			r.Fingerprint = "body:two"
			return r
		}())
		other := reused.small
		if other.Key != laterReq.Key {
			other = reused.large
		}
		run := first.run(firstReq)
		wantRefusal(t, later.begin(other), engine.ReasonReused, run.ExecutionID())
		wantEnd(t, run, created("one"), engine.ResultKept)
		wantRefusal(t, later.begin(other), engine.ReasonReused, run.ExecutionID())
		wantReplay(t, later.begin(laterReq), run.ExecutionID(), created("one"), false)
	})
}

// A lapsed run is taken over where it is, so that its late owner is fenced.
func TestLapsedRunUnderAnotherNameIsTakenOver(t *testing.T) {
	for _, order := range []string{"smaller name first", "larger name first"} {
		t.Run(order, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := rotating(t, someRequest())
				if order == "larger name first" {
					r.small, r.large = r.large, r.small
				}
				store := newShared(t)
				a, b := newReplica(t, store), newReplica(t, store)
				late := a.run(r.small)
				a.link.fail(refused, "renew")
				time.Sleep(someLease)
				run := b.run(r.large)
				wantAbout(t, run, r.small)
				if run.Attempt() != 2 {
					t.Errorf("the taken over run is attempt %d, want 2", run.Attempt())
				}
				wantEnd(t, late, created("late"), engine.ResultFenced)
				wantEnd(t, run, created("one"), engine.ResultKept)
				wantReplay(t, a.begin(r.small), run.ExecutionID(), created("one"), false)
			})
		})
	}
}

func TestForcedRunReplacesTheResponseUnderAnotherName(t *testing.T) {
	inBothOrders(t, someRequest(), func(t *testing.T, first, later *replica, firstReq, laterReq engine.Request) {
		run := first.run(firstReq)
		wantEnd(t, run, created("one"), engine.ResultKept)
		forced := later.run(forcing(laterReq))
		if forced.Record().ParentID != run.ExecutionID() {
			t.Errorf("the forced run's parent is %q, want %q", forced.Record().ParentID, run.ExecutionID())
		}
		wantEnd(t, forced, created("two"), engine.ResultKept)
		for _, req := range []engine.Request{firstReq, laterReq} {
			wantReplay(t, first.begin(req), forced.ExecutionID(), created("two"), false)
		}
	})
}

// A gateway and a sidecar over one store may differ in their first key, too.
func TestSameRunUnderAnotherNamePasses(t *testing.T) {
	inBothOrders(t, someRequest(), func(t *testing.T, first, later *replica, firstReq, laterReq engine.Request) {
		run := first.run(firstReq)
		laterReq.SameRun = run.ExecutionID()
		if got := as[engine.SameRun](t, later.begin(laterReq)); got.Record.ExecutionID != run.ExecutionID() {
			t.Errorf("it belongs to %q, want %q", got.Record.ExecutionID, run.ExecutionID())
		}
		wantEnd(t, run, created("one"), engine.ResultKept)
	})
}

// Both claim before either looks.
func TestTwoNamesAtTheSameTime(t *testing.T) {
	for _, wait := range []time.Duration{0, someWait} {
		for _, held := range []string{"both", "smaller", "larger"} {
			t.Run(held+" looks late, waits "+wait.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					base := someRequest()
					base.Policy.Wait = wait
					store, r := newShared(t), rotating(t, base)
					a, b := newReplica(t, store), newReplica(t, store)
					var let []func()
					if held != "larger" {
						let = append(let, a.link.hold("lookup"))
					}
					if held != "smaller" {
						let = append(let, b.link.hold("lookup"))
					}
					w := []*waiter{a.beginLater(context.Background(), r.small), b.beginLater(context.Background(), r.large)}
					synctest.Wait()
					for _, l := range let {
						l()
					}
					time.Sleep(2 * time.Second)
					var run *engine.Run
					decided := 0
					for _, w := range w {
						if !w.decided() {
							continue
						}
						decided++
						if got, ok := w.decision().(*engine.Run); ok {
							if run != nil {
								t.Fatal("both run")
							}
							run = got
						}
					}
					if run == nil {
						t.Fatal("neither runs")
					}
					if wait == 0 {
						if decided != 2 {
							t.Error("one is left waiting")
						}
						return
					}
					wantEnd(t, run, created("one"), engine.ResultKept)
					for _, w := range w {
						if w.decision() != engine.Decision(run) {
							wantReplay(t, w.d, run.ExecutionID(), created("one"), true)
						}
					}
				})
			})
		}
	}
}

// A claim is not left standing when the other names cannot be looked up.
func TestOtherNameCannotBeLookedUp(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want engine.Reason
	}{
		"store fails": {errRefused, engine.ReasonUnavailable},
		"unreadable":  {&idempotency.UnreadableError{Where: "there", Err: errRefused}, engine.ReasonUnreadable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, r := newReplica(t, newShared(t)), rotating(t, holding())
				a.link.failWith(c.err, "lookup")
				wantRefusal(t, a.begin(r.small), c.want, "")
				a.wantState(r.small, idempotency.Released, 0)
				a.link.failWith(nil, "lookup")
				wantEnd(t, a.run(r.small), created("one"), engine.ResultKept)
			})
		})
	}
}

// Two claims, one under each name, are given back to one another for ever only if
// nobody counts.
func TestARequestDoesNotMoveForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rotating(t, someRequest())
		a := newReplica(t, &alwaysElsewhere{newShared(t)})
		wantRefusal(t, a.begin(r.small), engine.ReasonInFlight, "")
	})
}

// alwaysElsewhere shows a run in flight under every name that is looked up.
type alwaysElsewhere struct{ idempotency.Store }

// Lookup implements [idempotency.Store].
func (s *alwaysElsewhere) Lookup(ctx context.Context, key idempotency.Key) (*idempotency.Record, time.Time, error) {
	_, now, err := s.Store.Lookup(ctx, key)
	return &idempotency.Record{State: idempotency.InFlight, Token: "other", ExecutionID: "other", LeaseUntil: now.Add(time.Hour)}, now, err
}
