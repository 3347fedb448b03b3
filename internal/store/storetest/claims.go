package storetest

import (
	"context"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

func freshKey(f *fixture) {
	c := f.newClaim(key("a"))
	c.Fingerprints, c.Hold = []string{"body:1"}, true
	before := f.now()
	claimed := f.claim(c, idempotency.Proceed)
	after := f.now()
	r := claimed.Record
	want := idempotency.Record{
		State: idempotency.InFlight, Token: c.Token, ExecutionID: c.ExecutionID, Attempt: 1,
		Fingerprint: "body:1", Hold: true, Origin: c.Origin,
		Claimed: r.Claimed, LeaseUntil: r.LeaseUntil, Expires: r.Expires,
	}
	f.sameRecord("the record", r, &want)
	f.between("now", claimed.Now, before, after)
	f.between("the lease's end", r.LeaseUntil, before.Add(c.Lease), after.Add(c.Lease))
	f.between("the record's end", r.Expires, before.Add(c.Life()), after.Add(c.Life()))
	if r.Claimed.IsZero() {
		f.Error("the record does not say when it was claimed")
	}
	if claimed.Previous != nil || claimed.Response != nil {
		f.Errorf("a fresh key had a record %+v, a response %v", claimed.Previous, claimed.Response)
	}
	f.sameRecord("lookup", f.lookup(c.Key), r)
	f.noResponse(c.Key, c.Token, "a run in flight has a response")
}

func sameToken(f *fixture) {
	c := f.newClaim(key("a"))
	first := f.claim(c, idempotency.Proceed)
	again := f.claim(c, idempotency.Proceed)
	if again.Record.Attempt != 1 || again.Record.Token != c.Token {
		f.Errorf("the retried claim: %+v", again.Record)
	}
	f.sameRecord("what the retry found", again.Previous, first.Record)
	f.sameRecord("lookup", f.lookup(c.Key), again.Record)

	lapsing := f.newClaim(key("b"))
	lapsing.Lease = f.short()
	f.claim(lapsing, idempotency.Proceed)
	f.pass(lapsing.Lease)
	if again := f.claim(lapsing, idempotency.Proceed); again.Record.Attempt != 1 {
		f.Errorf("retried after its own lease it is attempt %d, want 1", again.Record.Attempt)
	}
}

func endedContext(f *fixture) {
	ctx, cancel := context.WithCancel(f.ctx)
	cancel()
	claimed, err := f.store.Claim(ctx, f.newClaim(key("a")))
	if err == nil {
		f.Fatal("a claim with an ended context is no error")
	}
	if claimed.Record == nil {
		f.pass(idempotency.ClaimTimeout)
		f.absent(key("a"))
	}
}

func unknownKey(f *fixture) {
	f.absent(key("a"))
	f.noResponse(key("a"), "token", "an unknown key has a response")
}

func noAliases(f *fixture) {
	k := key("a")
	claimed := f.claim(f.newClaim(k), idempotency.Proceed)
	record := *claimed.Record
	claimed.Record.State, claimed.Record.Token = idempotency.Held, "scribbled"
	f.sameRecord("after a caller wrote into its record", f.lookup(k), &record)

	s := complete("kept")
	want := complete("kept").Response
	f.settle(k, &record, s)
	scribble := func(r *idempotency.Response) {
		r.Body[0] = 'X'
		r.Header["Content-Type"][0] = "scribbled"
		r.Header["More"] = []string{"scribbled"}
	}
	scribble(s.Response)
	replayed := f.claim(f.newClaim(k), idempotency.ReplayKept)
	f.sameResponse("after the settler wrote into its response", replayed.Response, want)
	scribble(replayed.Response)
	read := f.response(k, record.Token)
	f.sameResponse("after a replayer wrote into its response", read, want)
	scribble(read)
	f.sameResponse("after a reader wrote into its response", f.response(k, record.Token), want)
}
