package engine_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/memory"
)

const someCopies = 1 << 20

// withCopies runs a test with two replicas, each with its own local copies.
func withCopies(t *testing.T, test func(t *testing.T, a, b *replica)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := newShared(t)
		test(t, newReplicaWithCopies(t, store, engine.NewCopies(someCopies)), newReplicaWithCopies(t, store, engine.NewCopies(someCopies)))
	})
}

// wantAsked checks how often a replica has made a claim in the store.
func (r *replica) wantAsked(when string, claims int) {
	r.t.Helper()
	if n := r.link.count("claim"); n != claims {
		r.t.Errorf("%s: the store was asked %d times, want %d", when, n, claims)
	}
}

func TestDuplicateIsAnsweredFromACopy(t *testing.T) {
	omitted := &idempotency.Response{Status: 200, Omitted: true}
	for name, response := range map[string]*idempotency.Response{"kept": created("paid"), "omitted": omitted} {
		t.Run(name, func(t *testing.T) {
			withCopies(t, func(t *testing.T, a, b *replica) {
				req := someRequest()
				run := a.run(req)
				wantEnd(t, run, response, resultKept)
				for range 3 {
					wantReplay(t, a.claim(req), run.ExecutionID(), response, false)
				}
				a.wantAsked("after the run", 1)
				for range 3 {
					got := as[engine.Replay](t, b.claim(req))
					if got.Response.Omitted != response.Omitted {
						t.Errorf("replayed %+v", got.Response)
					}
				}
				b.wantAsked("after the replay", 1)
			})
		})
	}
}

// With a store in this process, the first duplicate makes the copy: most keys have no duplicate, and
// the store is always available.
func TestCopyOfAStoreInThisProcessComesWithTheFirstDuplicate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		copies, options := engine.NewCopies(someCopies), someOptions()
		options.Copies = copies
		r := &replica{t: t, Engine: engine.New(memory.New(1<<20), options)}
		defer func() { _ = r.Close() }()
		req := someRequest()
		run := r.run(req)
		wantEnd(t, run, created("paid"), resultKept)
		if n := copies.Bytes(); n != 0 {
			t.Errorf("a copy of %d bytes was made before a duplicate came", n)
		}
		wantReplay(t, r.claim(req), run.ExecutionID(), created("paid"), false)
		if copies.Bytes() == 0 {
			t.Error("the first duplicate has made no copy")
		}
		wantReplay(t, r.claim(req), run.ExecutionID(), created("paid"), false)
	})
}

func TestReplicaThatWaitedHasACopy(t *testing.T) {
	withCopies(t, func(t *testing.T, a, b *replica) {
		req := someRequest()
		run := a.run(req)
		w := b.claimLater(context.Background(), req)
		synctest.Wait()
		wantEnd(t, run, created("paid"), resultKept)
		wantReplay(t, w.decision(), run.ExecutionID(), created("paid"), true)
		asked := b.link.count("claim")
		wantReplay(t, b.claim(req), run.ExecutionID(), created("paid"), false)
		b.wantAsked("after it waited", asked)
	})
}

func TestCopyIsNoAnswerToAnotherRequest(t *testing.T) {
	withCopies(t, func(t *testing.T, a, _ *replica) {
		req := someRequest()
		run := a.run(req)
		wantEnd(t, run, created("paid"), resultKept)
		other := req
		other.Fingerprint = "body:two"
		wantRefusal(t, a.claim(other), engine.ReasonReused, run.ExecutionID())
		a.wantAsked("another fingerprint", 1)
		elsewhere := req
		elsewhere.Key = idempotency.Identity{ID: "elsewhere"}.Key()
		as[*engine.Run](t, a.claim(elsewhere))
		a.wantAsked("another key", 2)
		forced := as[*engine.Run](t, a.claim(forcing(req)))
		a.wantAsked("forced", 3)
		wantEnd(t, forced, created("again"), resultKept)
		wantReplay(t, a.claim(req), forced.ExecutionID(), created("again"), false)
		a.wantAsked("the forced run's response", 3)
	})
}

// Only what is complete and stored becomes a copy.
func TestOnlyWhatIsStoredAndCompleteIsCopied(t *testing.T) {
	ends := map[string]func(t *testing.T, a *replica, run *engine.Run){
		"released": func(t *testing.T, _ *replica, run *engine.Run) {
			wantEnd(t, run, broken("no"), resultReleased)
		},
		"not sent": func(_ *testing.T, _ *replica, run *engine.Run) {
			ended(run, idempotency.End{How: idempotency.NotSent, Response: broken("no")})
		},
		"held": func(_ *testing.T, _ *replica, run *engine.Run) {
			ended(run, idempotency.End{How: idempotency.Unknown})
		},
		"unstored": func(t *testing.T, a *replica, run *engine.Run) {
			a.link.fail(refused, "settle")
			wantEnd(t, run, created("paid"), resultTrying)
		},
		"fenced": func(t *testing.T, a *replica, run *engine.Run) {
			a.link.failWith(idempotency.ErrFenced, "settle")
			wantEnd(t, run, created("paid"), resultFenced)
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				copies := engine.NewCopies(someCopies)
				a := newReplicaWithCopies(t, newShared(t), copies)
				end(t, a, a.run(holding()))
				if n := copies.Bytes(); n != 0 {
					t.Errorf("the copies take %d bytes", n)
				}
			})
		})
	}
}

func TestResponseIsCopiedWhenItIsStoredLater(t *testing.T) {
	withCopies(t, func(t *testing.T, a, _ *replica) {
		req := someRequest()
		run := a.run(req)
		a.link.fail(refused, "settle")
		wantEnd(t, run, created("paid"), resultTrying)
		a.link.fail(works, "settle")
		a.drain()
		wantReplay(t, a.claim(req), run.ExecutionID(), created("paid"), false)
		a.wantAsked("stored", 1)
	})
}

// A replica notices what happens to a key on another one: at once with a wake-up, and within
// CopyBound if the wake-up is lost. Until then its copy answers.
func TestCopiesFollowWhatHappensElsewhere(t *testing.T) {
	happens := map[string]func(t *testing.T, b *replica, req engine.Request){
		"released": func(t *testing.T, b *replica, req engine.Request) {
			if err := b.Release(context.Background(), req.Key, idempotency.Precondition{}); err != nil {
				t.Fatal(err)
			}
		},
		"completed": func(t *testing.T, b *replica, req engine.Request) {
			if err := b.Release(context.Background(), req.Key, idempotency.Precondition{}); err != nil {
				t.Fatal(err)
			}
			if err := b.Complete(context.Background(), req.Key, created("new"), idempotency.Precondition{}); err != nil {
				t.Fatal(err)
			}
		},
		"forgotten": func(t *testing.T, b *replica, req engine.Request) {
			if err := b.Forget(context.Background(), req.Key, idempotency.Precondition{}); err != nil {
				t.Fatal(err)
			}
		},
		"forced": func(t *testing.T, b *replica, req engine.Request) {
			wantEnd(t, b.run(forcing(req)), created("new"), resultKept)
		},
	}
	for name, happen := range happens {
		for _, how := range []string{"here", "notified", "not notified"} {
			t.Run(name+" "+how, func(t *testing.T) {
				withCopies(t, func(t *testing.T, a, b *replica) {
					req := someRequest()
					run := a.run(req)
					wantEnd(t, run, created("old"), resultKept)
					switch how {
					case "here":
						a.link.dropWakeUps() // of its own acts it needs no notification
						happen(t, a, req)
					case "notified":
						happen(t, b, req)
					case "not notified":
						a.link.dropWakeUps()
						happen(t, b, req)
						time.Sleep(engine.CopyBound - time.Millisecond)
						wantReplay(t, a.claim(req), run.ExecutionID(), created("old"), false)
						time.Sleep(time.Millisecond)
					}
					switch d := a.claim(req).(type) {
					case *engine.Run:
						if name == "forced" || name == "completed" {
							t.Errorf("a duplicate runs after the key was %s", name)
						}
					case engine.Replay:
						if name != "forced" && name != "completed" || string(d.Response.Body) != "new" {
							t.Errorf("replayed %q after the key was %s", d.Response.Body, name)
						}
					default:
						t.Errorf("decided %T", d)
					}
				})
			})
		}
	}
}

// While a forced run is in flight, duplicates in its process wait for it.
func TestNoCopyBesideAForcedRun(t *testing.T) {
	withCopies(t, func(t *testing.T, a, _ *replica) {
		req := someRequest()
		wantEnd(t, a.run(req), created("old"), resultKept)
		forced := a.run(forcing(req))
		w := a.claimLater(context.Background(), req)
		synctest.Wait()
		if w.decided() {
			t.Fatalf("decided %+v", w.d)
		}
		wantEnd(t, forced, created("new"), resultKept)
		wantReplay(t, w.decision(), forced.ExecutionID(), created("new"), true)
	})
}

// A request within a forced run of another replica does not get the copy that the run is to replace.
func TestCopyIsNoAnswerWithinAForcedRun(t *testing.T) {
	withCopies(t, func(t *testing.T, front, behind *replica) {
		req := someRequest()
		first := front.run(req)
		wantEnd(t, first, created("old"), resultKept)
		wantReplay(t, behind.claim(req), first.ExecutionID(), created("old"), false)
		behind.link.dropWakeUps()
		forced := front.run(forcing(req))
		inner := req
		inner.Within = forced.ExecutionID()
		wantRefusal(t, behind.claim(inner), engine.ReasonLoop, forced.ExecutionID())
		wantEnd(t, forced, created("new"), resultKept)
	})
}

// A reply from before a key was released must not become a copy after that.
func TestAnswerFromBeforeADropIsNoCopy(t *testing.T) {
	t.Run("of a claim", func(t *testing.T) {
		for _, freedBy := range []string{"this replica", "another"} {
			withCopies(t, func(t *testing.T, a, b *replica) {
				req := someRequest()
				run := a.run(req)
				wantEnd(t, run, created("old"), resultKept)
				resume := b.link.pauseReply("claim")
				w := b.claimLater(context.Background(), req)
				synctest.Wait()
				by := map[string]*replica{"this replica": b, "another": a}[freedBy]
				if err := by.Release(context.Background(), req.Key, idempotency.Precondition{}); err != nil {
					t.Fatal(err)
				}
				resume()
				wantReplay(t, w.decision(), run.ExecutionID(), created("old"), false)
				as[*engine.Run](t, b.claim(req))
			})
		}
	})
	t.Run("of a poll", func(t *testing.T) {
		withCopies(t, func(t *testing.T, a, b *replica) {
			req := someRequest()
			run := a.run(req)
			w := b.claimLater(context.Background(), req)
			synctest.Wait()
			resume := b.link.pauseReply("response")
			wantEnd(t, run, created("old"), resultKept)
			synctest.Wait()
			if err := a.Release(context.Background(), req.Key, idempotency.Precondition{}); err != nil {
				t.Fatal(err)
			}
			resume()
			wantReplay(t, w.decision(), run.ExecutionID(), created("old"), true)
			as[*engine.Run](t, b.claim(req))
		})
	})
	t.Run("of a settlement", func(t *testing.T) {
		withCopies(t, func(t *testing.T, a, _ *replica) {
			req := someRequest()
			run := a.run(req)
			resume := a.link.pauseReply("settle")
			done := make(chan struct{})
			go func() {
				defer close(done)
				wantEnd(t, run, created("old"), resultKept)
			}()
			synctest.Wait()
			if err := a.Release(context.Background(), req.Key, idempotency.Precondition{}); err != nil {
				t.Fatal(err)
			}
			resume()
			<-done
			as[*engine.Run](t, a.claim(req))
		})
	})
}

// A claim whose reply contradicts the copy evicts it: here the store has lost the record.
func TestCopyThatTheStoreContradicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, copies := newShared(t), engine.NewCopies(someCopies)
		a, req := newReplicaWithCopies(t, store, copies), someRequest()
		wantEnd(t, a.run(req), created("old"), resultKept)
		if err := store.Forget(context.Background(), req.Key, idempotency.Precondition{}); err != nil {
			t.Fatal(err)
		}
		// The store has notified: only its next answer becomes a copy.
		run := a.run(req)
		if n := copies.Bytes(); n != 0 {
			t.Errorf("beside a run the copies take %d bytes", n)
		}
		wantEnd(t, run, created("new"), resultKept)
		a.link.dropWakeUps()
		if err := store.Forget(context.Background(), req.Key, idempotency.Precondition{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(engine.CopyBound)
		a.run(req)
		if n := copies.Bytes(); n != 0 {
			t.Errorf("after the contradiction the copies take %d bytes", n)
		}
	})
}
