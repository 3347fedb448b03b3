package redis

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// operation is one operation on a key, with what it finds there.
type operation struct {
	command string // that does it, or the hash of its script
	before  int    // how many of these commands only read
	finds   func(t *testing.T, s *Store, c idempotency.Claim) *idempotency.Record
	// do runs the operation. For a claim it returns the record, even if the claim is in doubt.
	do func(s *Store, c idempotency.Claim, found *idempotency.Record) (*idempotency.Record, error)
	// leaves is the record after it; nil for none. body is the size of its response, 0 for none.
	leaves *idempotency.Record
	body   int
	claims func(*idempotency.Claim) // for a claim, what it asks for besides
	reads  bool                     // nothing changes
	moves  bool                     // a large body, whose time moves with it
}

func nothing(*testing.T, *Store, idempotency.Claim) *idempotency.Record { return nil }

func claimed(t *testing.T, s *Store, c idempotency.Claim) *idempotency.Record {
	return mustClaim(t, s, c, idempotency.Proceed).Record
}

// settledAs returns what settles a run before, of another token.
func settledAs(settlement idempotency.Settlement) func(*testing.T, *Store, idempotency.Claim) *idempotency.Record {
	return func(t *testing.T, s *Store, c idempotency.Claim) *idempotency.Record {
		c = withToken(c, "before")
		ends(settlement)(t, s, c)
		return mustFind(t, s, c.Key)
	}
}

func claims(s *Store, c idempotency.Claim, found *idempotency.Record) (*idempotency.Record, error) {
	claimed, err := s.Claim(ctx, c)
	switch {
	case err != nil:
	case claimed.Verdict != idempotency.Proceed:
		err = fmt.Errorf("verdict %v", claimed.Verdict)
	case (claimed.Previous == nil) != (found == nil) || found != nil && claimed.Previous.Token != found.Token:
		err = fmt.Errorf("it says that it replaces %+v", claimed.Previous)
	}
	return claimed.Record, err
}

func settles(settlement idempotency.Settlement) func(*Store, idempotency.Claim, *idempotency.Record) (*idempotency.Record, error) {
	return func(s *Store, c idempotency.Claim, found *idempotency.Record) (*idempotency.Record, error) {
		return nil, s.Settle(ctx, c.Key, found, settlement)
	}
}

func changes(change idempotency.Change) func(*Store, idempotency.Claim, *idempotency.Record) (*idempotency.Record, error) {
	return func(s *Store, c idempotency.Claim, found *idempotency.Record) (*idempotency.Record, error) {
		was, err := s.Change(ctx, c.Key, change)
		if err == nil && was.Token != found.Token {
			err = fmt.Errorf("it says that it found the record of %q, not that of %q", was.Token, found.Token)
		}
		return nil, err
	}
}

func operatorReleases() idempotency.Change {
	return idempotency.Change{State: idempotency.Released, Token: "operator"}
}

func operatorCompletes(body int) idempotency.Change {
	return idempotency.Change{State: idempotency.Complete, Token: "operator", Response: kept(body).Response}
}

var noPrecondition idempotency.Precondition

var operations = map[string]operation{
	"claim": {command: "set", finds: nothing, do: claims, leaves: &idempotency.Record{State: idempotency.InFlight, Token: "token", Attempt: 1}},
	"claim with hold": {
		command: claimScript.hash, finds: nothing, do: claims, claims: func(c *idempotency.Claim) { c.Hold = true },
		leaves: &idempotency.Record{State: idempotency.InFlight, Token: "token", Attempt: 1},
	},
	"claim with max attempts": {
		command: claimScript.hash, finds: nothing, do: claims, claims: func(c *idempotency.Claim) { c.MaxAttempts = 5 },
		leaves: &idempotency.Record{State: idempotency.InFlight, Token: "token", Attempt: 1},
	},
	"forced claim": {
		command: claimScript.hash, before: 1, finds: settledAs(kept(small)), do: claims, claims: func(c *idempotency.Claim) { c.Force = true },
		leaves: &idempotency.Record{State: idempotency.InFlight, Token: "token", Attempt: 2},
	},
	"claim after a release": {
		command: claimScript.hash, finds: settledAs(released()), do: claims,
		leaves: &idempotency.Record{State: idempotency.InFlight, Token: "token", Attempt: 2},
	},
	"renew": {
		command: renewScript.hash, finds: claimed,
		do: func(s *Store, c idempotency.Claim, _ *idempotency.Record) (*idempotency.Record, error) {
			c.Lease *= 2
			return nil, s.Renew(ctx, c)
		},
		leaves: &idempotency.Record{State: idempotency.InFlight, Token: "token", Attempt: 1},
	},
	"settle": {
		command: settleScript.hash, finds: claimed, do: settles(kept(small)),
		leaves: &idempotency.Record{State: idempotency.Complete, Token: "token", Attempt: 1}, body: small,
	},
	"settle a large response": {
		command: settleScript.hash, finds: claimed, do: settles(kept(large)), moves: true,
		leaves: &idempotency.Record{State: idempotency.Complete, Token: "token", Attempt: 1}, body: large,
	},
	"settle as released": {
		command: settleScript.hash, finds: claimed, do: settles(released()),
		leaves: &idempotency.Record{State: idempotency.Released, Token: "token", Attempt: 1}, body: len("busy"),
	},
	"release": {
		command: changeScript.hash, finds: settledAs(kept(small)), do: changes(operatorReleases()),
		leaves: &idempotency.Record{State: idempotency.Released, Token: "operator", Attempt: 1},
	},
	"complete": {
		command: changeScript.hash, finds: settledAs(released()), do: changes(operatorCompletes(large)), moves: true,
		leaves: &idempotency.Record{State: idempotency.Complete, Token: "operator", Attempt: 1}, body: large,
	},
	"forget": {
		command: forgetScript.hash, finds: settledAs(kept(large)),
		do: func(s *Store, c idempotency.Claim, _ *idempotency.Record) (*idempotency.Record, error) {
			return nil, s.Forget(ctx, c.Key, noPrecondition)
		},
	},
	"look up": {
		command: lookupScript.hash, finds: claimed, reads: true,
		do: func(s *Store, c idempotency.Claim, _ *idempotency.Record) (*idempotency.Record, error) {
			return nil, storetest.ErrOf(findIn(s, c.Key))
		},
	},
	"read a response": {
		command: "getrange", finds: settledAs(kept(small)), reads: true,
		do: func(s *Store, c idempotency.Claim, found *idempotency.Record) (*idempotency.Record, error) {
			return nil, readsBody(s, c.Key, found.Token, small)
		},
	},
	"read a large response": {
		command: "get", finds: settledAs(kept(large)), reads: true, moves: true,
		do: func(s *Store, c idempotency.Claim, found *idempotency.Record) (*idempotency.Record, error) {
			return nil, readsBody(s, c.Key, found.Token, large)
		},
	},
	"list":               {command: "scan", finds: claimed, reads: true, do: lists},
	"list a long record": {command: "get", finds: longRecord, reads: true, do: lists},
}

func (o operation) byOperator() bool {
	return o.command == changeScript.hash || o.command == forgetScript.hash
}

// hasDeadline reports whether the server refuses the operation if it gets it late.
func (o operation) hasDeadline() bool {
	return o.command == claimScript.hash || o.command == changeScript.hash
}

// isClaim reports whether it is unknown after an error whether a run has to be withdrawn.
func (o operation) isClaim() bool { return o.command == claimScript.hash || o.command == "set" }

// longRecord claims a key whose record is longer than what a list reads of a value at first.
func longRecord(t *testing.T, s *Store, c idempotency.Claim) *idempotency.Record {
	c.DeliveryID = strings.Repeat("x", 2*valueStart)
	return mustClaim(t, s, c, idempotency.Proceed).Record
}

func lists(s *Store, _ idempotency.Claim, _ *idempotency.Record) (*idempotency.Record, error) {
	keys, err := allKeys(s)
	if err == nil && len(keys) != 1 {
		err = fmt.Errorf("%d records", len(keys))
	}
	return nil, err
}

func findIn(s *Store, key idempotency.Key) (*idempotency.Record, error) {
	record, _, err := s.Lookup(ctx, key)
	if err == nil && record == nil {
		err = errors.New("no record")
	}
	return record, err
}

func readsBody(s *Store, key idempotency.Key, token string, size int) error {
	response, err := s.Response(ctx, key, token)
	if err == nil && (response == nil || len(response.Body) != size) {
		err = fmt.Errorf("not a response of %d bytes: %.100v", size, response)
	}
	return err
}

// check compares the key with what the operation leaves.
func (o operation) check(t *testing.T, s *Store, c idempotency.Claim, before *idempotency.Record) {
	t.Helper()
	record, _, err := s.Lookup(ctx, c.Key)
	must(t, err)
	switch want := o.leaves; {
	case o.reads:
		return
	case record == nil || want == nil:
		if record != want {
			t.Errorf("it leaves %+v, want %+v", record, want)
		}
		return
	case record.State != want.State || record.Token != want.Token || record.Attempt != want.Attempt:
		t.Errorf("it leaves %+v, want %+v", record, want)
	case o.command == renewScript.hash && !record.LeaseUntil.After(before.LeaseUntil.Add(c.Lease/2)):
		t.Errorf("the lease ends at %v; before it was renewed, at %v", record.LeaseUntil, before.LeaseUntil)
	}
	if o.body > 0 {
		wantErr(t, readsBody(s, c.Key, record.Token, o.body), nil)
	}
}

// unchanged fails the test unless the key is as it was.
func unchanged(t *testing.T, s *Store, key idempotency.Key, before *idempotency.Record) {
	t.Helper()
	record, _, err := s.Lookup(ctx, key)
	must(t, err)
	if (record == nil) != (before == nil) || record != nil && (record.Token != before.Token || record.State != before.State || !record.LeaseUntil.Equal(before.LeaseUntil)) {
		t.Errorf("it was changed to %+v from %+v", record, before)
	}
}
