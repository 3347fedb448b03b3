package storetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

func readiness(f *fixture) {
	for range 2 { // the first call must not make the second one fail
		WantErr(f, f.store.Ready(f.ctx), nil)
	}
	ctx, cancel := context.WithCancel(f.ctx)
	cancel()
	WantErr(f, f.store.Ready(ctx), context.Canceled)
	if page, _, err := f.store.List(f.ctx, "", 10); err != nil || len(page) > 0 {
		f.Errorf("Ready has left %v, %v", page, err)
	}
}

// ends has the states in which an operator can find a key, each with the settlement that leads to it. Nil
// means that the lease lapses.
var ends = map[string]*idempotency.Settlement{
	"lapsed":   nil,
	"complete": new(complete("kept")),
	"released": new(release(true, "released")),
	"held":     new(hold()),
}

// endedAs brings a key into the state with this name.
func (f *fixture) endedAs(name string) (idempotency.Claim, *idempotency.Record) {
	f.Helper()
	c := f.newClaim(key(name))
	c.Hold, c.Fingerprints = true, []string{"body:1"}
	s := ends[name]
	if s == nil {
		f.lapse(c)
	} else {
		f.settle(c.Key, f.claim(c, idempotency.Proceed).Record, *s)
	}
	return c, f.lookup(c.Key)
}

// releasing is the change of an operator who releases a key.
var releasing = idempotency.Change{State: idempotency.Released, Token: "operator", Reason: "released by alice"}

func releaseAnyState(f *fixture) {
	for name := range ends {
		c, before := f.endedAs(name)
		found, err := f.store.Change(f.ctx, c.Key, releasing)
		Must(f, err, name)
		f.sameRecord("found by release, "+name, found, before)
		want := *before
		want.Reason = releasing.Reason
		want.State, want.Token, want.ReleasedAttempts, want.LeaseUntil = idempotency.Released, "operator", before.Attempt, f.lookup(c.Key).LeaseUntil
		f.sameRecord("released, "+name, f.lookup(c.Key), &want)
		if want.LeaseUntil.Sub(f.now()) > 0 {
			f.Errorf("released, %s: it has a lease until %v", name, want.LeaseUntil)
		}
		f.noResponse(c.Key, "operator", "released: an operator's act has the response", name)
		// A second Release is no error.
		Must(f, ErrOf(f.store.Change(f.ctx, c.Key, releasing)), name)
		next := f.newClaim(c.Key)
		next.MaxAttempts = 1 // attempts from before the release do not count
		again := f.claimAt(f.peer, next, idempotency.Proceed)
		if again.Record.Attempt != before.Attempt+1 {
			f.Errorf("released, %s: the next attempt is %d, want %d", name, again.Record.Attempt, before.Attempt+1)
		}
		f.settle(c.Key, again.Record, complete("second"))
		f.replays(name, "second")
	}
}

func releaseForced(f *fixture) {
	for size, body := range bodies {
		claimed, c := f.forced(size, body)
		f.pass(c.Lease)
		Must(f, ErrOf(f.store.Change(f.ctx, c.Key, releasing)))
		freed := f.lookup(c.Key)
		if freed.State != idempotency.Released || freed.ExecutionID != claimed.Previous.ExecutionID || freed.Attempt != 2 || freed.Previous != nil {
			f.Errorf("released it is %+v", freed)
		}
		WantErr(f, f.store.Settle(f.ctx, c.Key, claimed.Record, complete("late")), idempotency.ErrFenced)
		f.claimAt(f.peer, f.newClaim(c.Key), idempotency.Proceed)
	}
}

// completing returns the change of an operator who completes a key with a response of this body.
func completing(body string) idempotency.Change {
	return idempotency.Change{State: idempotency.Complete, Token: "operator", Reason: "completed by alice", Response: answer(202, body)}
}

func completeAnyState(f *fixture) {
	for name := range ends {
		for size, body := range bodies {
			if name == "complete" {
				continue
			}
			c, before := f.endedAs(name)
			change := completing(body)
			found, err := f.store.Change(f.ctx, c.Key, change)
			Must(f, err, name, size)
			f.sameRecord("found by complete, "+name, found, before)
			want, got := *before, f.lookup(c.Key)
			want.State, want.Token, want.Reason, want.Status = idempotency.Complete, "operator", change.Reason, 202
			want.LeaseUntil, want.Expires = got.LeaseUntil, got.Expires
			f.sameRecord("completed, "+name, got, &want)
			if got.LeaseUntil.After(f.now()) || got.Expires.Before(before.Expires) {
				f.Errorf("completed, %s: it has a lease until %v, and expires at %v, before %v", name, got.LeaseUntil, got.Expires, before.Expires)
			}
			next := f.newClaim(c.Key)
			next.MaxAttempts, next.Fingerprints = 1, c.Fingerprints // its attempts were used
			f.sameResponse("replayed, "+name+", "+size, f.claimAt(f.peer, next, idempotency.ReplayKept).Response, change.Response)
			if size == "small" {
				next.Token, next.Fingerprints = "another", []string{"body:2"}
				f.claimAt(f.peer, next, idempotency.RefuseReused)
			}
			Must(f, f.store.Forget(f.ctx, c.Key, idempotency.Precondition{}))
			f.noResponse(c.Key, "operator", "forgotten: the response is still there", name)
		}
	}
}

func completedLife(f *fixture) {
	if !f.options.Bubble {
		f.Skip("the clock of this store cannot be moved by a day")
	}
	for size, body := range bodies {
		k := key(size)
		s := hold()
		s.Retention = time.Minute
		f.run(k, s)
		Must(f, ErrOf(f.store.Change(f.ctx, k, completing(body))))
	}
	f.pass(24*time.Hour - time.Minute)
	for size, body := range bodies {
		f.replays(size, body)
	}
	f.pass(time.Minute)
	for size := range bodies {
		f.absent(key(size))
	}
}

func completeTwice(f *fixture) {
	c, before := f.endedAs("complete")
	WantErr(f, ErrOf(f.store.Change(f.ctx, c.Key, completing("again"))), idempotency.ErrComplete)
	f.sameRecord("left alone", f.lookup(c.Key), before)
	f.replays("complete", "kept")
	Must(f, ErrOf(f.store.Change(f.ctx, c.Key, releasing)))
	change := completing("after all")
	change.Token = "another operator"
	WantErr(f, ErrOf(f.store.Change(f.ctx, c.Key, change)), nil)
	f.replays("complete", "after all")
}

func changedOwner(f *fixture) {
	for _, change := range []idempotency.Change{releasing, completing("done")} {
		c, claimed := f.endedAs("lapsed")
		Must(f, ErrOf(f.store.Change(f.ctx, c.Key, change)), change.State)
		WantErr(f, f.store.Renew(f.ctx, c), idempotency.ErrFenced, change.State)
		WantErr(f, f.store.Settle(f.ctx, c.Key, claimed, complete("late")), idempotency.ErrFenced, change.State)
		if got := f.lookup(c.Key); got.State != change.State {
			f.Errorf("changed to %s it is %s", change.State, got.State)
		}
		Must(f, f.store.Forget(f.ctx, c.Key, idempotency.Precondition{}))
	}
}

func forgetAnyState(f *fixture) {
	for name := range ends {
		c, before := f.endedAs(name)
		Must(f, f.store.Forget(f.ctx, c.Key, idempotency.Precondition{}), name)
		f.absent(c.Key)
		f.noResponse(c.Key, before.Token, "forgotten: the response is still there", name)
		WantErr(f, f.store.Forget(f.ctx, c.Key, idempotency.Precondition{}), idempotency.ErrGone, name)
		again := f.claim(f.newClaim(c.Key), idempotency.Proceed)
		if again.Record.Attempt != 1 || again.Previous != nil {
			f.Errorf("forgotten, %s: claimed as attempt %d over %+v", name, again.Record.Attempt, again.Previous)
		}
	}
}

func operatorWithoutRecord(f *fixture) {
	for how, take := range takes {
		for _, pre := range []idempotency.Precondition{{}, {State: idempotency.Held}, {ExecutionID: "another"}} {
			WantErr(f, take(f.peer, f, key("a"), pre), idempotency.ErrGone, how, pre)
		}
	}
	f.absent(key("a"))
}

// Whatever an operator has seen, the run is in flight.
func operatorBesideRun(f *fixture) {
	refused := func(k idempotency.Key) {
		f.Helper()
		before := f.lookup(k)
		for how, take := range takes {
			for _, pre := range []idempotency.Precondition{{}, f.precondition(k), {State: idempotency.Held}, {ExecutionID: "another"}} {
				WantErr(f, take(f.peer, f, k, pre), idempotency.ErrInFlight, how, pre)
			}
		}
		f.sameRecord("lookup", f.lookup(k), before)
	}
	claimed := f.claim(f.newClaim(key("a")), idempotency.Proceed)
	refused(key("a"))
	f.settle(key("a"), claimed.Record, complete("kept"))
	f.replays("a", "kept")
	f.claim(f.newForced(key("a")), idempotency.Proceed)
	refused(key("a"))
}

// Operators release and forget a key while requests claim it. A claim that proceeds must still be able to
// settle, and two runs must never overlap.
func operatorsAndClaims(f *fixture) {
	const rounds = 60
	k := key("a")
	var running sync.Mutex
	var done sync.WaitGroup
	for worker := range 4 {
		done.Go(func() {
			for range rounds {
				claimed, err := f.storeOf(worker).Claim(f.ctx, f.newClaim(k))
				if err != nil {
					f.Errorf("claim: %v", err)
					return
				}
				if claimed.Verdict != idempotency.Proceed {
					continue
				}
				if !running.TryLock() {
					f.Error("two runs at once")
					return
				}
				runtime.Gosched() // let the others try
				running.Unlock()
				WantErr(f, f.storeOf(worker).Settle(f.ctx, k, claimed.Record, complete(claimed.Record.Token)), nil)
			}
		})
		done.Go(func() {
			for round := range rounds {
				_, err := f.storeOf(worker).Change(f.ctx, k, idempotency.Change{State: idempotency.Released, Token: fmt.Sprintf("operator-%d-%d", worker, round)})
				if worker%2 == 0 {
					err = f.storeOf(worker).Forget(f.ctx, k, idempotency.Precondition{})
				}
				if err != nil && !errors.Is(err, idempotency.ErrInFlight) && !errors.Is(err, idempotency.ErrGone) {
					f.Errorf("an operator: %v", err)
				}
			}
		})
	}
	done.Wait()
}
