package redis

import (
	"errors"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// mustBeUnreadable fails the test unless the error names the Redis key.
func mustBeUnreadable(t *testing.T, what string, err error, where string) {
	t.Helper()
	var unreadable *idempotency.UnreadableError
	if !errors.As(err, &unreadable) {
		t.Fatalf("%s: %v, want an UnreadableError", what, err)
	}
	if !strings.Contains(unreadable.Where, where) {
		t.Fatalf("%s: it names %q, want %q", what, unreadable.Where, where)
	}
}

// TestForeignRecords puts something else where a record should be.
func TestForeignRecords(t *testing.T) {
	server := redistest.Start(t)
	s := closeAtEnd(t, openAt(t, server.Addr))
	key := keyOf("a")
	name := named.record(key)
	another := mustClaim(t, s, claimOf("b", "b"), idempotency.Proceed)
	held := another.Record.Settled(idempotency.Settlement{State: idempotency.Held}, processTime())
	const later = "9999999999999"
	in := func(change func(*writable)) string {
		p := writable{
			form: valueForm, state: "e", revision: "0123456789", lease: "0000000000000", expiry: later,
			token: "b", record: string(appendRecord(nil, key, held)),
		}
		change(&p)
		return p.String()
	}

	for what, args := range map[string][]any{
		"a string":         {"SET", name, "1"},
		"a list":           {"RPUSH", name, "1"},
		"a hash":           {"HSET", name, "r", "1", "t", "1", "l", "0", "v", "1", "x", "1"},
		"an empty string":  {"SET", name, ""},
		"half a head":      {"SET", name, in(func(*writable) {})[:20]},
		"half a record":    {"SET", name, in(func(*writable) {})[:headSize+5]},
		"another form":     {"SET", name, in(func(p *writable) { p.form = "D2" })},
		"a damaged record": {"SET", name, in(func(p *writable) { p.record = "dedup" })},
		"another key's record": {"SET", name, in(func(p *writable) {
			p.state, p.lease, p.record = "f", later, string(appendRecord(nil, keyOf("b"), another.Record))
		})},
		"another token":         {"SET", name, in(func(p *writable) { p.token = "c" })},
		"a lease on a held run": {"SET", name, in(func(p *writable) { p.lease = later })},
		"a held run in flight":  {"SET", name, in(func(p *writable) { p.state, p.lease = "f", later })},
		"an unknown state":      {"SET", name, in(func(p *writable) { p.state = "x" })},
		"a lease of no time":    {"SET", name, in(func(p *writable) { p.lease = "soon         " })},
		"an expiry of no time":  {"SET", name, in(func(p *writable) { p.expiry = "later        " })},
	} {
		t.Run(what, func(t *testing.T) {
			command(t, server, "DEL", name)
			command(t, server, args...)
			claimed, err := s.Claim(ctx, claimOf("a", "claimer"))
			mustBeUnreadable(t, "claim", err, name)
			if claimed.Verdict != 0 || claimed.Record != nil {
				t.Errorf("claimed: %+v", claimed)
			}
			_, _, err = s.Lookup(ctx, key)
			mustBeUnreadable(t, "lookup", err, name)
			page, _, err := s.List(ctx, "", 10)
			if err != nil || len(page) != 2 {
				t.Fatalf("list: %+v, %v; want 2 records", page, err)
			}
			for _, listed := range page {
				if listed.Key == key {
					mustBeUnreadable(t, "list", listed.Unreadable, name)
				} else if listed.Unreadable != nil {
					t.Errorf("list: the other key: %v", listed.Unreadable)
				}
			}
			if err := s.Forget(ctx, key, idempotency.Seen{}); err != nil {
				t.Fatalf("forget: %v", err)
			}
			mustClaim(t, s, claimOf("a", "claimer"), idempotency.Proceed)
		})
	}
}

// TestForeignRecordIsNotSettled has the record replaced during the run.
func TestForeignRecordIsNotSettled(t *testing.T) {
	server := redistest.Start(t)
	s := closeAtEnd(t, openAt(t, server.Addr))
	c := claimOf("a", "token")
	claimed := mustClaim(t, s, c, idempotency.Proceed)
	name := named.record(c.Key)
	for _, args := range [][]any{{"SET", name, "1"}, {"HSET", name, "a", "1"}} {
		command(t, server, "DEL", name)
		command(t, server, args...)
		mustBeUnreadable(t, "renew", s.Renew(ctx, c), name)
		mustBeUnreadable(t, "settle small", s.Settle(ctx, c.Key, claimed.Record, kept(small)), name)
		mustBeUnreadable(t, "settle large", s.Settle(ctx, c.Key, claimed.Record, kept(large)), name)
	}
}

// TestForeignResponses damages the response of a complete record.
func TestForeignResponses(t *testing.T) {
	server := redistest.Start(t)
	s := closeAtEnd(t, openAt(t, server.Addr))
	for _, size := range []int{small, large} {
		c := claimOf("a", "token")
		mustSettle(t, s, c, mustClaim(t, s, c, idempotency.Proceed).Record, kept(size))
		name := named.response(c.Key, c.Token)
		damage := map[string][]any{
			"damaged": {"SETRANGE", name, "50", "x"},
			"a list":  {"RPUSH", name, "1"},
			"gone":    {"DEL", name},
		}
		if size == small {
			name = named.record(c.Key)
			whole := valueOf(t, server, c.Key)
			damaged, unknown, gone := whole, whole, whole
			damaged.response, unknown.response, gone.response = "ix", "?"+whole.response, ""
			damage = map[string][]any{
				"damaged": {"SET", name, damaged.String()}, "of an unknown kind": {"SET", name, unknown.String()}, "gone": {"SET", name, gone.String()},
			}
		}
		dump := command(t, server, "DUMP", name)
		for what, args := range damage {
			if what == "a list" {
				command(t, server, "DEL", name)
			}
			command(t, server, args...)
			claimed, err := s.Claim(ctx, claimOf("a", "again"))
			if what == "gone" {
				mustBeUnreadable(t, what+": claim", err, named.record(c.Key))
			} else {
				mustBeUnreadable(t, what+": claim", err, name)
			}
			if claimed.Response != nil {
				t.Error("a response came with the error")
			}
			response, err := s.Response(ctx, c.Key, c.Token)
			if what == "gone" {
				if response != nil || err != nil {
					t.Errorf("response: %+v, %v; want nothing", response, err)
				}
			} else {
				mustBeUnreadable(t, what+": response", err, name)
			}
			command(t, server, "RESTORE", name, "60000", dump, "REPLACE")
			mustClaim(t, s, claimOf("a", "again"), idempotency.ReplayKept)
		}
		if err := s.Forget(ctx, c.Key, idempotency.Seen{}); err != nil {
			t.Fatal(err)
		}
		mustBeAbsent(t, s, c.Key)
	}
}
