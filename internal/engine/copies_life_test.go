package engine_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// If the store cannot be asked, a copy answers for as long as its retention lasts, and
// nothing runs.
func TestCopiesAnswerWhileTheStoreIsUnavailable(t *testing.T) {
	for name, how := range map[string]fault{"refuses": refused, "hangs": hung} {
		t.Run(name, func(t *testing.T) {
			withCopies(t, func(t *testing.T, a, _ *replica) {
				req := someRequest()
				req.Policy.Retention = time.Hour
				start := time.Now()
				run := a.run(req)
				wantEnd(t, run, created("paid"), resultKept)
				a.link.fail(how)
				time.Sleep(30 * time.Minute)
				asked := a.link.count("claim")
				for _, w := range a.waiters(3, req) {
					wantReplay(t, w.decision(), run.ExecutionID(), created("paid"), false)
				}
				if a.link.count("claim") == asked {
					t.Error("the store was not asked again")
				}
				other := req
				other.Fingerprint = "body:two"
				wantRefusal(t, a.claim(other), engine.ReasonReused, run.ExecutionID())
				wantReplay(t, a.claim(req), run.ExecutionID(), created("paid"), false)
				wantRefusal(t, a.claim(forcing(req)), engine.ReasonUnavailable, "")
				unknown := req
				unknown.Key = idempotency.Identity{ID: "unknown"}.Key()
				wantRefusal(t, a.claim(unknown), engine.ReasonUnavailable, "")
				// Over the limit of runs the store is asked in another way.
				a.Configure(engine.Settings{Limits: engine.Limits{InFlight: 1}})
				a.link.fail(works)
				a.drain()
				second := a.run(unknown)
				a.link.fail(how)
				wantReplay(t, a.claim(req), run.ExecutionID(), created("paid"), false)
				time.Sleep(time.Until(start.Add(time.Hour)))
				wantRefusal(t, a.claim(req), engine.ReasonUnavailable, "")
				a.link.fail(works)
				wantEnd(t, second, created("later"), resultKept)
			})
		})
	}
}

// An error about the key means that the store is available.
func TestCopyIsNoAnswerWhereTheStoreHasOne(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		reason engine.Reason
	}{
		"unreadable": {&idempotency.UnreadableError{Where: "record", Err: errors.New("damaged")}, engine.ReasonUnreadable},
		"full":       {idempotency.ErrFull, engine.ReasonOverloaded},
	} {
		t.Run(name, func(t *testing.T) {
			withCopies(t, func(t *testing.T, a, _ *replica) {
				req := someRequest()
				wantEnd(t, a.run(req), created("paid"), resultKept)
				time.Sleep(engine.CopyBound)
				a.link.failWith(c.err, "claim")
				wantRefusal(t, a.claim(req), c.reason, "")
				a.link.failWith(nil, "claim")
				a.link.fail(refused)
				wantRefusal(t, a.claim(req), engine.ReasonUnavailable, "") // there is no copy any more
			})
		})
	}
}

// A refusal because of another fingerprint does not evict the copy.
func TestReusedKeyLeavesTheCopy(t *testing.T) {
	withCopies(t, func(t *testing.T, a, _ *replica) {
		req := someRequest()
		run := a.run(req)
		wantEnd(t, run, created("paid"), resultKept)
		time.Sleep(engine.CopyBound)
		other := req
		other.Fingerprint = "body:two"
		wantRefusal(t, a.claim(other), engine.ReasonReused, run.ExecutionID())
		a.wantAsked("an old copy", 2)
		a.link.fail(refused)
		wantReplay(t, a.claim(req), run.ExecutionID(), created("paid"), false)
	})
}

// No copy outlives the record in the store.
func TestCopiesEndWithTheRetention(t *testing.T) {
	const retention = 3 * time.Second
	for name, c := range map[string]struct {
		delay  time.Duration // of what the copy is made of
		settle fault
		copies func(a, b *replica) *replica
	}{
		"after a run":              {copies: func(a, _ *replica) *replica { return a }},
		"after a replay":           {delay: time.Second, copies: func(_, b *replica) *replica { return b }},
		"after a reply was lost":   {settle: replyLost, copies: func(a, _ *replica) *replica { return a }},
		"after a replay of a late": {delay: retention - time.Millisecond, copies: func(_, b *replica) *replica { return b }},
	} {
		t.Run(name, func(t *testing.T) {
			withCopies(t, func(t *testing.T, a, b *replica) {
				req := someRequest()
				req.Policy.Retention, req.Policy.Lease = retention, time.Second
				run := a.run(req)
				start := time.Now()
				a.link.fail(c.settle, "settle")
				_ = end(run, created("paid"))
				a.link.fail(works, "settle")
				a.drain()
				time.Sleep(time.Until(start.Add(c.delay)))
				r := c.copies(a, b)
				wantReplay(t, r.claim(req), run.ExecutionID(), created("paid"), false)
				time.Sleep(time.Until(start.Add(retention - time.Millisecond)))
				asked := r.link.count("claim")
				wantReplay(t, r.claim(req), run.ExecutionID(), created("paid"), false)
				r.wantAsked("before the end", asked)
				time.Sleep(time.Millisecond)
				as[*engine.Run](t, r.claim(req))
			})
		})
	}
}

func TestCopiesAndEncryption(t *testing.T) {
	withCopies(t, func(t *testing.T, a, _ *replica) {
		req := delivered()
		a.Configure(engine.Settings{Sealer: sealing(t, "a")})
		run := a.run(req)
		wantEnd(t, run, created("paid"), resultKept)
		a.Configure(engine.Settings{Sealer: sealing(t, "a")}) // a reload that changes nothing
		wantReplay(t, a.claim(req), run.ExecutionID(), created("paid"), false)
		a.wantAsked("the same keys", 1)
		reused := req
		reused.Fingerprint = "body:two"
		wantRefusal(t, a.claim(reused), engine.ReasonReused, run.ExecutionID())
		a.Configure(engine.Settings{Sealer: sealing(t, "ba")})
		wantReplay(t, a.claim(req), run.ExecutionID(), created("paid"), false)
		a.Configure(engine.Settings{Sealer: sealing(t, "b")})
		if refused := as[engine.Refusal](t, a.claim(req)); refused.Reason != engine.ReasonUnreadable {
			t.Errorf("without its key: %+v", refused)
		}
		a.link.fail(refused)
		wantRefusal(t, a.claim(req), engine.ReasonUnavailable, "")
	})
}

// The response of a run whose encryption key was removed before the end is stored, but not copied.
func TestRunThatOutlivesItsEncryptionKey(t *testing.T) {
	withCopies(t, func(t *testing.T, a, _ *replica) {
		req := delivered()
		req.Fingerprint = "" // with one, the key would be missed in another way
		a.Configure(engine.Settings{Sealer: sealing(t, "a")})
		run := a.run(req)
		a.Configure(engine.Settings{Sealer: sealing(t, "b")})
		wantEnd(t, run, created("paid"), resultKept)
		if refused := as[engine.Refusal](t, a.claim(req)); refused.Reason != engine.ReasonUnreadable {
			t.Errorf("without its key: %+v", refused)
		}
	})
}

// Operators who release or forget a key rely on the published bound.
func TestCopiesKeepToThePublishedBound(t *testing.T) {
	guarantees, err := os.ReadFile("../../docs/guarantees.md")
	if err != nil {
		t.Fatal(err)
	}
	if published := fmt.Sprintf("The published bound is **%v seconds**", engine.CopyBound.Seconds()); !strings.Contains(string(guarantees), published) {
		t.Errorf("docs/guarantees.md does not say %q", published)
	}
}
