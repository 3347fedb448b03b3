package storetest

import (
	"errors"
	"fmt"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

func settledKeys(f *fixture) {
	for i, s := range []idempotency.Settlement{release(true, "busy"), release(false, "busy"), hold(), complete("kept")} {
		k := key(fmt.Sprint(i))
		claimed := f.claim(f.newClaim(k), idempotency.Proceed)
		before := f.now()
		f.settle(k, claimed.Record, s)
		settled, after := f.lookup(k), f.now()
		if settled.Ended.IsZero() {
			f.Errorf("a record that is %s does not say when it ended", s.State)
		}
		f.between("the record's end", settled.Expires, before.Add(s.Retention), after.Add(s.Retention))
		want := *claimed.Record
		want.State, want.Ended, want.LeaseUntil, want.Expires = s.State, settled.Ended, time.Time{}, settled.Expires
		want.PrevToken = ""
		if s.Response != nil {
			want.Status = s.Response.Status
		}
		if !s.Counted {
			want.Attempt--
		}
		f.sameRecord("settled as "+string(s.State), settled, &want)
		f.sameResponse("by its token", f.response(k, claimed.Record.Token), s.Response)
		if s.State != idempotency.Complete {
			continue
		}
		for _, store := range []idempotency.Store{f.store, f.peer} {
			replayed := f.claimAt(store, f.newClaim(k), idempotency.ReplayKept)
			f.sameRecord("the replay's record", replayed.Record, settled)
			f.sameResponse("the replay", replayed.Response, s.Response)
			if replayed.Previous != nil {
				f.Errorf("a replay has a previous record: %+v", replayed.Previous)
			}
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
		WantErr(f, f.peer.Renew(f.ctx, c), idempotency.ErrGone, when)
		WantErr(f, ErrOf(f.peer.Change(f.ctx, k, releasing)), idempotency.ErrGone, when)
		WantErr(f, f.peer.Forget(f.ctx, k, idempotency.Precondition{}), idempotency.ErrGone, when)
		f.noResponse(k, c.Token, "there is a response", when)
	}
	nothing("before")
	for range 3 {
		WantErr(f, f.store.Settle(f.ctx, k, record, s), idempotency.ErrGone)
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
