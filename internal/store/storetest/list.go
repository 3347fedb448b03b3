package storetest

import (
	"bytes"
	"context"
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

// list returns all that List returns, page by page.
func (f *fixture) list(limit int) map[idempotency.Key]idempotency.Listed {
	f.Helper()
	return f.pages(limit, f.peer.List)
}

// find returns all that Find returns of these IDs, page by page.
func (f *fixture) find(limit int, ids ...string) map[idempotency.Key]idempotency.Listed {
	f.Helper()
	return f.pages(limit, func(ctx context.Context, cursor string, limit int) ([]idempotency.Listed, string, error) {
		return f.peer.Find(ctx, beginningsOf(ids...), cursor, limit)
	})
}

func (f *fixture) pages(limit int, page func(ctx context.Context, cursor string, limit int) ([]idempotency.Listed, string, error)) map[idempotency.Key]idempotency.Listed {
	f.Helper()
	found := make(map[idempotency.Key]idempotency.Listed)
	cursor := ""
	for range 10_000 {
		records, next, err := page(f.ctx, cursor, limit)
		Must(f, err, cursor)
		if len(records) > limit && !f.options.LongPages {
			f.Fatalf("a page of %d records, asked for %d", len(records), limit)
		}
		if !slices.IsSortedFunc(records, func(a, b idempotency.Listed) int { return bytes.Compare(a.Key[:], b.Key[:]) }) {
			f.Fatalf("a page of %d records is not in the order of its keys", limit)
		}
		for _, listed := range records {
			if _, twice := found[listed.Key]; twice {
				f.Fatalf("key %s is there twice", listed.Key)
			}
			found[listed.Key] = listed
		}
		if cursor = next; cursor == "" {
			return found
		}
	}
	f.Fatal("there is no last page")
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

// claimOthers claims keys of other IDs, and returns them.
func (f *fixture) claimOthers() (others []idempotency.Key) {
	f.Helper()
	for i := range 60 {
		others = append(others, keyOf(fmt.Sprint("another ", i), "/"))
		f.claim(f.newClaim(others[i]), idempotency.Proceed)
	}
	return others
}

func listNothing(f *fixture) {
	f.wantFound("an empty store", f.list(10))
	f.wantFound("an empty store", f.find(10, "wanted"))
	f.claimOthers()
	f.wantFound("a store with others", f.find(10, "wanted"))
	f.wantFound("no ID", f.find(10))
}

func listPages(f *fixture) {
	all := f.claimOthers()
	settlements := []idempotency.Settlement{complete("kept"), release(true, "busy"), hold()}
	var wanted []idempotency.Key
	for i := range 150 {
		k := keyOf("wanted", fmt.Sprint(i))
		claimed := f.claim(f.newClaim(k), idempotency.Proceed)
		if i%4 > 0 {
			f.settle(k, claimed.Record, settlements[i%4-1])
		}
		wanted = append(wanted, k)
	}
	all = append(all, wanted...)
	for _, limit := range []int{1, 7, len(wanted), len(all), 1000} {
		f.wantFound(fmt.Sprintf("pages of %d", limit), f.list(limit), all...)
		f.wantFound(fmt.Sprintf("pages of %d of one ID", limit), f.find(limit, "wanted"), wanted...)
	}
}

func listStates(f *fixture) {
	all := f.claimOthers()
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
			f.claim(f.newForced(k), idempotency.Proceed)
		},
		"forced and lapsed": func(r *idempotency.Record, k idempotency.Key) {
			f.settle(k, r, complete("kept"))
			c := f.newForced(k)
			c.Lease = f.short()
			f.claim(c, idempotency.Proceed)
		},
	}
	lapsing := f.newClaim(keyOf("wanted", "lapsed"))
	lapsing.Lease = f.short()
	f.claim(lapsing, idempotency.Proceed)
	wanted := []idempotency.Key{lapsing.Key}
	for name, bring := range states {
		k := keyOf("wanted", name)
		bring(f.claim(f.newClaim(k), idempotency.Proceed).Record, k)
		wanted = append(wanted, k)
	}
	f.pass(f.short())
	f.wantFound("a list", f.list(100), append(all, wanted...)...)
	found := f.find(100, "wanted")
	f.wantFound("a search", found, wanted...)
	if listed := found[lapsing.Key]; listed.Record == nil || !listed.Record.Lapsed(listed.Now) {
		f.Errorf("the lapsed claim was found as %+v", listed)
	}
}

func listLive(f *fixture) {
	for _, name := range []string{"stays", "forgotten", "expired"} {
		k, s := keyOf("wanted", name), complete("kept")
		if name == "expired" {
			s.Retention = f.short()
		}
		f.run(k, s)
	}
	Must(f, f.store.Forget(f.ctx, keyOf("wanted", "forgotten"), idempotency.Precondition{}))
	f.pass(f.short())
	f.wantFound("a list", f.list(10), keyOf("wanted", "stays"))
	f.wantFound("a search", f.find(10, "wanted"), keyOf("wanted", "stays"))
}

func listUnreadable(f *fixture) {
	if f.options.Damage == nil {
		f.Skip("this store has no records that cannot be read")
	}
	others := f.claimOthers()
	whole, damaged := keyOf("wanted", "whole"), keyOf("wanted", "damaged")
	for _, k := range []idempotency.Key{whole, damaged} {
		f.claim(f.newClaim(k), idempotency.Proceed)
	}
	f.options.Damage(f.T, f.store, damaged)
	check := func(what string, found map[idempotency.Key]idempotency.Listed, readable ...idempotency.Key) {
		if listed := found[damaged]; listed.Record != nil || !errors.As(listed.Unreadable, new(*idempotency.UnreadableError)) {
			f.Errorf("%s has the damaged record as %+v, want an UnreadableError", what, listed)
		}
		delete(found, damaged)
		f.wantFound(what, found, readable...)
	}
	check("a list", f.list(10), append(others, whole)...)
	check("a search", f.find(10, "wanted"), whole)
}

func findSeveral(f *fixture) {
	f.claimOthers()
	var one, other []idempotency.Key
	beside := "other" // whose keys begin with the same byte
	for beginningsOf(beside)[0][0] != beginningsOf("one")[0][0] {
		beside += "'"
	}
	for _, route := range []string{"/a", "/b", "/c"} {
		one, other = append(one, keyOf("one", route)), append(other, keyOf(beside, route))
	}
	for _, k := range slices.Concat(one, other) {
		f.claim(f.newClaim(k), idempotency.Proceed)
	}
	for _, limit := range []int{1, 4, 1000} {
		f.wantFound("one", f.find(limit, "one"), one...)
		f.wantFound("one, twice", f.find(limit, "one", "one"), one...)
		f.wantFound("both", f.find(limit, "one", beside), slices.Concat(one, other)...)
		f.wantFound("both and one that is not there", f.find(limit, "missing", beside, "one"), slices.Concat(one, other)...)
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

// listWhile lists all records, and calls change after each page. All records that change leaves must be
// listed.
func (f *fixture) listWhile(change func(page []idempotency.Listed)) {
	const keys = 400
	stay := make(map[idempotency.Key]bool)
	for i := range keys {
		k := key(fmt.Sprint("key ", i))
		f.run(k, complete("kept"))
		stay[k] = true
	}
	cursor, listed := "", 0
	for range keys {
		page, next, err := f.peer.List(f.ctx, cursor, 30)
		Must(f, err, cursor)
		for _, one := range page {
			delete(stay, one.Key)
		}
		listed += len(page)
		if next == "" {
			if len(stay) > 0 {
				f.Fatalf("%d of %d keys were never listed", len(stay), keys)
			}
			return
		}
		cursor = next
		change(page)
	}
	f.Fatalf("the list does not end: %d records", listed)
}

func listWhileKeysGo(f *fixture) {
	f.listWhile(func(page []idempotency.Listed) {
		for _, one := range page {
			if err := f.store.Forget(f.ctx, one.Key, idempotency.Precondition{}); err != nil && !errors.Is(err, idempotency.ErrGone) {
				f.Fatalf("forget: %v", err)
			}
		}
	})
}

func listWhileKeysCome(f *fixture) {
	come := 0
	f.listWhile(func([]idempotency.Listed) {
		for range 10 {
			come++
			f.claim(f.newClaim(key(fmt.Sprint("another key ", come))), idempotency.Proceed)
		}
	})
}

func noPage(f *fixture) {
	if _, _, err := f.store.List(f.ctx, "", 0); err == nil {
		f.Error("a list's page of no records")
	}
	if _, _, err := f.store.Find(f.ctx, beginningsOf("wanted"), "", 0); err == nil {
		f.Error("a search's page of no records")
	}
}
