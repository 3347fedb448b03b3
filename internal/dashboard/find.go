package dashboard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

const (
	// findFor is how long a search for a delivery ID goes on: a Redis of a million keys
	// takes a second.
	findFor = 10 * time.Second
	// mostFound is how many records of one delivery ID are shown.
	mostFound = 200
	// foundHolds is how long the answer of a search is shared.
	foundHolds = time.Second
)

// found is what a search has found.
type found struct {
	records []seen
	away    []away
	more    bool // there are more than were looked for
}

// find looks for the records of a delivery ID in all stores.
func find(ctx context.Context, open []Store, id string) found {
	ctx, cancel := context.WithTimeout(ctx, findFor)
	defer cancel()
	var f found
	known := make(map[string]bool)
	for _, store := range open {
		var of []idempotency.Beginning
		for _, namespace := range store.Namespaces() {
			of = append(of, idempotency.BeginningOf(namespace, id))
		}
		for cursor, first := "", true; first || cursor != ""; first = false {
			page, next, err := store.Find(ctx, of, cursor, lookBatch)
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				f.away = append(f.away, away{store.Name(), err.Error()})
				break
			}
			for _, l := range page {
				s := seenListed(store, l)
				name := store.Key() + string(l.Key[:])
				// Keys of two IDs can begin alike, by chance.
				if known[name] || l.Unreadable == nil && s.record.DeliveryID != id {
					continue
				}
				known[name] = true
				f.records = append(f.records, s)
			}
			if f.more = len(f.records) > mostFound; f.more {
				f.records = f.records[:mostFound]
				return f
			}
			cursor = next
		}
	}
	slices.SortFunc(f.records, func(a, b seen) int { return b.record.Claimed.Compare(a.record.Claimed) })
	return f
}

// one is a record that was asked for by its key, and what belongs to it.
type one struct {
	seen
	waiting  int
	response *idempotency.Response
	noAnswer error // the response could not be read
}

// errNone says that no store has a record of the key.
var errNone = errors.New("no store has a record of this key")

// lookUp returns the record of a key, from the store that has it. The error is errNone, or
// says which stores could not be asked.
func lookUp(ctx context.Context, open []Store, key idempotency.Key, withResponse bool) (*one, error) {
	var unasked error
	for _, store := range open {
		record, now, err := store.Lookup(ctx, key)
		var unreadable *idempotency.UnreadableError
		switch {
		case errors.As(err, &unreadable):
			return &one{seen: seenListed(store, idempotency.Listed{Key: key, Unreadable: err, Now: time.Now()})}, nil
		case err != nil:
			unasked = errors.Join(unasked, fmt.Errorf("%s: %w", store.Name(), err))
			continue
		case record == nil:
			continue
		}
		o := &one{
			seen:    seen{key: key, store: store.Name(), state: admin.StateOf(record, now), record: record, now: now},
			waiting: store.WaitingFor(key),
		}
		if withResponse {
			o.response, o.noAnswer = store.Response(ctx, key, record)
		}
		return o, nil
	}
	if unasked != nil {
		return nil, unasked
	}
	return nil, errNone
}

// operate does something about a key in the store that has it.
func operate(ctx context.Context, open []Store, key idempotency.Key, do func(Store, context.Context, idempotency.Key) error) error {
	var unasked error
	for _, store := range open {
		err := do(store, ctx, key)
		switch {
		case errors.Is(err, idempotency.ErrGone):
			continue
		case err == nil, errors.Is(err, idempotency.ErrInFlight):
			return err
		}
		var unreadable *idempotency.UnreadableError
		if errors.As(err, &unreadable) {
			return err
		}
		unasked = errors.Join(unasked, fmt.Errorf("%s: %w", store.Name(), err))
	}
	if unasked != nil {
		return unasked
	}
	return errNone
}

// leave ends the use of the stores.
func leave(open []Store) {
	for _, store := range open {
		store.Leave()
	}
}
