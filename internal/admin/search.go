package admin

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

const (
	// WalkTimeout is how long a list reads records, plus one call of a store.
	WalkTimeout = 10 * time.Second
	// FindTimeout is the maximum time of a search for delivery IDs: in Redis, a million keys take a second.
	FindTimeout = 30 * time.Second
	// walkBatch is how many records one call of a store reads, which bounds how long it blocks the store.
	walkBatch = 500
)

// Found is a record that was found in a store.
type Found struct {
	idempotency.Listed
	// Store has the record. It must not be used after Leave.
	Store Store
	// State is the record's state, as operators see it.
	State string

	in string // the store, as cursors name it
}

// foundIn returns a record that a store, with this name in cursors, has listed. Record is not nil, and
// empty if it is unreadable.
func foundIn(store Store, name string, listed idempotency.Listed) *Found {
	f := &Found{Listed: listed, Store: store, State: StateUnreadable, in: name}
	if listed.Unreadable == nil {
		f.State = string(listed.Record.StateAt(listed.Now))
	} else {
		f.Record = new(idempotency.Record)
	}
	return f
}

// Observed reports whether the key was claimed under observe, in a namespace that this process knows.
func (f *Found) Observed() bool {
	prefix := f.Key.Prefix()
	return slices.ContainsFunc(f.Store.Namespaces(), func(namespace string) bool {
		return prefix == idempotency.PrefixFor(idempotency.ObservedNamespace(namespace), f.Record.DeliveryID)
	})
}

// Reason returns why the latest run left nothing to replay, or which operator has released or completed
// the key since. It is "" for neither.
func (f *Found) Reason() string {
	if f.Record.State == idempotency.InFlight && f.State != string(idempotency.InFlight) {
		return "the lease was not renewed"
	}
	return f.Record.Reason
}

// ByOperator reports whether an operator has released the key, and it has not run since.
func (f *Found) ByOperator() bool {
	r := f.Record
	return f.State == string(idempotency.Released) && r.Attempt > 0 && r.ReleasedAttempts >= r.Attempt
}

// Newest orders lists: unreadable records first, then the newest claims.
func Newest(a, b *Found) int {
	return cmp.Or(cmp.Compare(readable(a), readable(b)), b.Record.Claimed.Compare(a.Record.Claimed), ByKey(a, b))
}

func readable(f *Found) int {
	if f.State == StateUnreadable {
		return 0
	}
	return 1
}

// ByKey orders records by their keys, then by their stores.
func ByKey(a, b *Found) int {
	return cmp.Or(bytes.Compare(a.Key[:], b.Key[:]), strings.Compare(a.in, b.in))
}

// Top counts records, and keeps the first of them in an order.
type Top struct {
	Max     int
	Compare func(a, b *Found) int

	Count int
	Found []*Found
}

// Add adds a record, unless it is kept already: two of the sought IDs may have it, and SCAN may return a
// key twice.
func (t *Top) Add(f *Found) {
	at, twice := slices.BinarySearchFunc(t.Found, f, t.Compare)
	if twice {
		return
	}
	t.Count++
	if at < t.Max {
		t.Found = slices.Insert(t.Found, at, f)
		t.Found = t.Found[:min(len(t.Found), t.Max)]
	}
}

// Search looks for records in all stores that are open: for a list, a lookup, or the page. It
// reads the stores in parallel, so that a slow one does not delay the others, and keeps the newest records.
type Search struct {
	// IDs are the delivery IDs to find; nil for all records. A text is first taken as a whole ID. If no
	// record has it, it is taken as parts joined by colons.
	IDs []string
	// Wants reports whether a record belongs to the result. It is called once for each record
	// that was read and has one of the IDs, one call at a time.
	Wants func(*Found) bool
	// After is the record after which the result starts, nil for the first one.
	After *Found
	// Max is the maximum number of records in the result.
	Max int
	// Timeout is how long the search reads, plus one call of a store.
	Timeout time.Duration

	// Result has the newest records, and how many there are.
	Result Top
	// Missing are the IDs without a record, each once.
	Missing []string
	// Read is how many records were read.
	Read int
	// More are the names of the stores that have more records than were read.
	More []string
	failures

	mu  sync.Mutex
	ids map[string]*matches
}

// failures are the stores that could not be read.
type failures struct {
	Failed      []Readiness
	unavailable bool // one of them is in use
}

func (f *failures) fail(store Store, err error) {
	f.Failed = append(f.Failed, Readiness{Store: store.Name(), Error: err.Error()})
	f.unavailable = f.unavailable || store.InUse()
}

// matches are the records of a delivery ID, and of parts that make the same text.
type matches struct {
	whole, joined Top
	isID          bool // a record has the ID, wanted or not
}

// Incomplete reports whether a store has records that were not read.
func (s *Search) Incomplete() bool { return len(s.More)+len(s.Failed) > 0 }

// Run searches the stores.
func (s *Search) Run(ctx context.Context, open []Store) {
	s.Result = s.top()
	s.ids = make(map[string]*matches)
	for _, id := range s.IDs {
		s.ids[id] = &matches{whole: s.top(), joined: s.top()}
	}
	until := time.Now().Add(s.Timeout)
	var all sync.WaitGroup
	for _, store := range open {
		all.Go(func() { s.walk(ctx, store, until) })
	}
	all.Wait()
	slices.Sort(s.More)
	slices.SortFunc(s.Failed, func(a, b Readiness) int { return strings.Compare(a.Store, b.Store) })
	s.finish()
}

func (s *Search) top() Top { return Top{Max: s.Max, Compare: Newest} }

// walk reads the records of one store, in steps.
func (s *Search) walk(ctx context.Context, store Store, until time.Time) {
	sought, prefixes := s.sought(store)
	for cursor := ""; ; {
		page, next, err := s.step(ctx, store, prefixes, cursor)
		if s.add(store, sought, page, err); err != nil || next == "" {
			return
		}
		if cursor = next; time.Now().After(until) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.More = append(s.More, store.Name())
			return
		}
	}
}

func (s *Search) step(ctx context.Context, store Store, prefixes []idempotency.KeyPrefix, cursor string) ([]idempotency.Listed, string, error) {
	if err := ctx.Err(); err != nil {
		return nil, "", err
	}
	if s.IDs == nil {
		return store.List(ctx, cursor, walkBatch)
	}
	return store.Find(ctx, prefixes, cursor, walkBatch)
}

// target is a text whose keys are read to find an ID: the ID itself, or its first part.
type target struct{ id, text string }

// sought returns the prefixes of the keys that a store may have of the IDs, including those of observed
// requests.
func (s *Search) sought(store Store) (map[idempotency.KeyPrefix][]target, []idempotency.KeyPrefix) {
	sought := make(map[idempotency.KeyPrefix][]target)
	for id := range s.ids {
		first, _, _ := strings.Cut(id, ":")
		for _, text := range slices.Compact([]string{id, first}) {
			for _, namespace := range store.Namespaces() {
				for _, of := range []string{namespace, idempotency.ObservedNamespace(namespace)} {
					prefix := idempotency.PrefixFor(of, text)
					sought[prefix] = append(sought[prefix], target{id, text})
				}
			}
		}
	}
	return sought, slices.Collect(maps.Keys(sought))
}

// add adds a page of a store to the result.
func (s *Search) add(store Store, sought map[idempotency.KeyPrefix][]target, page []idempotency.Listed, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.fail(store, err)
		return
	}
	s.Read += len(page)
	name := cursorName(store)
	for _, listed := range page {
		f := foundIn(store, name, listed)
		if s.IDs == nil {
			s.keep(&s.Result, f)
		}
		for _, t := range sought[f.Key.Prefix()] { // several IDs may start with the same part
			s.match(f, t)
		}
	}
}

func (s *Search) keep(in *Top, f *Found) {
	if s.Wants(f) && (s.After == nil || Newest(f, s.After) > 0) {
		in.Add(f)
	}
}

// match adds a record whose key has the prefix of a text. Nothing else is known of an unreadable one.
func (s *Search) match(f *Found, t target) {
	if f.State == StateUnreadable {
		named := *f
		named.Record = &idempotency.Record{Origin: idempotency.Origin{DeliveryID: t.text}}
		f = &named
	}
	m := s.ids[t.id]
	switch {
	case f.Record.DeliveryID == t.id:
		m.isID = true
		s.keep(&m.whole, f)
	case f.Record.Joined() == t.id || f.State == StateUnreadable:
		s.keep(&m.joined, f)
	}
}

// finish builds the result from the records of the IDs. It splits no text if a store was not read to its
// end, which may have a record of the whole text.
func (s *Search) finish() {
	for _, id := range s.IDs {
		m := s.ids[id]
		if m == nil { // a repeated ID
			continue
		}
		delete(s.ids, id)
		of := &m.whole
		if !m.isID && !s.Incomplete() {
			of = &m.joined
		}
		if of.Count == 0 {
			s.Missing = append(s.Missing, id)
		}
		more := of.Count - len(of.Found)
		for _, f := range of.Found {
			s.Result.Add(f)
		}
		s.Result.Count += more
	}
}

// cursorName names a store in a cursor.
func cursorName(store Store) string {
	sum := sha256.Sum256([]byte(store.Key()))
	return hex.EncodeToString(sum[:6])
}
