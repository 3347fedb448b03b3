package redis

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// act is what another process does with a key. It returns the record of the run that is alive after it.
type act func(t *testing.T, s *Store, c idempotency.Claim) *idempotency.Record

// after returns an act of acts. The run that is alive is that of the last one.
func after(acts ...act) act {
	return func(t *testing.T, s *Store, c idempotency.Claim) (alive *idempotency.Record) {
		for _, do := range acts {
			alive = do(t, s, c)
		}
		return alive
	}
}

func runs(t *testing.T, s *Store, c idempotency.Claim) *idempotency.Record {
	return mustClaim(t, s, withToken(c, "next"), idempotency.Proceed).Record
}

func lapses(t *testing.T, s *Store, c idempotency.Claim) *idempotency.Record {
	c.Lease = time.Second
	mustClaim(t, s, c, idempotency.Proceed)
	time.Sleep(c.Lease)
	return nil
}

func ends(settlement idempotency.Settlement) act {
	return func(t *testing.T, s *Store, c idempotency.Claim) *idempotency.Record {
		t.Helper()
		mustSettle(t, s, c, mustClaim(t, s, c, idempotency.Proceed).Record, settlement)
		return nil
	}
}

// settlesLate settles the run that is there.
func settlesLate(t *testing.T, s *Store, c idempotency.Claim) *idempotency.Record {
	mustSettle(t, s, c, mustFind(t, s, c.Key), kept(large))
	return nil
}

func renews(t *testing.T, s *Store, c idempotency.Claim) *idempotency.Record {
	must(t, s.Renew(ctx, c))
	return mustFind(t, s, c.Key)
}

func forgets(t *testing.T, s *Store, c idempotency.Claim) *idempotency.Record {
	must(t, s.Forget(ctx, c.Key, noPrecondition))
	return nil
}

func operates(t *testing.T, s *Store, c idempotency.Claim) *idempotency.Record {
	must(t, storetest.ErrOf(s.Change(ctx, c.Key, idempotency.Change{State: idempotency.Released, Token: "another operator"})))
	return nil
}

// TestRecordChangesMeanwhile changes the record between an operator's look-up and the command. No live run loses its
// claim, and an operator takes only what was seen.
func TestRecordChangesMeanwhile(t *testing.T) {
	changed := func(now idempotency.State) error {
		return idempotency.ChangedError{Now: idempotency.Precondition{ExecutionID: "execution of token", State: now}}
	}
	forget := func(seen idempotency.State) func(*Store, idempotency.Claim) error {
		return func(s *Store, c idempotency.Claim) error {
			return s.Forget(ctx, c.Key, idempotency.Precondition{State: seen})
		}
	}
	release := func(s *Store, c idempotency.Claim) error {
		return storetest.ErrOf(s.Change(ctx, c.Key, operatorReleases()))
	}
	released, complete := ends(released()), ends(kept(small))
	for name, test := range map[string]struct {
		before    act
		operator  func(*Store, idempotency.Claim) error
		meanwhile act
		want      error
	}{
		"released, a run": {released, release, runs, idempotency.ErrInFlight},
		"released, a whole run": {released, release, func(t *testing.T, s *Store, c idempotency.Claim) *idempotency.Record {
			return complete(t, s, withToken(c, "next"))
		}, nil},
		"released, it is forgotten":              {released, release, forgets, idempotency.ErrGone},
		"released, forgotten, and a run":         {released, release, after(forgets, runs), idempotency.ErrInFlight},
		"released, another operator":             {released, release, operates, nil},
		"lapsed, a run":                          {lapses, release, runs, idempotency.ErrInFlight},
		"lapsed, it is renewed":                  {lapses, release, renews, idempotency.ErrInFlight},
		"lapsed, it is settled":                  {lapses, release, settlesLate, nil},
		"forgets a lapsed run, settled":          {lapses, forget(idempotency.Lapsed), settlesLate, changed(idempotency.Complete)},
		"forgets a complete key, released":       {complete, forget(idempotency.Complete), operates, changed(idempotency.Released)},
		"forgets what is not ours, replaced":     {nil, forget(idempotency.Unreadable), after(forgets, complete), changed(idempotency.Complete)},
		"forgets what is not ours, then a run":   {nil, forget(""), after(forgets, runs), idempotency.ErrInFlight},
		"forgets a released key, then a run":     {released, forget(""), runs, idempotency.ErrInFlight},
		"forgets a released key, and it is gone": {released, forget(""), forgets, idempotency.ErrGone},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, server fake) {
				other, _ := server.open(t, Options{})
				s, l := server.open(t, Options{})
				c := claimOf("a", "token")
				if test.before == nil { // with a lease
					must(t, server.Set(named.record(c.Key), writable{
						form: valueForm, state: "f", revision: "0123456789", lease: "9999999999999", expiry: "9999999999999", token: "x", record: "not a record",
					}.String()))
				} else {
					test.before(t, other, c)
				}
				var alive *idempotency.Record
				do := func() fault { alive = test.meanwhile(t, other, c); return noFault }
				hash := changeScript.hash
				if strings.HasPrefix(name, "forgets") {
					hash = forgetScript.hash
				}
				l.setFor(hash, 1, do)
				err := test.operator(s, c)
				if changed, ok := errors.AsType[idempotency.ChangedError](test.want); ok {
					if got, ok := errors.AsType[idempotency.ChangedError](err); !ok || got.Now != changed.Now {
						t.Errorf("%v, want %v", err, test.want)
					}
				} else {
					wantErr(t, err, test.want)
				}
				if alive != nil {
					mustSettle(t, other, c, alive, kept(small))
				}
				if err == nil {
					storetest.Equal(t, mustFind(t, other, c.Key).Token, "operator", "token of the record")
				}
			})
		})
	}
}

// A reply to an operator's command is lost, and a run claims the key before the command is sent again. The claim stays.
func TestClaimBetweenAnOperatorsAttempts(t *testing.T) {
	for _, name := range []string{"release", "complete", "forget"} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, server fake) {
				other, _ := server.open(t, Options{})
				s, l := server.open(t, Options{})
				c, o, sent := claimOf("a", "token"), operations[name], 0
				next := withToken(c, "next")
				next.Force = true // for the key that is complete
				before := o.finds(t, other, c)
				l.setFor(o.command, 2, func() fault {
					if sent++; sent == 1 {
						return loseReply
					}
					mustClaim(t, other, next, idempotency.Proceed)
					return noFault
				})
				_, err := o.do(s, c, before)
				if name == "forget" {
					if err == nil || !strings.Contains(err.Error(), "look it up again") {
						t.Errorf("%v; want that the outcome is unknown", err)
					}
				} else {
					must(t, err)
				}
				if left := mustFind(t, other, c.Key); sent != 2 || left.State != idempotency.InFlight || left.Token != next.Token {
					t.Errorf("after %d commands, it is %+v; want the claim", sent, left)
				}
			})
		})
	}
}

// The record changes between each look-up and the write that follows it, many times in a row. As long as the
// timeout has not passed, the operation tries again.
func TestRecordThatChangesManyTimes(t *testing.T) {
	for name, test := range map[string]struct {
		script *script
		do     func(s *Store, c idempotency.Claim) error
	}{
		"claimed": {claimScript, func(s *Store, c idempotency.Claim) error {
			_, err := s.Claim(ctx, withToken(c, "next"))
			return err
		}},
		"released": {changeScript, func(s *Store, c idempotency.Claim) error {
			return storetest.ErrOf(s.Change(ctx, c.Key, operatorReleases()))
		}},
		"forgotten": {forgetScript, func(s *Store, c idempotency.Claim) error { return s.Forget(ctx, c.Key, noPrecondition) }},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, server fake) {
				other, _ := server.open(t, Options{})
				s, l := server.open(t, Options{})
				c, times := claimOf("a", "token"), 0
				ends(released())(t, other, c)
				l.setFor(test.script.hash, 40, func() fault {
					times++
					must(t, storetest.ErrOf(other.Change(ctx, c.Key, idempotency.Change{State: idempotency.Released, Token: fmt.Sprint("operator ", times)})))
					return noFault
				})
				wantErr(t, test.do(s, c), nil)
				storetest.Equal(t, times, 40, "times changed")
			})
		})
	}
}

// must1 returns a value, or panics.
func must1[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
