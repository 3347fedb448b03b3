package dashboard

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
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
	// mostRecords is how many records one look goes through, lookBatch how many a store
	// is asked for at a time, and lookFor for how long: with the store's timeout for the
	// last batch that bounds what a view of the page costs.
	mostRecords = 20_000
	lookBatch   = 500
	lookFor     = 3 * time.Second
	// A look holds for leastRest, and for restTimes as long as it took, but no longer
	// than mostRest, so that pages that are open do not keep the stores busy.
	leastRest = 2 * time.Second
	restTimes = 10
	mostRest  = 10 * time.Second
)

// seen is a record as a look has found it.
type seen struct {
	key    idempotency.Key
	store  string // for people
	state  string
	record *idempotency.Record // nil if it cannot be read
	why    string              // it cannot be read
	now    time.Time           // by the clock of the store

	kind  need // what it needs, "" for nothing
	since time.Time
}

func seenListed(store Store, l idempotency.Listed) seen {
	if l.Unreadable != nil {
		return seen{key: l.Key, store: store.Name(), state: admin.StateUnreadable, record: new(idempotency.Record), why: l.Unreadable.Error(), now: l.Now}
	}
	return seen{key: l.Key, store: store.Name(), state: admin.StateOf(l.Record, l.Now), record: l.Record, now: l.Now}
}

// away is a store that could not be asked.
type away struct{ Store, Why string }

// window is what one look has found: all records, or those from a place on.
type window struct {
	at       time.Time
	records  []seen // the newest claim first
	concerns []seen // what needs attention
	states   map[string]int
	needs    map[need]int
	away     []away
	next     string // where the rest begins, "" where there is none
}

// errPlace says that a place is not one that a look has named.
var errPlace = errors.New("the place in the list is not one that this page has named, or its store is not open any more; begin the list anew")

// placeIn names a place in a store: where the store's own page begins.
func placeIn(store Store, cursor string) string {
	sum := sha256.Sum256([]byte(store.Key()))
	return hex.EncodeToString(sum[:6]) + "." + base64.RawURLEncoding.EncodeToString([]byte(cursor))
}

// cursorOf returns the store, and its cursor, of a place.
func cursorOf(open []Store, place string) (first int, cursor string, err error) {
	if place == "" {
		return 0, "", nil
	}
	name, rest, _ := strings.Cut(place, ".")
	raw, err := base64.RawURLEncoding.DecodeString(rest)
	first = slices.IndexFunc(open, func(s Store) bool { return strings.HasPrefix(placeIn(s, ""), name+".") })
	if err != nil || first < 0 {
		return 0, "", errPlace
	}
	return first, string(raw), nil
}

// look goes through the stores from a place on, the stores one after the other.
func look(ctx context.Context, open []Store, place string, exhausted map[idempotency.Key]time.Time) (*window, error) {
	first, cursor, err := cursorOf(open, place)
	if err != nil {
		return nil, err
	}
	w, began := new(window), time.Now()
	known := make(map[string]bool) // a store may list a key twice
	for _, store := range open[min(first, len(open)):] {
		for more := true; more; more = cursor != "" {
			if len(w.records) >= mostRecords || time.Since(began) >= lookFor {
				w.next = placeIn(store, cursor)
				return w.sorted(exhausted), nil
			}
			page, next, err := store.List(ctx, cursor, lookBatch)
			if errors.Is(err, idempotency.ErrCursor) {
				return nil, errPlace
			}
			if err != nil {
				w.away = append(w.away, away{store.Name(), err.Error()})
				break
			}
			for _, l := range page {
				name := store.Key() + string(l.Key[:])
				if !known[name] {
					known[name] = true
					w.records = append(w.records, seenListed(store, l))
				}
			}
			cursor = next
		}
		cursor = ""
	}
	return w.sorted(exhausted), nil
}

// sorted finishes a window.
func (w *window) sorted(exhausted map[idempotency.Key]time.Time) *window {
	slices.SortFunc(w.records, func(a, b seen) int {
		return cmp.Or(b.record.Claimed.Compare(a.record.Claimed), strings.Compare(string(a.key[:]), string(b.key[:])))
	})
	judge(w.records, exhausted)
	w.concerns = concernsOf(w.records)
	w.states, w.needs = make(map[string]int), make(map[need]int)
	for _, s := range w.records {
		w.states[s.state]++
		w.needs[s.kind]++
	}
	w.at = time.Now()
	return w
}

// rest is for how long a window holds, after a look that took this long.
func (w *window) rest(took time.Duration) time.Duration {
	if len(w.away) > 0 {
		return leastRest
	}
	return max(leastRest, min(restTimes*took, mostRest))
}
