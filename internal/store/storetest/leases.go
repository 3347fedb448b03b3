package storetest

import (
	"fmt"
	"strings"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

func takeover(f *fixture) {
	c := f.newClaim(key("a"))
	c.Fingerprints = []string{"body:1"}
	first := f.lapse(c)
	next := f.newClaim(key("a"))
	next.Fingerprints = []string{"body:2"}
	second := f.claimAt(f.peer, next, idempotency.Proceed)
	if second.Record.Attempt != 2 || second.Record.Token != next.Token || second.Record.ExecutionID != next.ExecutionID {
		f.Errorf("taken over: %+v", second.Record)
	}
	f.sameRecord("what was taken over", second.Previous, first.Record)
	f.sameRecord("lookup", f.lookup(key("a")), second.Record)
	f.claim(f.newClaim(key("a")), idempotency.WaitForRun)
}

func lapsedHold(f *fixture) {
	c := f.newClaim(key("a"))
	c.Hold = true
	first := f.lapse(c)
	for range 3 {
		refused := f.claim(f.newClaim(key("a")), idempotency.RefuseHeld)
		f.sameRecord("what the refused claim found", refused.Record, first.Record)
	}
	f.settle(key("a"), first.Record, complete("late, but its own"))
	f.claim(f.newClaim(key("a")), idempotency.ReplayKept)
}

func lateButOwner(f *fixture) {
	c := f.newClaim(key("a"))
	first := f.lapse(c)
	Must(f, f.store.Renew(f.ctx, c))
	f.settle(key("a"), first.Record, complete("late"))
	replayed := f.claim(f.newClaim(key("a")), idempotency.ReplayKept)
	f.sameResponse("the replay", replayed.Response, answer(201, "late"))
}

func renewProlongs(f *fixture) {
	c := f.newClaim(key("a"))
	c.Lease, c.Retention = f.short(), 12*long
	claimed := f.claim(c, idempotency.Proceed)
	c.Lease, c.Retention = long, 24*long
	before := f.now()
	Must(f, f.store.Renew(f.ctx, c))
	after := f.now()
	renewed := f.lookup(c.Key)
	f.between("the lease's end", renewed.LeaseUntil, before.Add(c.Lease), after.Add(c.Lease))
	f.between("the record's end", renewed.Expires, before.Add(c.Life()), after.Add(c.Life()))
	want := *claimed.Record
	want.LeaseUntil, want.Expires = renewed.LeaseUntil, renewed.Expires
	f.sameRecord("all else", renewed, &want)
	f.pass(3 * f.short())
	f.claim(f.newClaim(c.Key), idempotency.WaitForRun)
}

func fencedOwner(f *fixture) {
	k := key("a")
	late := f.newClaim(k)
	first := f.lapse(late)
	c := f.newClaim(k)
	second := f.claim(c, idempotency.Proceed)

	refused := func(when string, want *idempotency.Record) {
		f.Helper()
		WantErr(f, f.store.Renew(f.ctx, late), idempotency.ErrFenced, when)
		for _, s := range []idempotency.Settlement{complete("of the late owner"), release(false, "of the late owner"), hold()} {
			WantErr(f, f.store.Settle(f.ctx, k, first.Record, s), idempotency.ErrFenced, when, s.State)
		}
		f.sameRecord(when, f.lookup(k), want)
		if response := f.response(k, late.Token); response != nil {
			f.Fatalf("%s: the late owner's response was kept", when)
		}
	}
	refused("in flight", second.Record)
	f.settle(k, second.Record, complete("of the new owner"))
	refused("complete", f.lookup(k))
	replayed := f.claim(f.newClaim(k), idempotency.ReplayKept)
	f.sameResponse("the replay", replayed.Response, answer(201, "of the new owner"))
}

func goneRecord(f *fixture) {
	forgotten := f.newClaim(key("forgotten"))
	first := f.lapse(forgotten) // then an operator may forget the key
	Must(f, f.store.Forget(f.ctx, forgotten.Key, idempotency.Precondition{}))
	expired := f.newClaim(key("expired"))
	expired.Lease, expired.Retention = f.short(), f.short()
	second := f.claim(expired, idempotency.Proceed)
	f.pass(expired.Life())

	for _, gone := range []struct {
		claim  idempotency.Claim
		record *idempotency.Record
	}{{forgotten, first.Record}, {expired, second.Record}} {
		WantErr(f, f.store.Renew(f.ctx, gone.claim), idempotency.ErrGone)
		for _, s := range []idempotency.Settlement{complete("kept"), release(true, "released"), hold()} {
			WantErr(f, f.store.Settle(f.ctx, gone.claim.Key, gone.record, s), idempotency.ErrGone, s.State)
		}
		f.absent(gone.claim.Key)
		f.noResponse(gone.claim.Key, gone.claim.Token, "a settlement of a record that is gone left its response")
	}
}

// A server that restarts with older data, or a lagging replica that is promoted, has the record that a
// claim had replaced. The owner of that claim may claim the key again, as if the record were lost, until
// another claim is made.
func lostClaim(f *fixture) {
	for _, settlement := range []idempotency.Settlement{release(true, "busy"), release(false, "not sent")} {
		f.checkLostClaim(fmt.Sprint("released ", settlement.Counted), func(k idempotency.Key) string {
			return f.run(k, settlement).Token
		})
	}
	f.checkLostClaim("lapsed", func(k idempotency.Key) string {
		c := f.newClaim(k)
		f.lapse(c)
		return c.Token
	})
	f.checkLostClaim("released by an operator", func(k idempotency.Key) string {
		f.run(k, complete("kept"))
		Must(f, ErrOf(f.store.Change(f.ctx, k, releasing)))
		return "operator"
	})
}

// checkLostClaim renews and settles a claim that the store does not have. before makes the record that
// the claim had replaced, and returns its token.
func (f *fixture) checkLostClaim(name string, before func(k idempotency.Key) string) {
	f.Helper()
	k := key(name)
	lost := f.newClaim(k)
	lost.PrevToken = before(k)
	old := f.lookup(k)
	record := lost.Record(old, f.now())
	if record.PrevToken != lost.PrevToken {
		f.Fatalf("%s: the claim follows %q, want %q", name, record.PrevToken, lost.PrevToken)
	}
	want := func(when string, want error) {
		f.Helper()
		stands := f.lookup(k)
		WantErr(f, f.store.Renew(f.ctx, lost), want, name, when)
		for _, s := range []idempotency.Settlement{complete("lost"), complete(strings.Repeat("lost ", 20_000)), release(true, "lost"), hold()} {
			WantErr(f, f.store.Settle(f.ctx, k, record, s), want, name, when, s.State)
		}
		f.sameRecord(name+", "+when, f.lookup(k), stands)
		f.noResponse(k, lost.Token, "the response of the lost claim was kept", name, when)
	}
	want("with the old record", idempotency.ErrGone)
	next := f.claimAt(f.peer, f.newClaim(k), idempotency.Proceed)
	want("with another in flight", idempotency.ErrFenced)
	f.settle(k, next.Record, release(false, "another"))
	want("with another that is released", idempotency.ErrFenced)

	// Over an old record without another claim, the claim can be made again and settled.
	k = key(name + " again")
	lost = f.newClaim(k)
	lost.PrevToken = before(k)
	again := f.claim(lost, idempotency.Proceed)
	if again.Record.PrevToken != lost.PrevToken || again.Record.Token != lost.Token {
		f.Errorf("%s: it is claimed again as %+v", name, again.Record)
	}
	WantErr(f, f.store.Renew(f.ctx, lost), nil, name)
	f.settle(k, again.Record, complete("again"))
	f.replays(name+" again", "again")
}

func outlivesLease(f *fixture) {
	c := f.newClaim(key("a"))
	c.Lease, c.Retention, c.Hold = f.short(), time.Millisecond, true
	claimed := f.claim(c, idempotency.Proceed)
	if life := claimed.Record.Expires.Sub(claimed.Record.LeaseUntil); life < c.Lease-time.Millisecond {
		f.Errorf("the record lives %v longer than its lease, want %v", life, c.Lease)
	}
	f.pass(c.Life())
	f.absent(c.Key)
	if again := f.claim(f.newClaim(c.Key), idempotency.Proceed); again.Record.Attempt != 1 || again.Previous != nil {
		f.Errorf("an expired key was claimed as attempt %d over %+v", again.Record.Attempt, again.Previous)
	}
}

func retentionFromSettlement(f *fixture) {
	c := f.newClaim(key("long"))
	claimed := f.claim(c, idempotency.Proceed)
	s := complete("kept")
	s.Retention = 2 * long
	before := f.now()
	f.settle(c.Key, claimed.Record, s)
	settled := f.lookup(c.Key)
	f.between("the record's end", settled.Expires, before.Add(s.Retention), f.now().Add(s.Retention))
	f.pass(f.short())
	replayed := f.claim(f.newClaim(c.Key), idempotency.ReplayKept)
	f.sameRecord("what a replay found", replayed.Record, settled)
	f.sameRecord("after a replay", f.lookup(c.Key), settled)

	c = f.newClaim(key("short"))
	claimed = f.claim(c, idempotency.Proceed)
	s.Retention = f.short()
	f.settle(c.Key, claimed.Record, s)
	f.pass(s.Retention)
	f.absent(c.Key)
	f.noResponse(c.Key, c.Token, "the response outlived its record")
	if again := f.claim(f.newClaim(c.Key), idempotency.Proceed); again.Record.Attempt != 1 {
		f.Errorf("after the retention it is attempt %d, want 1", again.Record.Attempt)
	}
}
