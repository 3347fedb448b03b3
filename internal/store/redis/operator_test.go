package redis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// meddler calls a function just before a script is sent for the nth time.
type meddler struct {
	script string // its SHA-1
	before map[int]func()
	sent   int
}

func (*meddler) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (*meddler) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook { return next }

func (m *meddler) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, commands []goredis.Cmder) error {
		for _, command := range commands {
			if command.Name() == "evalsha" && command.Args()[1] == m.script {
				m.sent++
				if do := m.before[m.sent]; do != nil {
					do()
				}
			}
		}
		return next(ctx, commands)
	}
}

// openMeddled opens a store that is interrupted before it sends a script. The server already knows the
// scripts.
func openMeddled(t *testing.T, address string, timeout time.Duration, script *script, before map[int]func()) *Store {
	t.Helper()
	s := closeAtEnd(t, openWith(t, Options{Addresses: []string{address}, Timeout: timeout}))
	c := claimOf("warm", "warm")
	mustSettle(t, s, c, mustClaim(t, s, c, idempotency.Proceed).Record, kept(small))
	must(t, storetest.ErrOf(s.Change(ctx, c.Key, idempotency.Change{State: idempotency.Released, Token: "warm operator"})))
	must(t, s.Forget(ctx, c.Key, idempotency.Precondition{}))
	s.client.(*goredis.Client).AddHook(&meddler{script: script.hash, before: before})
	return s
}

// mustFind returns the record of a key, and fails the test if there is none.
func mustFind(t *testing.T, s *Store, key idempotency.Key) *idempotency.Record {
	t.Helper()
	record, _, err := s.Lookup(ctx, key)
	if err != nil || record == nil {
		t.Fatalf("lookup: %+v, %v; want a record", record, err)
	}
	return record
}

// lapsed claims a key and waits until the claim has lapsed.
func lapsed(t *testing.T, s *Store, c idempotency.Claim) idempotency.Claimed {
	t.Helper()
	c.Lease = time.Millisecond
	claimed := mustClaim(t, s, c, idempotency.Proceed)
	eventually(t, "the claim lapses", func() bool {
		_, now, err := s.Lookup(ctx, c.Key)
		return err == nil && claimed.Record.Lapsed(now)
	})
	return claimed
}

// TestHungServerReleases pauses the server between an operator's lookup and the command. The server
// executes the command from its socket when it resumes, unless the deadline has passed: the operator got
// an error, and may have done something else.
func TestHungServerReleases(t *testing.T) {
	for name, test := range map[string]struct {
		timeout  time.Duration
		executed bool
	}{
		"the key is released late before the deadline": {time.Hour, true},
		"nothing is written after the deadline":        {50 * time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			sent := 0
			s := openMeddled(t, server.Addr, DefaultTimeout, changeScript, map[int]func(){1: func() {
				sent = calls(t, server)["evalsha"]
				server.Pause()
			}})
			s.executeTimeout = test.timeout
			c := claimOf("a", "token")
			mustSettle(t, s, c, mustClaim(t, s, c, idempotency.Proceed).Record, kept(small))
			before := command(t, server, "DUMP", named.record(c.Key))

			if _, err := s.Change(ctx, c.Key, idempotency.Change{State: idempotency.Released, Token: "operator"}); err == nil {
				t.Fatal("a hung server released the key")
			}
			server.Resume()
			eventually(t, "the server executes the command", func() bool { return calls(t, server)["evalsha"] > sent })
			if after := command(t, server, "DUMP", named.record(c.Key)); (after != before) != test.executed {
				t.Errorf("the record was changed: %v, want %v", after != before, test.executed)
			}
			var record *idempotency.Record
			eventually(t, "the server answers", func() (ok bool) {
				var err error
				record, _, err = s.Lookup(ctx, c.Key)
				return err == nil
			})
			if released := record.State == idempotency.Released; released != test.executed {
				t.Errorf("the record is %+v; want it released: %v", record, test.executed)
			}
		})
	}
}

// acts are what another process does with a key. Each returns the record of the run that is alive after it.
var acts = map[string]func(t *testing.T, s *Store, c idempotency.Claim) *idempotency.Record{
	"a run": func(t *testing.T, s *Store, c idempotency.Claim) *idempotency.Record {
		return mustClaim(t, s, withToken(c, "next"), idempotency.Proceed).Record
	},
	"a whole run": func(t *testing.T, s *Store, c idempotency.Claim) *idempotency.Record {
		next := withToken(c, "next")
		mustSettle(t, s, next, mustClaim(t, s, next, idempotency.Proceed).Record, kept(small))
		return nil
	},
	"a run that releases": func(t *testing.T, s *Store, c idempotency.Claim) *idempotency.Record {
		mustSettle(t, s, c, mustClaim(t, s, c, idempotency.Proceed).Record, released())
		return nil
	},
	"a run that lapses": func(t *testing.T, s *Store, c idempotency.Claim) *idempotency.Record {
		lapsed(t, s, c)
		return nil
	},
	"it is renewed": func(t *testing.T, s *Store, c idempotency.Claim) *idempotency.Record {
		must(t, s.Renew(ctx, c))
		return mustFind(t, s, c.Key)
	},
	"it is settled": func(t *testing.T, s *Store, c idempotency.Claim) *idempotency.Record {
		mustSettle(t, s, c, mustFind(t, s, c.Key), kept(large))
		return nil
	},
	"it is forgotten": func(t *testing.T, s *Store, c idempotency.Claim) *idempotency.Record {
		must(t, s.Forget(ctx, c.Key, idempotency.Precondition{}))
		return nil
	},
	"it is forgotten, and a run": func(t *testing.T, s *Store, c idempotency.Claim) *idempotency.Record {
		must(t, s.Forget(ctx, c.Key, idempotency.Precondition{}))
		return mustClaim(t, s, withToken(c, "next"), idempotency.Proceed).Record
	},
	"another operator": func(t *testing.T, s *Store, c idempotency.Claim) *idempotency.Record {
		_, err := s.Change(ctx, c.Key, idempotency.Change{State: idempotency.Released, Token: "another operator"})
		must(t, err)
		return nil
	},
}

// TestRecordChangesBeforeRelease changes the record between the lookup and the command. No live run may
// lose its claim.
func TestRecordChangesBeforeRelease(t *testing.T) {
	server, other := start(t)
	for _, test := range []struct {
		before, meanwhile string
		want              error
	}{
		{"a run that releases", "a run", idempotency.ErrInFlight},
		{"a run that lapses", "a run", idempotency.ErrInFlight},
		{"a run that lapses", "it is renewed", idempotency.ErrInFlight},
		{"a run that lapses", "it is settled", nil},
		{"a run that releases", "a whole run", nil},
		{"a run that releases", "it is forgotten", idempotency.ErrGone},
		{"a run that releases", "it is forgotten, and a run", idempotency.ErrInFlight},
		{"a run that releases", "another operator", nil},
	} {
		t.Run(test.before+", then "+test.meanwhile, func(t *testing.T) {
			c := claimOf(t.Name(), "token")
			acts[test.before](t, other, c)
			var running, changed *idempotency.Record
			s := openMeddled(t, server.Addr, busyTimeout, changeScript, map[int]func(){1: func() {
				running = acts[test.meanwhile](t, other, c)
				changed, _, _ = other.Lookup(ctx, c.Key)
			}})
			found, err := s.Change(ctx, c.Key, idempotency.Change{State: idempotency.Released, Token: "operator"})
			if !errors.Is(err, test.want) {
				t.Fatalf("release: %v, want %v", err, test.want)
			}
			if running != nil {
				mustSettle(t, other, c, running, kept(small))
				if left := mustFind(t, other, c.Key); left.State != idempotency.Complete || left.Token != running.Token {
					t.Errorf("the run that was alive left %+v", left)
				}
			}
			if err == nil {
				if found.Token != changed.Token {
					t.Errorf("released what %s had left, want %s", found.Token, changed.Token)
				}
				if left := mustFind(t, other, c.Key); left.State != idempotency.Released || left.Token != "operator" {
					t.Errorf("released it is %+v", left)
				}
			}
		})
	}
}

// The value of a released key expires as before, and forgetting the key leaves nothing in Redis.
func TestReleasedRecord(t *testing.T) {
	server, s := start(t)
	complete := func(name string, size int) idempotency.Claim {
		c := claimOf(name, "token")
		mustSettle(t, s, c, mustClaim(t, s, c, idempotency.Proceed).Record, kept(size))
		return c
	}
	forced := func(name string, size int) idempotency.Claim {
		c := withToken(complete(name, size), "forced")
		c.Force = true
		lapsed(t, s, c)
		return c
	}
	for name, make := range map[string]func(string, int) idempotency.Claim{"complete": complete, "forced": forced} {
		for _, size := range []int{small, large} {
			c := make(fmt.Sprint(name, size), size)
			record := named.record(c.Key)
			expires := mustFind(t, s, c.Key).Expires
			rewrite(t, server, c.Key, func(p *writable) { p.channels = named.inbox("of a waiter") })
			must(t, storetest.ErrOf(s.Change(ctx, c.Key, idempotency.Change{State: idempotency.Released, Token: "operator"})), name)
			storetest.Equal[any](t, command(t, server, "PEXPIRETIME", record), expires.UnixMilli(), "the released record expires at", name)
			if released := mustFind(t, s, c.Key); !released.Expires.Equal(expires) {
				t.Errorf("%s: the released record says that it expires at %v, want %v", name, released.Expires, expires)
			}
			if left := valueOf(t, server, c.Key); left.channels != "" || left.response != "" {
				t.Errorf("%s: the released record has the channels %q and the response %q", name, left.channels, left.response)
			}
			must(t, s.Forget(ctx, c.Key, idempotency.Precondition{}), name)
			if n := command(t, server, "DBSIZE"); n != int64(0) {
				t.Errorf("%s: %v keys are left: %v", name, n, command(t, server, "KEYS", "*"))
			}
			command(t, server, "FLUSHALL")
		}
	}
}

// A completed key's value and the body beside it live for a day, and forgetting the key leaves nothing. A
// change between the lookup and the script does not cost the body.
func TestCompletedRecord(t *testing.T) {
	server := redistest.Start(t)
	other := closeAtEnd(t, openAt(t, server.Addr))
	for _, size := range []int{small, large} {
		c := claimOf(fmt.Sprint(size), "token")
		mustSettle(t, other, c, mustClaim(t, other, c, idempotency.Proceed).Record, released())
		s := openMeddled(t, server.Addr, busyTimeout, changeScript, map[int]func(){1: func() {
			wantErr(t, storetest.ErrOf(other.Change(ctx, c.Key, idempotency.Change{State: idempotency.Released, Token: "another operator"})), nil)
		}})
		response := kept(size).Response
		must(t, storetest.ErrOf(s.Change(ctx, c.Key, idempotency.Change{State: idempotency.Complete, Token: "operator", Response: response})))
		expires := mustFind(t, s, c.Key).Expires.UnixMilli()
		storetest.Equal[any](t, command(t, server, "PEXPIRETIME", named.record(c.Key)), expires, "the completed record expires at")
		if size == large {
			if at := command(t, server, "PEXPIRETIME", named.response(c.Key, "operator")); at != expires+responseMargin.Milliseconds() {
				t.Errorf("its body expires at %v, want %v later than %v", at, responseMargin, expires)
			}
		}
		if got, err := s.Response(ctx, c.Key, "operator"); err != nil || got == nil || !bytes.Equal(got.Body, response.Body) {
			t.Errorf("its response is %v, %v", got != nil, err)
		}
		must(t, s.Forget(ctx, c.Key, idempotency.Precondition{}))
		storetest.Equal[any](t, command(t, server, "DBSIZE"), int64(0), "keys are left", command(t, server, "KEYS", "*"))
	}
}

// A key is released more often than its record can remember tokens.
func TestReleasedOften(t *testing.T) {
	server, s := start(t)
	c := claimOf("a", "token")
	for i := range 12 {
		c = withToken(c, fmt.Sprint("token", i))
		mustSettle(t, s, c, mustClaim(t, s, c, idempotency.Proceed).Record, released())
		must(t, storetest.ErrOf(s.Change(ctx, c.Key, idempotency.Change{State: idempotency.Released, Token: fmt.Sprint("operator", i)})))
	}
	want := "token11 operator10 token10 operator9 token9 operator8 token8 operator7"
	storetest.Equal(t, valueOf(t, server, c.Key).earlier, want, "the record remembers")
}

// TestLostReplyToAnOperator loses the reply to an executed command. A claim between that command and the
// next attempt is not lost.
func TestLostReplyToAnOperator(t *testing.T) {
	server, other := start(t)
	next := withToken(claimOf("a", ""), "next")
	next.Force = true // for the key that is complete
	for _, claims := range []bool{false, true} {
		for what, test := range map[string]struct {
			script *script
			at     int // which one of its commands
			change idempotency.Change
		}{
			"release":  {changeScript, 1, idempotency.Change{State: idempotency.Released, Token: "operator"}},
			"complete": {changeScript, 1, idempotency.Change{State: idempotency.Complete, Token: "operator", Response: kept(large).Response}},
			"forget":   {forgetScript, 1, idempotency.Change{}},
		} {
			t.Run(fmt.Sprint(what, ", then a claim: ", claims), func(t *testing.T) {
				command(t, server, "FLUSHALL")
				p := startProxy(t, listen(t), server.Addr)
				s := openMeddled(t, p.addr, busyTimeout, test.script, map[int]func(){
					test.at: func() { p.lose.Store(1) },
					test.at + 1: func() {
						if claims {
							mustClaim(t, other, next, idempotency.Proceed)
						}
					},
				})
				c := claimOf("a", "token")
				mustSettle(t, s, c, mustClaim(t, s, c, idempotency.Proceed).Record, released())
				if what != "forget" {
					found, err := s.Change(ctx, c.Key, test.change)
					if err != nil || found.Token != c.Token {
						t.Errorf("found %+v, %v; want what was there at first", found, err)
					}
				} else if err := s.Forget(ctx, c.Key, idempotency.Precondition{}); claims {
					if err == nil || !strings.Contains(err.Error(), "the reply was lost, and the record has changed since") {
						t.Errorf("forget: %v; want that its outcome is unknown", err)
					}
				} else {
					must(t, err)
				}
				if left := p.lose.Load(); left != 0 {
					t.Fatal("no reply was lost")
				}
				switch record, _, err := other.Lookup(ctx, c.Key); {
				case err != nil:
					t.Error(err)
				case claims:
					if record == nil || record.State != idempotency.InFlight || record.Token != next.Token {
						t.Errorf("the claim is lost: %+v", record)
					}
				case what == "forget":
					if record != nil {
						t.Errorf("forgotten it is %+v", record)
					}
				case record == nil || record.State != test.change.State || record.Token != "operator":
					t.Errorf("it leaves %+v", record)
				}
			})
		}
	}
}
