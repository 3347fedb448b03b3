package storetest

import (
	"errors"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

var settleTests = []subtest{
	{"a complete key is replayed", completeReplays},
	{"a released key runs again", releasedRunsAgain},
	{"the attempt counter outlives a release", attemptCounter},
	{"a held key stays held", heldStays},
	{"settling twice does nothing", settleTwice},
	{"a withdrawn claim that was not executed leaves nothing", withdrawsNothing},
}

// checkSettled checks the record of a key after a settlement, and returns it.
func (f *fixture) checkSettled(k idempotency.Key, claimed *idempotency.Record, s idempotency.Settlement, before, after time.Time) *idempotency.Record {
	f.Helper()
	got := f.lookup(k)
	if got.Ended.IsZero() {
		f.Errorf("a record that is %s does not say when it ended", s.State)
	}
	f.between("the record's end", got.Expires, before.Add(s.Retention), after.Add(s.Retention))
	want := *claimed
	want.State, want.Ended, want.LeaseUntil, want.Expires = s.State, got.Ended, time.Time{}, got.Expires
	want.PrevToken = ""
	if s.Response != nil {
		want.Status = s.Response.Status
	}
	if !s.Counted {
		want.Attempt--
	}
	f.sameRecord("settled as "+string(s.State), got, &want)
	return got
}

func completeReplays(f *fixture) {
	k := key("a")
	claimed := f.claim(f.newClaim(k), idempotency.Proceed)
	s := complete("kept")
	before := f.now()
	f.settle(k, claimed.Record, s)
	settled := f.checkSettled(k, claimed.Record, s, before, f.now())
	for _, store := range []idempotency.Store{f.store, f.peer} {
		replayed := f.claimAt(store, f.newClaim(k), idempotency.ReplayKept)
		f.sameRecord("the replay's record", replayed.Record, settled)
		f.sameResponse("the replay", replayed.Response, s.Response)
		if replayed.Previous != nil {
			f.Errorf("a replay has a previous record: %+v", replayed.Previous)
		}
	}
	f.sameResponse("by its token", f.response(k, claimed.Record.Token), s.Response)
}

func releasedRunsAgain(f *fixture) {
	k := key("a")
	c := f.newClaim(k)
	c.Fingerprints = []string{"body:1"}
	first := f.claim(c, idempotency.Proceed)
	s := release(true, "busy")
	before := f.now()
	f.settle(k, first.Record, s)
	released := f.checkSettled(k, first.Record, s, before, f.now())
	again := f.newClaim(k)
	again.Fingerprints = []string{"body:2"}
	second := f.claimAt(f.peer, again, idempotency.Proceed)
	f.sameRecord("what the second run found", second.Previous, released)
	if second.Record.State != idempotency.InFlight || second.Record.Status != 0 || second.Record.Fingerprint != "body:2" {
		f.Errorf("the second run: %+v", second.Record)
	}

	// A settlement without a response keeps none.
	s = idempotency.Settlement{State: idempotency.Released, Retention: long, AnswerRetention: long}
	f.settle(k, second.Record, s)
	if response := f.response(k, again.Token); response != nil {
		f.Errorf("a run that had no answer has a response: %+v", response)
	}
}

func attemptCounter(f *fixture) {
	k := key("a")
	attempt := 1
	for _, counted := range []bool{true, false, false, true, true, false} {
		claimed := f.claim(f.newClaim(k), idempotency.Proceed)
		if claimed.Record.Attempt != attempt {
			f.Fatalf("attempt %d, want %d", claimed.Record.Attempt, attempt)
		}
		f.settle(k, claimed.Record, release(counted, "busy"))
		if counted {
			attempt++
		}
		if got := f.lookup(k).Attempt; got != attempt-1 {
			f.Fatalf("released, counted %v: attempt %d, want %d", counted, got, attempt-1)
		}
	}
}

func heldStays(f *fixture) {
	k := key("a")
	claimed := f.claim(f.newClaim(k), idempotency.Proceed)
	s := hold()
	before := f.now()
	f.settle(k, claimed.Record, s)
	held := f.checkSettled(k, claimed.Record, s, before, f.now())
	f.pass(3 * f.short())
	refused := f.claim(f.newClaim(k), idempotency.RefuseHeld)
	f.sameRecord("what the refused claim found", refused.Record, held)
	same := f.newClaim(k)
	same.Token = claimed.Record.Token
	f.claim(same, idempotency.RefuseHeld)
	f.sameRecord("lookup", f.lookup(k), held)
}

func settleTwice(f *fixture) {
	settlements := []idempotency.Settlement{complete("first"), release(true, "first"), hold()}
	for _, first := range settlements {
		k := key(string(first.State))
		claimed := f.claim(f.newClaim(k), idempotency.Proceed)
		f.settle(k, claimed.Record, first)
		settled := f.lookup(k)
		kept := f.response(k, claimed.Record.Token)
		for _, second := range settlements {
			if second.Response != nil {
				second.Response = answer(299, "second")
			}
			f.settle(k, claimed.Record, second)
			f.sameRecord("settled again as "+string(second.State), f.lookup(k), settled)
			f.sameResponse("settled again as "+string(second.State), f.response(k, claimed.Record.Token), kept)
		}
	}
}

// A claim in doubt may be withdrawn several times, because it may still arrive. Meanwhile, the key is like
// one that was never claimed.
func withdrawsNothing(f *fixture) {
	k := key("a")
	c := f.newClaim(k)
	s := idempotency.Settlement{State: idempotency.Released, Retention: long, AnswerRetention: c.Lease, Withdraws: true}
	record := c.Record(nil, f.now())
	nothing := func(when string) {
		f.Helper()
		f.absent(k)
		if page, _, err := f.store.List(f.ctx, "", 10); err != nil || len(page) != 0 {
			f.Errorf("%s: %d records are listed, %v", when, len(page), err)
		}
		f.wantErr(f.peer.Renew(f.ctx, c), idempotency.ErrGone, when)
		if _, err := f.peer.Change(f.ctx, k, releasing); !errors.Is(err, idempotency.ErrGone) {
			f.Errorf("%s: release: %v, want ErrGone", when, err)
		}
		f.wantErr(f.peer.Forget(f.ctx, k, idempotency.Precondition{}), idempotency.ErrGone, when)
		if response := f.response(k, c.Token); response != nil {
			f.Errorf("%s: there is a response %+v", when, response)
		}
	}
	nothing("before")
	for range 3 {
		f.wantErr(f.store.Settle(f.ctx, k, record, s), idempotency.ErrGone)
		nothing("withdrawn")
	}
	limited := f.newClaim(k)
	limited.MaxAttempts = 1
	next := f.claimAt(f.peer, limited, idempotency.Proceed)
	if next.Record.Attempt != 1 || next.Previous != nil {
		f.Errorf("the next claim is attempt %d over %+v", next.Record.Attempt, next.Previous)
	}
	if err := f.store.Settle(f.ctx, k, record, s); !errors.Is(err, idempotency.ErrFenced) && !errors.Is(err, idempotency.ErrGone) {
		f.Errorf("withdraw beside the next run: %v", err)
	}
	f.sameRecord("after another withdrawal", f.lookup(k), next.Record)
	f.settle(k, next.Record, complete("next"))
	f.replays("a", "next")
}
