package dashboard

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

const (
	// mostRecords is how many records one walk goes through, walkFor for how long, and
	// walkBatch how many a store is asked for at a time: with the store's timeout for the
	// last batch that bounds what a view of the page costs.
	mostRecords = 500_000
	walkFor     = 3 * time.Second
	walkBatch   = 500
)

// away is a store that could not be asked.
type away struct{ Store, Why string }

// awayOf says why a store could not be asked, as the page goes on after it.
func awayOf(store Store, err error) away {
	return away{store.Name(), strings.TrimRight(err.Error(), ".")}
}

// errPlace says that a place is not one that a walk has named.
var errPlace = errors.New("the place in the list is not one that this page has named, or its store is not open any more; begin the list anew")

// walk is one way through the stores, or through what a walk before has left of them.
type walk struct {
	looked     int // records
	away       []away
	unfinished []string // the names of the stores that have more
	next       string   // the place where the rest begins, "" where there is none
}

// shortOf names a store in links, by its key.
func shortOf(storeKey string) string {
	sum := sha256.Sum256([]byte(storeKey))
	return hex.EncodeToString(sum[:6])
}

// placeIn names a place in a store: where the store's own page begins.
func placeIn(store Store, cursor string) string {
	return shortOf(store.Key()) + "." + base64.RawURLEncoding.EncodeToString([]byte(cursor))
}

// cursorsOf returns the stores of a place, and where in each of them it is.
func cursorsOf(open []Store, place string) (stores []Store, cursors []string, err error) {
	if place == "" {
		return open, make([]string, len(open)), nil
	}
	for one := range strings.SplitSeq(place, "~") {
		name, rest, _ := strings.Cut(one, ".")
		raw, err := base64.RawURLEncoding.DecodeString(rest)
		at := slices.IndexFunc(open, func(s Store) bool { return strings.HasPrefix(placeIn(s, ""), name+".") })
		if err != nil || at < 0 || slices.Contains(stores, open[at]) {
			return nil, nil, errPlace
		}
		stores, cursors = append(stores, open[at]), append(cursors, string(raw))
	}
	return stores, cursors, nil
}

// through goes through the stores from a place on, all at the same time, so that a slow
// one takes no time from the others. Each has its share of the records. take is called
// with what is found, never twice at once.
func through(ctx context.Context, open []Store, place string, records int, take func(Store, []idempotency.Listed)) (*walk, error) {
	stores, cursors, err := cursorsOf(open, place)
	if err != nil {
		return nil, err
	}
	until := time.Now().Add(walkFor)
	var (
		mu    sync.Mutex
		all   sync.WaitGroup
		ended = make([]error, len(stores))
		w     = new(walk)
	)
	for i, store := range stores {
		all.Go(func() {
			for looked := 0; ; {
				page, next, err := store.List(ctx, cursors[i], walkBatch)
				if ended[i] = err; err != nil {
					return
				}
				mu.Lock()
				w.looked += len(page)
				take(store, page)
				mu.Unlock()
				looked += len(page)
				if cursors[i] = next; next == "" || looked >= records/len(stores) || !time.Now().Before(until) {
					return
				}
			}
		})
	}
	all.Wait()
	var rest []string
	for i, store := range stores {
		switch {
		case errors.Is(ended[i], idempotency.ErrCursor):
			return nil, errPlace
		case ended[i] != nil:
			w.away = append(w.away, awayOf(store, ended[i]))
		case cursors[i] != "":
			w.unfinished, rest = append(w.unfinished, store.Name()), append(rest, placeIn(store, cursors[i]))
		}
	}
	w.next = strings.Join(rest, "~")
	return w, nil
}
