package storetest

import (
	"strings"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// bodies are a small body and a large one, which a store may keep differently.
var bodies = map[string]string{"small": "first", "large": strings.Repeat("first ", 50_000)}

// forced keeps a response with this body, and then claims the key with Force.
func (f *fixture) forced(name, body string) (idempotency.Claimed, idempotency.Claim) {
	f.Helper()
	k := key(name)
	f.run(k, complete(body))
	c := f.newForced(k)
	c.Lease = f.short()
	claimed := f.claim(c, idempotency.Proceed)
	if claimed.Previous == nil || claimed.Record.ParentID != claimed.Previous.ExecutionID {
		f.Fatalf("the forced run's record %+v does not name its parent %+v", claimed.Record, claimed.Previous)
	}
	f.claimAt(f.peer, f.newClaim(k), idempotency.WaitForRun)
	return claimed, c
}

// replays fails the test unless the key replays this body.
func (f *fixture) replays(name, body string) {
	f.Helper()
	got := f.claimAt(f.peer, f.newClaim(key(name)), idempotency.ReplayKept)
	if got.Response == nil || string(got.Response.Body) != body {
		f.Fatalf("the key replays %.20q, want %.20q", got.Response.Body, body)
	}
}

func forcedReplaces(f *fixture) {
	for before, body := range bodies {
		for after, next := range bodies {
			name := before + " by " + after
			claimed, c := f.forced(name, body)
			Must(f, f.store.Renew(f.ctx, c))
			f.settle(key(name), claimed.Record, complete("second "+next))
			f.replays(name, "second "+next)
		}
	}
}

func forcedLeaves(f *fixture) {
	for size, body := range bodies {
		for _, s := range []idempotency.Settlement{release(true, "failed"), release(false, "not sent"), hold()} {
			name := size + string(s.State)
			if !s.Counted {
				name += " not sent"
			}
			claimed, _ := f.forced(name, body)
			before := claimed.Previous
			f.settle(key(name), claimed.Record, s)
			f.settle(key(name), claimed.Record, s) // its reply was lost
			f.replays(name, body)
			left := f.lookup(key(name))
			if left.Token != before.Token || left.ExecutionID != before.ExecutionID || !left.Expires.Equal(before.Expires) {
				f.Errorf("%s: it leaves %+v, not %+v", name, left, before)
			}
			if s.Response != nil {
				if got := f.response(key(name), claimed.Record.Token); got == nil || string(got.Body) != string(s.Response.Body) {
					f.Errorf("%s: the response of the forced run is %+v", name, got)
				}
			}
			// The next forced run can still replace the response.
			f.settle(key(name), f.claim(f.newForced(key(name)), idempotency.Proceed).Record, complete("third"))
			f.replays(name, "third")
		}
	}
}

func forcedLapses(f *fixture) {
	for size, body := range bodies {
		claimed, c := f.forced(size, body)
		f.checkKeptBeside(size, body, claimed)
		f.pass(c.Lease)
		f.checkKeptBeside(size, body, claimed)
		f.replays(size, body)
		if left := f.lookup(key(size)); left.State != idempotency.Complete || left.Token != claimed.Previous.Token {
			f.Errorf("the lapsed forced run leaves %+v", left)
		}
		f.sameRecord("listed", f.list(10)[key(size)].Record, f.lookup(key(size)))
		// No other claim was made since, so the late owner can still keep its response.
		f.settle(key(size), claimed.Record, complete("late"))
		f.replays(size, "late")
	}
}

// All operations agree that there is no record.
func forcedLapsesOverExpired(f *fixture) {
	for name, body := range bodies {
		k, s := key(name), complete(body)
		s.Retention = 2 * f.short()
		f.run(k, s)
		f.lapse(f.newForced(k))
		f.pass(f.short()) // until the response has expired as well
		f.absent(k)
		if listed, ok := f.list(10)[k]; ok {
			f.Errorf("%s: it is listed as %+v", name, listed)
		}
		WantErr(f, ErrOf(f.store.Change(f.ctx, k, releasing)), idempotency.ErrGone, name)
		WantErr(f, f.store.Forget(f.ctx, k, idempotency.Precondition{}), idempotency.ErrGone, name)
		f.absent(k)
		next := f.claimAt(f.peer, f.newClaim(k), idempotency.Proceed)
		if next.Record.Attempt != 1 || next.Previous != nil {
			f.Errorf("%s: it is claimed as attempt %d over %+v", name, next.Record.Attempt, next.Previous)
		}
	}
}

// A claim that is repeated after its record has lapsed is the same run, whether the response before it is
// still kept or has expired as well.
func forcedMadeAgain(f *fixture) {
	for name, expired := range map[string]bool{"expired": true, "kept": false} {
		k, s := key(name), complete("first")
		s.Retention = 2 * f.short()
		if !expired {
			s.Retention = 24 * long
		}
		f.run(k, s)
		c := f.newClaim(k)
		c.Force, c.Lease = true, f.short()
		f.claim(c, idempotency.Proceed)
		f.pass(2 * f.short())
		c.Force = !expired
		again := f.claim(c, idempotency.Proceed)
		if replaces := again.Record.Previous != nil; replaces == expired {
			f.Errorf("%s: it is to replace %+v", name, again.Record.Previous)
		}
		f.settle(k, again.Record, complete("second"))
		f.replays(name, "second")
	}
}

// A copy of a claim may arrive after its run has ended, for example because a client library has sent it
// twice. It must not start a run, which would never be settled.
func delayedCopies(f *fixture) {
	for name, c := range map[string]struct {
		end  idempotency.Settlement
		want idempotency.Verdict
	}{
		"complete":            {complete("kept"), idempotency.ReplayKept},
		"complete, and large": {complete(strings.Repeat("kept ", 60_000)), idempotency.ReplayKept},
		"released":            {release(true, "busy"), idempotency.WaitForRun},
		"held":                {hold(), idempotency.RefuseHeld},
	} {
		for _, forced := range []bool{false, true} {
			over := map[bool]string{false: "nothing", true: "a kept response"}[forced]
			if forced && c.end.State != idempotency.Complete {
				continue // it leaves the response before, of another claim
			}
			claim := f.newClaim(key(name + " over " + over))
			if forced {
				f.run(claim.Key, complete("before"))
			}
			claim.Force = forced
			f.settle(claim.Key, f.claim(claim, idempotency.Proceed).Record, c.end)
			ended := f.lookup(claim.Key)
			for _, claim.Force = range []bool{false, true} {
				f.claimAt(f.peer, claim, c.want)
				f.sameRecord(name+" over "+over, f.lookup(claim.Key), ended)
			}
		}
	}
}

// checkKeptBeside fails the test if a forced run in flight has a response, or if the
// response of the run before it is gone.
func (f *fixture) checkKeptBeside(name, body string, forced idempotency.Claimed) {
	f.Helper()
	if got := f.response(key(name), forced.Record.Token); got != nil {
		f.Errorf("the forced run in flight has the response %.20q", got.Body)
	}
	if got := f.response(key(name), forced.Previous.Token); got == nil || string(got.Body) != body {
		f.Errorf("the response that it is to replace is %+v", got)
	}
}

// The store has lost the claim of a third attempt, and the owner has made it again. The store then counts
// it as the first attempt.
func settlesWithOwnersAttempts(f *fixture) {
	c := f.newClaim(key("a"))
	claimed := f.claim(c, idempotency.Proceed).Record
	third := *claimed
	third.Attempt = 3
	f.settle(c.Key, &third, release(true, "failed"))
	if left := f.lookup(c.Key); left.Attempt != 3 {
		f.Errorf("it leaves attempt %d, want 3", left.Attempt)
	}
}

func forcedOverNothing(f *fixture) {
	claimed := f.claim(f.newForced(key("a")), idempotency.Proceed)
	if claimed.Record.ParentID != "" || claimed.Record.Attempt != 1 {
		f.Errorf("it is %+v", claimed.Record)
	}
	f.settle(key("a"), claimed.Record, release(true, "failed"))
	if left := f.lookup(key("a")); left.State != idempotency.Released {
		f.Errorf("it leaves %+v", left)
	}
}
