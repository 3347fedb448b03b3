package dashboard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

const (
	// scanTime is how long a view of the page reads records, plus one call of the store.
	scanTime = 3 * time.Second
	// findTime bounds the search for a delivery ID: a Redis of a million keys takes a second.
	findTime = 10 * time.Second
	// batch is how many records a store is asked for at a time.
	batch = 500
)

// entry is a record as the page shows it.
type entry struct {
	key        idempotency.Key
	store      string // its name
	state      string
	record     *idempotency.Record // empty if it cannot be read
	unreadable string              // why
	now        time.Time           // by the clock of the store
	alert      alert
}

func entryOf(store admin.Store, l idempotency.Listed) *entry {
	e := &entry{key: l.Key, store: store.Name(), now: l.Now}
	if l.Unreadable != nil {
		e.state, e.record, e.unreadable = admin.StateUnreadable, new(idempotency.Record), l.Unreadable.Error()
	} else {
		e.state, e.record = admin.StateOf(l.Record, l.Now), l.Record
	}
	e.alert = alertOf(e.state, e.record)
	return e
}

// since is when the record got into its state.
func (e *entry) since() time.Time {
	for _, at := range []time.Time{e.record.Ended, e.record.LeaseUntil} {
		if !at.IsZero() {
			return at
		}
	}
	return e.record.Claimed
}

func newest(a, b *entry) int {
	return cmp.Or(b.record.Claimed.Compare(a.record.Claimed), byKey(a, b))
}

func oldest(a, b *entry) int { return cmp.Or(a.since().Compare(b.since()), byKey(a, b)) }

func byKey(a, b *entry) int {
	return cmp.Or(slices.Compare(a.key[:], b.key[:]), strings.Compare(a.store, b.store))
}

// top counts entries and keeps the first max of an order.
type top struct {
	max     int
	compare func(a, b *entry) int

	count   int
	entries []*entry
}

func (t *top) add(e *entry) {
	at, twice := slices.BinarySearchFunc(t.entries, e, t.compare)
	if twice { // a store may list a key twice
		return
	}
	t.count++
	if at == t.max {
		return
	}
	t.entries = slices.Insert(t.entries, at, e)
	t.entries = t.entries[:min(len(t.entries), t.max)]
}

// scan is what one pass over the records of all stores found.
type scan struct {
	list       top
	alerts     map[alert]*top
	read       int      // records
	incomplete []string // the stores that have more records
	failed     []string // the stores that could not be read, and why
}

// scanStores reads the records of all stores in parallel, so that a slow store takes no time
// from the others. inList reports whether an entry belongs to the list.
func scanStores(ctx context.Context, open []admin.Store, inList func(*entry) bool) *scan {
	s := &scan{list: top{max: maxRows, compare: newest}, alerts: make(map[alert]*top)}
	for _, a := range alerts {
		s.alerts[a] = &top{max: maxAlerts, compare: oldest}
	}
	deadline := time.Now().Add(scanTime)
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, store := range open {
		all.Go(func() {
			for cursor := ""; ; {
				page, next, err := store.List(ctx, cursor, batch)
				if s.add(&mu, store, page, err, inList); err != nil || next == "" {
					return
				}
				if cursor = next; time.Now().After(deadline) {
					mu.Lock()
					defer mu.Unlock()
					s.incomplete = append(s.incomplete, store.Name())
					return
				}
			}
		})
	}
	all.Wait()
	return s
}

func (s *scan) add(mu *sync.Mutex, store admin.Store, page []idempotency.Listed, err error, inList func(*entry) bool) {
	mu.Lock()
	defer mu.Unlock()
	if err != nil {
		s.failed = append(s.failed, failure(store, err))
		return
	}
	s.read += len(page)
	for _, l := range page {
		e := entryOf(store, l)
		if e.alert != "" {
			s.alerts[e.alert].add(e)
		}
		if inList(e) {
			s.list.add(e)
		}
	}
}

// find returns the records of a delivery ID, or, if there are none, those whose parts joined by
// colons are the text. The error says which stores could not be searched.
func find(ctx context.Context, open []admin.Store, text string) (*top, error) {
	ctx, cancel := context.WithTimeout(ctx, findTime)
	defer cancel()
	found, err := findWhere(ctx, open, text, func(o idempotency.Origin) bool { return o.DeliveryID == text })
	if first, _, several := strings.Cut(text, ":"); several && err == nil && found.count == 0 {
		return findWhere(ctx, open, first, func(o idempotency.Origin) bool { return o.Joined() == text })
	}
	return found, err
}

// findWhere returns the records among those whose keys begin as that of an ID.
func findWhere(ctx context.Context, open []admin.Store, id string, is func(idempotency.Origin) bool) (*top, error) {
	found := &top{max: maxRows, compare: newest}
	var failed error
	for _, store := range open {
		var of []idempotency.KeyPrefix
		for _, namespace := range store.Namespaces() {
			of = append(of, idempotency.PrefixFor(namespace, id))
		}
		for cursor, more := "", true; more; more = cursor != "" {
			page, next, err := store.Find(ctx, of, cursor, batch)
			if err = cmp.Or(err, ctx.Err()); err != nil {
				failed = errors.Join(failed, errors.New(failure(store, err)))
				break
			}
			for _, l := range page {
				if l.Unreadable != nil || is(l.Record.Origin) {
					found.add(entryOf(store, l))
				}
			}
			cursor = next
		}
	}
	return found, failed
}

// lookUp returns the record of a key from the first store that has it, and its response if
// that is wanted. The entry is nil if there is none; the error then says which stores could
// not be asked.
func lookUp(ctx context.Context, open []admin.Store, key idempotency.Key, withResponse bool) (*entry, keptResponse, error) {
	var failed error
	for _, store := range open {
		record, now, err := store.Lookup(ctx, key)
		if _, unreadable := errors.AsType[*idempotency.UnreadableError](err); unreadable {
			return entryOf(store, idempotency.Listed{Key: key, Unreadable: err, Now: time.Now()}), keptResponse{}, nil
		}
		if err != nil {
			failed = errors.Join(failed, errors.New(failure(store, err)))
		}
		if err != nil || record == nil {
			continue
		}
		var kept keptResponse
		if withResponse {
			kept.Response, kept.err = store.Response(ctx, key, record)
		}
		return entryOf(store, idempotency.Listed{Key: key, Record: record, Now: now}), kept, nil
	}
	return nil, keptResponse{}, failed
}

// keptResponse is the response of a record, nil if there is none.
type keptResponse struct {
	*idempotency.Response
	err error // it could not be read
}

func failure(store admin.Store, err error) string {
	return fmt.Sprintf("%s: %s", store.Name(), strings.TrimSuffix(err.Error(), "."))
}

func leave(open []admin.Store) {
	for _, store := range open {
		store.Leave()
	}
}
