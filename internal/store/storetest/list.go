package storetest

import (
	"errors"
	"fmt"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// listWhile lists all records, and calls change after each page. All records that change leaves must be
// listed.
func (f *fixture) listWhile(change func(page []idempotency.Listed)) {
	const keys = 400
	stay := make(map[idempotency.Key]bool)
	for i := range keys {
		k := key(fmt.Sprint("key ", i))
		f.settle(k, f.claim(f.newClaim(k), idempotency.Proceed).Record, complete("kept"))
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

// pageThrough lists all records, page by page.
func (f *fixture) pageThrough(limit int) map[idempotency.Key]*idempotency.Record {
	f.Helper()
	found := make(map[idempotency.Key]*idempotency.Record)
	cursor := ""
	for range 100_000 {
		page, next, err := f.peer.List(f.ctx, cursor, limit)
		Must(f, err, cursor)
		if len(page) > limit && !f.options.LongPages {
			f.Fatalf("a page of %d records, asked for %d", len(page), limit)
		}
		for _, listed := range page {
			if listed.Unreadable != nil || listed.Record == nil {
				f.Fatalf("key %s: record %v, %v", listed.Key, listed.Record, listed.Unreadable)
			}
			if found[listed.Key] != nil {
				f.Fatalf("key %s was listed twice", listed.Key)
			}
			found[listed.Key] = listed.Record
		}
		if next == "" {
			return found
		}
		cursor = next
	}
	f.Fatal("the list does not end")
	return nil
}

func listEmpty(f *fixture) {
	if found := f.pageThrough(10); len(found) != 0 {
		f.Errorf("%d records", len(found))
	}
}

func listPages(f *fixture) {
	want := make(map[idempotency.Key]*idempotency.Record)
	settlements := []idempotency.Settlement{complete("kept"), release(true, "busy"), hold()}
	for i := range 250 {
		k := key(fmt.Sprint("key ", i))
		claimed := f.claim(f.newClaim(k), idempotency.Proceed)
		if i%4 > 0 {
			f.settle(k, claimed.Record, settlements[i%4-1])
		}
		want[k] = f.lookup(k)
	}
	for _, limit := range []int{1, 7, 250, 1000} {
		found := f.pageThrough(limit)
		if len(found) != len(want) {
			f.Fatalf("pages of %d: %d records, want %d", limit, len(found), len(want))
		}
		for k, record := range want {
			f.sameRecord(fmt.Sprintf("pages of %d, key %s", limit, k), found[k], record)
		}
	}
}

func listLive(f *fixture) {
	for _, name := range []string{"stays", "forgotten", "expired"} {
		claimed := f.claim(f.newClaim(key(name)), idempotency.Proceed)
		s := complete("kept")
		switch name {
		case "stays":
			continue
		case "expired":
			s.Retention = f.short()
		}
		f.settle(key(name), claimed.Record, s)
	}
	Must(f, f.store.Forget(f.ctx, key("forgotten"), idempotency.Precondition{}))
	f.pass(f.short())
	found := f.pageThrough(10)
	if len(found) != 1 || found[key("stays")] == nil {
		f.Errorf("%d records, want the one that stays", len(found))
	}
}

func noPage(f *fixture) {
	if _, _, err := f.store.List(f.ctx, "", 0); err == nil {
		f.Error("a list's page of no records")
	}
	if _, _, err := f.store.Find(f.ctx, beginningsOf("wanted"), "", 0); err == nil {
		f.Error("a search's page of no records")
	}
}
