package redis

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// If the first attempt did not reach the server, it has not removed the record, so a missing record is
// an ErrGone.
func TestForgetAfterARefusedConnection(t *testing.T) {
	server := redistest.Start(t)
	o := Options{Addresses: []string{server.Addr}, Timeout: busyTimeout}
	var dials atomic.Int64
	o.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		if dials.Add(1) == 1 {
			return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	s := closeAtEnd(t, openWith(t, o))
	wantErr(t, s.Forget(ctx, keyOf("a"), idempotency.Precondition{}), idempotency.ErrGone)
	if n := dials.Load(); n < 2 || n > 1+maxFlushes { // the others may both dial
		t.Errorf("%d dials, want 2", n)
	}
}

// While an operator forgets an unreadable record with a lease, another operator forgets it as well, and
// a run claims the key. The run must keep its claim.
func TestForgetUnreadableThatBecomesALiveRun(t *testing.T) {
	server := redistest.Start(t)
	other := closeAtEnd(t, openAt(t, server.Addr))
	c := claimOf("a", "next")
	var running *idempotency.Record
	s := openMeddled(t, server.Addr, busyTimeout, forgetScript, map[int]func(){1: func() {
		must(t, other.Forget(ctx, c.Key, idempotency.Precondition{}))
		running = mustClaim(t, other, c, idempotency.Proceed).Record
	}})
	command(t, server, "SET", named.record(c.Key), writable{
		form: valueForm, state: "f", revision: "0123456789", lease: "9999999999999", expiry: "9999999999999", token: "x", record: "not a record",
	}.String())
	wantErr(t, s.Forget(ctx, c.Key, idempotency.Precondition{}), idempotency.ErrInFlight)
	wantErr(t, other.Settle(ctx, c.Key, running, kept(small)), nil)
}

// The lease of a damaged record in flight does not protect it.
func TestForgetUnreadableWithALease(t *testing.T) {
	server, s := start(t)
	for what, damage := range map[string]func(*writable){
		"a damaged record":    func(p *writable) { p.record = "x" },
		"no record":           func(p *writable) { p.record = "" },
		"no token":            func(p *writable) { p.token = "" },
		"no expiry":           func(p *writable) { p.expiry = "0000000000000" },
		"a lease of no time":  func(p *writable) { p.lease = "9999999999.e9" },
		"a lease cut short":   func(p *writable) { p.lease = "99999999999.5" },
		"another run's token": func(p *writable) { p.token = "another" },
	} {
		c := claimOf(what, "token")
		first := mustClaim(t, s, c, idempotency.Proceed)
		mustSettle(t, s, c, first.Record, released())
		mustClaim(t, s, withToken(c, "next"), idempotency.Proceed)
		name := named.record(c.Key)
		wantErr(t, s.Forget(ctx, c.Key, idempotency.Precondition{}), idempotency.ErrInFlight, what)
		rewrite(t, server, c.Key, damage)
		_, _, err := s.Lookup(ctx, c.Key)
		mustBeUnreadable(t, what, err, name)
		wantErr(t, s.Forget(ctx, c.Key, idempotency.Precondition{}), nil, what)
		if left := command(t, server, "DBSIZE"); left != int64(0) {
			t.Errorf("%s: %v keys are left: %v", what, left, command(t, server, "KEYS", "*"))
		}
		command(t, server, "FLUSHALL")
	}
}

// TestRecordChangesBeforeForget changes the record between the lookup and the command. A record that
// does not match the precondition stays.
func TestRecordChangesBeforeForget(t *testing.T) {
	server, other := start(t)
	foreign := func(*testing.T, *Store, idempotency.Claim) *idempotency.Record {
		command(t, server, "SET", named.record(keyOf("a")), "foreign")
		return nil
	}
	replaced := func(t *testing.T, s *Store, c idempotency.Claim) *idempotency.Record {
		command(t, server, "DEL", named.record(c.Key))
		mustSettle(t, s, c, mustClaim(t, s, c, idempotency.Proceed).Record, kept(small))
		return nil
	}
	for name, test := range map[string]struct {
		before, meanwhile func(t *testing.T, s *Store, c idempotency.Claim) *idempotency.Record
		seen, now         idempotency.State
	}{
		"a lapsed claim is settled":     {acts["a run that lapses"], acts["it is settled"], idempotency.Lapsed, idempotency.Complete},
		"a complete key is released":    {replaced, acts["another operator"], idempotency.Complete, idempotency.Released},
		"something foreign is replaced": {foreign, replaced, idempotency.Unreadable, idempotency.Complete},
	} {
		t.Run(name, func(t *testing.T) {
			command(t, server, "FLUSHALL")
			c := claimOf("a", "token")
			s := openMeddled(t, server.Addr, busyTimeout, forgetScript, map[int]func(){1: func() { test.meanwhile(t, other, c) }})
			test.before(t, other, c)
			err := s.Forget(ctx, c.Key, idempotency.Precondition{State: test.seen})
			now := idempotency.Precondition{ExecutionID: c.ExecutionID, State: test.now}
			if changed, ok := errors.AsType[idempotency.ChangedError](err); !ok || changed.Now != now {
				t.Errorf("forget: %v, want that it is %+v now", err, now)
			}
			if left := mustFind(t, other, c.Key); left.State != test.now {
				t.Errorf("it left %+v", left)
			}
		})
	}
}

// A value that caddy-dedup has not written is forgotten only as unreadable.
func TestForgetForeignAsSeen(t *testing.T) {
	server, s := start(t)
	for what, put := range map[string][]any{
		"a text": {"SET", named.record(keyOf("a")), "foreign"},
		"a list": {"RPUSH", named.record(keyOf("a")), "foreign"},
	} {
		command(t, server, "FLUSHALL")
		command(t, server, put...)
		err := s.Forget(ctx, keyOf("a"), idempotency.Precondition{State: idempotency.Complete})
		if changed, ok := errors.AsType[idempotency.ChangedError](err); !ok || changed.Now.State != idempotency.Unreadable {
			t.Errorf("%s, seen as complete: %v", what, err)
		}
		storetest.Equal[any](t, command(t, server, "DBSIZE"), int64(1), "keys are left, seen as complete", what)
		wantErr(t, s.Forget(ctx, keyOf("a"), idempotency.Precondition{State: idempotency.Unreadable}), nil, what)
		storetest.Equal[any](t, command(t, server, "DBSIZE"), int64(0), "keys are left, seen as unreadable", what)
	}
}
