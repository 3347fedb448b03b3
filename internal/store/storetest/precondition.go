package storetest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// takes has the operations by which an operator takes a key.
var takes = map[string]func(idempotency.Store, *fixture, idempotency.Key, idempotency.Precondition) error{
	"release": func(s idempotency.Store, f *fixture, k idempotency.Key, pre idempotency.Precondition) error {
		return f.change(s, k, releasing, pre)
	},
	"complete": func(s idempotency.Store, f *fixture, k idempotency.Key, pre idempotency.Precondition) error {
		return f.change(s, k, completing("done"), pre)
	},
	"forget": func(s idempotency.Store, f *fixture, k idempotency.Key, pre idempotency.Precondition) error {
		return s.Forget(f.ctx, k, pre)
	},
}

// change makes an operator's change with a new token.
func (f *fixture) change(s idempotency.Store, k idempotency.Key, c idempotency.Change, pre idempotency.Precondition) error {
	c.Token, c.Precondition = fmt.Sprint("operator-", f.tokens.Add(1)), pre
	_, err := s.Change(f.ctx, k, c)
	return err
}

// precondition returns the precondition of an operator that sees the key now.
func (f *fixture) precondition(k idempotency.Key) idempotency.Precondition {
	f.Helper()
	found, now, err := f.store.Lookup(f.ctx, k)
	if err != nil || found == nil {
		f.Fatalf("lookup: %+v, %v; want a record", found, err)
	}
	return idempotency.PreconditionOf(found, now)
}

// wantChanged fails the test unless err is a ChangedError with the current state.
func (f *fixture) wantChanged(what string, err error, now idempotency.Precondition) {
	f.Helper()
	if changed, ok := errors.AsType[idempotency.ChangedError](err); !ok || changed.Now != now {
		f.Errorf("%s: %v, want that it has changed, and is %+v now", what, err, now)
	}
}

func takenWithPrecondition(f *fixture) {
	for end := range ends {
		for how, take := range takes {
			if how == "complete" && end == "complete" {
				continue
			}
			c, before := f.endedAs(end)
			pre := f.precondition(c.Key)
			for _, other := range []idempotency.Precondition{
				{ExecutionID: "another", State: pre.State},
				{ExecutionID: "another"},
				{ExecutionID: pre.ExecutionID, State: idempotency.InFlight},
				{State: idempotency.InFlight},
				{State: idempotency.Unreadable},
				{ExecutionID: pre.ExecutionID, State: idempotency.Unreadable},
			} {
				f.wantChanged(fmt.Sprintf("%s, %s, seen %+v", how, end, other), take(f.peer, f, c.Key, other), pre)
			}
			f.sameRecord("left alone", f.lookup(c.Key), before)
			WantErr(f, take(f.peer, f, c.Key, pre), nil, how, end)
			if after := map[string]idempotency.State{"release": idempotency.Released, "complete": idempotency.Complete}[how]; after != "" {
				f.wantChanged(how+" twice as seen, "+end, take(f.store, f, c.Key, idempotency.Precondition{ExecutionID: "another"}),
					idempotency.Precondition{ExecutionID: pre.ExecutionID, State: after})
			} else if err := take(f.store, f, c.Key, pre); !errors.Is(err, idempotency.ErrGone) {
				f.Errorf("forget twice as seen, %s: %v", end, err)
			}
			if err := f.store.Forget(f.ctx, c.Key, idempotency.Precondition{}); err != nil && !errors.Is(err, idempotency.ErrGone) {
				f.Fatalf("forget: %v", err)
			}
		}
	}
}

func runSincePrecondition(f *fixture) {
	for how, take := range takes {
		c, _ := f.endedAs("held")
		held := f.precondition(c.Key)
		Must(f, f.change(f.peer, c.Key, releasing, held))
		f.wantChanged(how+" a released key", take(f.store, f, c.Key, held), idempotency.Precondition{ExecutionID: held.ExecutionID, State: idempotency.Released})
		next := f.newClaim(c.Key)
		f.settle(c.Key, f.claimAt(f.peer, next, idempotency.Proceed).Record, complete("kept"))
		f.wantChanged(how+" a key that has run", take(f.store, f, c.Key, held), idempotency.Precondition{ExecutionID: next.ExecutionID, State: idempotency.Complete})
		f.replays("held", "kept")
		Must(f, f.store.Forget(f.ctx, c.Key, idempotency.Precondition{}))
	}
}

// Such an end changes neither the token nor the execution ID.
func endedSincePrecondition(f *fixture) {
	for how, take := range takes {
		c, claimed := f.endedAs("lapsed")
		lapsed := f.precondition(c.Key)
		f.settle(c.Key, claimed, complete("late"))
		f.wantChanged(how, take(f.peer, f, c.Key, lapsed), idempotency.Precondition{ExecutionID: c.ExecutionID, State: idempotency.Complete})
		f.replays("lapsed", "late")
		Must(f, f.store.Forget(f.ctx, c.Key, idempotency.Precondition{}))
	}
}

func unreadablePrecondition(f *fixture) {
	if f.options.Damage == nil {
		f.Skip("this store has no records that cannot be read")
	}
	c, _ := f.endedAs("complete")
	readable := f.precondition(c.Key)
	f.options.Damage(f.T, f.store, c.Key)
	for _, pre := range []idempotency.Precondition{readable, {State: readable.State}, {ExecutionID: readable.ExecutionID}} {
		f.wantChanged("forget", f.store.Forget(f.ctx, c.Key, pre), idempotency.Precondition{State: idempotency.Unreadable})
	}
	var unreadable *idempotency.UnreadableError
	for _, change := range []idempotency.Change{releasing, completing("done")} {
		if err := f.change(f.store, c.Key, change, idempotency.Precondition{State: idempotency.Unreadable}); !errors.As(err, &unreadable) {
			f.Errorf("change to %s: %v, want an UnreadableError", change.State, err)
		}
	}
	if _, _, err := f.store.Lookup(f.ctx, c.Key); !errors.As(err, &unreadable) {
		f.Errorf("after that: %v, want an UnreadableError", err)
	}
	WantErr(f, f.store.Forget(f.ctx, c.Key, idempotency.Precondition{State: idempotency.Unreadable}), nil)
	f.absent(c.Key)
}

// Several operators have seen the same held key. One of them takes it, and a sender's retry runs. The
// others must not take what the retry leaves.
func takenOnce(f *fixture) {
	for how, take := range takes {
		for range 20 {
			c, _ := f.endedAs("held")
			held := f.precondition(c.Key)
			var taken atomic.Int64
			var done sync.WaitGroup
			for worker := range 6 {
				done.Go(func() {
					err := take(f.storeOf(worker), f, c.Key, held)
					_, changed := errors.AsType[idempotency.ChangedError](err)
					switch {
					case err == nil:
						taken.Add(1)
					case !changed && !errors.Is(err, idempotency.ErrGone) && !errors.Is(err, idempotency.ErrInFlight):
						f.Errorf("%s: %v", how, err)
					}
				})
			}
			done.Go(func() {
				for range 1000 {
					claimed, err := f.store.Claim(f.ctx, f.newClaim(c.Key))
					if err == nil && claimed.Verdict == idempotency.ReplayKept {
						return
					}
					if err == nil && claimed.Verdict != idempotency.Proceed {
						continue // no operator has taken it yet
					}
					if err == nil {
						err = f.store.Settle(f.ctx, c.Key, claimed.Record, complete("retry"))
					}
					if err != nil {
						f.Errorf("the retry: %v", err)
					}
					return
				}
			})
			done.Wait()
			if taken.Load() != 1 {
				f.Fatalf("%s: %d operators took the key", how, taken.Load())
			}
			if found, _, err := f.store.Lookup(f.ctx, c.Key); err != nil || found != nil && found.State == idempotency.Complete {
				f.replays("held", map[string]string{"complete": "done", "release": "retry", "forget": "retry"}[how])
			}
			if err := f.store.Forget(f.ctx, c.Key, idempotency.Precondition{}); err != nil && !errors.Is(err, idempotency.ErrGone) {
				f.Fatalf("forget: %v", err)
			}
		}
	}
}
