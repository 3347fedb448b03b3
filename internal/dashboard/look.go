package dashboard

import (
	"cmp"
	"context"
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Store is a store that is open, as the page asks for it.
type Store interface {
	admin.Store
	// InProgress returns how many runs of this process are in flight, and how many of its
	// requests wait for a run.
	InProgress() (runs, waiting int)
	// WaitingFor returns how many requests of this process wait for the run of a key.
	WaitingFor(key idempotency.Key) int
}

const (
	// Of all records a look keeps the newest ones, and fewer of each class: of a state, of
	// a need, of a provider. The rest it only counts.
	mostNewest    = 10_000
	mostOfState   = 1000
	mostOfOrigin  = 200
	mostProviders = 50
	// A look holds for leastRest, and for restTimes as long as it took, but no longer
	// than mostRest, so that pages that are open do not keep the stores busy.
	leastRest = 2 * time.Second
	restTimes = 10
	mostRest  = 30 * time.Second
)

// seen is a record as a look has found it.
type seen struct {
	key    idempotency.Key
	store  string // for people
	in     string // the store's key
	state  string
	record *idempotency.Record // nil if it cannot be read
	why    string              // it cannot be read
	now    time.Time           // by the clock of the store

	kind  need // what it needs, "" for nothing
	since time.Time
}

func seenListed(store Store, l idempotency.Listed) seen {
	if l.Unreadable != nil {
		return seen{key: l.Key, store: store.Name(), in: store.Key(), state: admin.StateUnreadable, record: new(idempotency.Record), why: l.Unreadable.Error(), now: l.Now}
	}
	return seen{key: l.Key, store: store.Name(), in: store.Key(), state: admin.StateOf(l.Record, l.Now), record: l.Record, now: l.Now}
}

// asSeen is what an operator has seen of the record.
func (s *seen) asSeen() idempotency.Seen {
	return idempotency.Seen{ExecutionID: s.record.ExecutionID, State: idempotency.State(s.state)}
}

// newerFirst is the order of the list: by claim.
func newerFirst(a, b *seen) int {
	return cmp.Or(b.record.Claimed.Compare(a.record.Claimed), strings.Compare(string(a.key[:]), string(b.key[:])))
}

// olderFirst is the order of what needs attention.
func olderFirst(a, b *seen) int {
	return cmp.Or(a.since.Compare(b.since), strings.Compare(string(a.key[:]), string(b.key[:])))
}

// best keeps the first records of an order, and counts the others.
type best struct {
	most  int
	order func(a, b *seen) int

	count   int // of all that it was given
	records []seen
	full    bool // records[most-1] is the last that may stay
}

func (b *best) add(s *seen) {
	b.count++
	if b.full && b.order(s, &b.records[b.most-1]) > 0 {
		return
	}
	if b.records = append(b.records, *s); len(b.records) >= 2*b.most {
		b.cut()
	}
}

// cut brings the records in order, and drops those that are too many.
func (b *best) cut() {
	slices.SortFunc(b.records, func(x, y seen) int { return b.order(&x, &y) })
	if len(b.records) > b.most {
		clear(b.records[b.most:])
		b.records = b.records[:b.most]
	}
	b.full = len(b.records) == b.most
}

// window is what one look has found: of all records, or of those from a place on.
type window struct {
	*walk
	at       time.Time
	newest   *best
	classes  map[string]*best // by state and need, and [needsAny]
	origins  map[string]*best // by provider, as far as there are not too many
	oldest   map[need]*best
	concerns []seen // the oldest of what needs attention

	exhausted map[idempotency.Key]time.Time
	known     map[uint64]struct{} // a store may list a key twice
}

func newWindow(exhausted map[idempotency.Key]time.Time) *window {
	return &window{
		newest: &best{most: mostNewest, order: newerFirst}, classes: make(map[string]*best), origins: make(map[string]*best),
		oldest: make(map[need]*best), exhausted: exhausted, known: make(map[uint64]struct{}),
	}
}

// look goes through the stores from a place on.
func look(ctx context.Context, open []Store, place string, records int, exhausted map[idempotency.Key]time.Time) (*window, error) {
	w := newWindow(exhausted)
	walked, err := through(ctx, open, place, records, func(store Store, page []idempotency.Listed) {
		salt := uint64(slices.Index(open, store))
		for _, l := range page {
			// The end of a key is that of a hash: no two have the same by chance.
			name := binary.BigEndian.Uint64(l.Key[len(l.Key)-8:]) + salt
			if _, twice := w.known[name]; twice {
				continue
			}
			w.known[name] = struct{}{}
			w.add(seenListed(store, l))
		}
	})
	if err != nil {
		return nil, err
	}
	w.walk = walked
	w.finish()
	return w, nil
}

// add takes a record.
func (w *window) add(s seen) {
	judge(&s, w.exhausted)
	w.newest.add(&s)
	of(w.classes, s.state, mostOfState, newerFirst).add(&s)
	if s.kind != "" {
		of(w.classes, needsAny, mostOfState, newerFirst).add(&s)
		of(w.oldest, s.kind, mostConcerns, olderFirst).add(&s)
		if string(s.kind) != s.state {
			of(w.classes, string(s.kind), mostOfState, newerFirst).add(&s)
		}
	}
	if name := s.record.Provider; name != "" && (w.origins[name] != nil || len(w.origins) < mostProviders) {
		of(w.origins, name, mostOfOrigin, newerFirst).add(&s)
	}
}

func of[K comparable](classes map[K]*best, name K, most int, order func(a, b *seen) int) *best {
	if classes[name] == nil {
		classes[name] = &best{most: most, order: order}
	}
	return classes[name]
}

// finish brings all in order.
func (w *window) finish() {
	w.newest.cut()
	for _, class := range w.classes {
		class.cut()
	}
	for _, class := range w.origins {
		class.cut()
	}
	for _, kind := range needs {
		if class := w.oldest[kind]; class != nil {
			class.cut()
			w.concerns = append(w.concerns, class.records...)
		}
	}
	w.at, w.known, w.exhausted = time.Now(), nil, nil
}

// count is how many records are of a state, or have a need.
func (w *window) count(name string) int {
	if class := w.classes[name]; class != nil {
		return class.count
	}
	return 0
}

// needing is how many records have one of these needs.
func (w *window) needing(kinds ...need) (n int) {
	for _, kind := range kinds {
		if class := w.oldest[kind]; class != nil {
			n += class.count
		}
	}
	return n
}

// listed returns the newest records of a state and a provider, "" for any. all is how many
// there are of them; with more there are some that are not counted.
func (w *window) listed(state, provider string) (records []seen, all int, more bool) {
	none := &best{}
	class, origin := w.classes[state], w.origins[provider]
	switch {
	case state == "" && provider == "":
		return w.newest.records, w.newest.count, false
	case class == nil && state != "":
		class = none
	case origin == nil && provider != "" && len(w.origins) < mostProviders:
		origin = none
	}
	switch {
	case provider == "":
		return class.records, class.count, false
	case state == "" && origin != nil:
		return origin.records, origin.count, false
	}
	// Who is asked for both gets what both have, and what the newest have.
	wanted := &best{most: mostOfState, order: newerFirst}
	type id struct {
		in  string
		key idempotency.Key
	}
	taken := make(map[id]bool)
	for _, from := range []*best{class, origin, w.newest} {
		if from == nil {
			continue
		}
		for _, s := range from.records {
			if name := (id{s.in, s.key}); !taken[name] && s.is(state) && s.record.Provider == provider {
				taken[name] = true
				wanted.add(&s)
			}
		}
	}
	wanted.cut()
	whole := func(b *best) bool { return b != nil && b.count == len(b.records) }
	return wanted.records, wanted.count, !whole(class) && !whole(origin) && !whole(w.newest)
}

// is reports whether a record is of a state or has a need, "" for any.
func (s *seen) is(state string) bool {
	return state == "" || s.state == state || string(s.kind) == state || state == needsAny && s.kind != ""
}

// rest is for how long a window holds, after a look that took this long.
func (w *window) rest(took time.Duration) time.Duration {
	if len(w.away) > 0 {
		return leastRest
	}
	return max(leastRest, min(restTimes*took, mostRest))
}
