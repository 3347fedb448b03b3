package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// keyOf returns the key of a delivery ID on the route with this name.
func keyOf(id, route string) idempotency.Key {
	return idempotency.Identity{Namespace: "default", Scope: []string{route}, ID: id}.Key()
}

func beginningsOf(ids ...string) []idempotency.KeyPrefix {
	var of []idempotency.KeyPrefix
	for _, id := range ids {
		of = append(of, idempotency.PrefixFor("default", id))
	}
	return of
}

// find returns all that Find returns of these IDs, page by page.
func (f *fixture) find(limit int, ids ...string) map[idempotency.Key]idempotency.Listed {
	f.Helper()
	found := make(map[idempotency.Key]idempotency.Listed)
	cursor := ""
	for range 10_000 {
		page, next, err := f.peer.Find(f.ctx, beginningsOf(ids...), cursor, limit)
		Must(f, err, cursor)
		if len(page) > limit && !f.options.LongPages {
			f.Fatalf("a page of %d records, asked for %d", len(page), limit)
		}
		for _, listed := range page {
			if _, twice := found[listed.Key]; twice {
				f.Fatalf("key %s was found twice", listed.Key)
			}
			found[listed.Key] = listed
		}
		if cursor = next; cursor == "" {
			return found
		}
	}
	f.Fatal("find does not end")
	return nil
}

// wantFound fails the test unless exactly these keys were found, with the records that Lookup returns.
func (f *fixture) wantFound(what string, found map[idempotency.Key]idempotency.Listed, want ...idempotency.Key) {
	f.Helper()
	if len(found) != len(want) {
		f.Errorf("%s: %d records, want %d", what, len(found), len(want))
	}
	for _, k := range want {
		listed, ok := found[k]
		if !ok || listed.Unreadable != nil || listed.Record == nil {
			f.Errorf("%s: of %s there is %+v, want its record", what, k, listed)
			continue
		}
		f.sameRecord(what, listed.Record, f.lookup(k))
		if listed.Now.IsZero() || listed.Now.After(f.now()) {
			f.Errorf("%s: Now is %v, but the time is %v", what, listed.Now, f.now())
		}
	}
}

// crowd claims keys of other IDs.
func (f *fixture) crowd() {
	f.Helper()
	for i := range 60 {
		f.claim(f.newClaim(keyOf(fmt.Sprint("another ", i), "/")), idempotency.Proceed)
	}
}

func findStates(f *fixture) {
	f.crowd()
	states := map[string]func(claimed *idempotency.Record, k idempotency.Key){
		"in flight": func(*idempotency.Record, idempotency.Key) {},
		"complete":  func(r *idempotency.Record, k idempotency.Key) { f.settle(k, r, complete("kept")) },
		"released":  func(r *idempotency.Record, k idempotency.Key) { f.settle(k, r, release(true, "busy")) },
		"held":      func(r *idempotency.Record, k idempotency.Key) { f.settle(k, r, hold()) },
		"released by an operator": func(r *idempotency.Record, k idempotency.Key) {
			f.settle(k, r, hold())
			Must(f, ErrOf(f.store.Change(f.ctx, k, releasing)))
		},
		"forced": func(r *idempotency.Record, k idempotency.Key) {
			f.settle(k, r, complete("kept"))
			c := f.newClaim(k)
			c.Force = true
			f.claim(c, idempotency.Proceed)
		},
		"forced and lapsed": func(r *idempotency.Record, k idempotency.Key) {
			f.settle(k, r, complete("kept"))
			c := f.newClaim(k)
			c.Force, c.Lease = true, f.short()
			f.claim(c, idempotency.Proceed)
		},
	}
	var want []idempotency.Key
	for name, bring := range states {
		k := keyOf("wanted", name)
		bring(f.claim(f.newClaim(k), idempotency.Proceed).Record, k)
		want = append(want, k)
	}
	lapsing := f.newClaim(keyOf("wanted", "lapsed"))
	lapsing.Lease = f.short()
	f.claim(lapsing, idempotency.Proceed)
	want = append(want, lapsing.Key)
	f.pass(f.short())
	found := f.find(100, "wanted")
	f.wantFound("all states", found, want...)
	if listed := found[lapsing.Key]; listed.Record == nil || !listed.Record.Lapsed(listed.Now) {
		f.Errorf("the lapsed claim was found as %+v", listed)
	}
}

func findSeveral(f *fixture) {
	f.crowd()
	var one, other []idempotency.Key
	for _, route := range []string{"/a", "/b", "/c"} {
		one, other = append(one, keyOf("one", route)), append(other, keyOf("other", route))
	}
	for _, k := range slices.Concat(one, other) {
		f.claim(f.newClaim(k), idempotency.Proceed)
	}
	for _, limit := range []int{1, 4, 1000} {
		f.wantFound("one", f.find(limit, "one"), one...)
		f.wantFound("one, twice", f.find(limit, "one", "one"), one...)
		f.wantFound("both", f.find(limit, "one", "other"), slices.Concat(one, other)...)
		f.wantFound("both and one that is not there", f.find(limit, "missing", "other", "one"), slices.Concat(one, other)...)
	}
}

func findPages(f *fixture) {
	f.crowd()
	var want []idempotency.Key
	for i := range 150 {
		want = append(want, keyOf("wanted", fmt.Sprint(i)))
		f.claim(f.newClaim(want[i]), idempotency.Proceed)
	}
	for _, limit := range []int{7, 150, 1000} {
		f.wantFound(fmt.Sprintf("pages of %d", limit), f.find(limit, "wanted"), want...)
	}
}

func findNothing(f *fixture) {
	f.wantFound("an empty store", f.find(10, "wanted"))
	f.crowd()
	f.wantFound("a store with others", f.find(10, "wanted"))
	f.wantFound("no ID", f.find(10))
}

func findLive(f *fixture) {
	var stays idempotency.Key
	for _, name := range []string{"stays", "forgotten", "expired"} {
		k := keyOf("wanted", name)
		claimed := f.claim(f.newClaim(k), idempotency.Proceed)
		s := complete("kept")
		switch name {
		case "stays":
			stays = k
			continue
		case "expired":
			s.Retention = f.short()
		}
		f.settle(k, claimed.Record, s)
	}
	Must(f, f.store.Forget(f.ctx, keyOf("wanted", "forgotten"), idempotency.Precondition{}))
	f.pass(f.short())
	f.wantFound("what is left", f.find(10, "wanted"), stays)
}

func findUnreadable(f *fixture) {
	if f.options.Damage == nil {
		f.Skip("this store has no records that cannot be read")
	}
	f.crowd()
	whole, damaged := keyOf("wanted", "whole"), keyOf("wanted", "damaged")
	for _, k := range []idempotency.Key{whole, damaged} {
		f.claim(f.newClaim(k), idempotency.Proceed)
	}
	f.options.Damage(f.T, f.store, damaged)
	found := f.find(10, "wanted")
	var unreadable *idempotency.UnreadableError
	if listed := found[damaged]; listed.Record != nil || !errors.As(listed.Unreadable, &unreadable) {
		f.Errorf("the damaged record was found as %+v, want an UnreadableError", listed)
	}
	delete(found, damaged)
	f.wantFound("the other one", found, whole)
}

func pagesAreSorted(f *fixture) {
	for i := range 40 {
		f.claim(f.newClaim(keyOf("wanted", fmt.Sprint(i))), idempotency.Proceed)
	}
	byKey := func(a, b idempotency.Listed) int { return bytes.Compare(a.Key[:], b.Key[:]) }
	for _, limit := range []int{9, 1000} {
		listed, _, err := f.store.List(f.ctx, "", limit)
		if err != nil || !slices.IsSortedFunc(listed, byKey) {
			f.Errorf("a list's page of %d is not sorted, %v: %+v", limit, err, listed)
		}
		found, _, err := f.store.Find(f.ctx, beginningsOf("wanted"), "", limit)
		if err != nil || !slices.IsSortedFunc(found, byKey) {
			f.Errorf("a search's page of %d is not sorted, %v: %+v", limit, err, found)
		}
	}
}

func wrongCursors(f *fixture) {
	for _, cursor := range []string{"next", "-1", strings.Repeat("g", 64), "1,2", "\x00"} {
		if _, _, err := f.store.List(f.ctx, cursor, 10); !errors.Is(err, idempotency.ErrCursor) || !strings.Contains(err.Error(), fmt.Sprintf("%q", cursor)) {
			f.Errorf("list from %q: %v", cursor, err)
		}
		if _, _, err := f.store.Find(f.ctx, beginningsOf("wanted"), cursor, 10); !errors.Is(err, idempotency.ErrCursor) {
			f.Errorf("find from %q: %v", cursor, err)
		}
	}
}
