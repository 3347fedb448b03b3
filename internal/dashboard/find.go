package dashboard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

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
	// unseen, if it is not "", says among how many records only the ID of an execution was
	// looked for.
	unseen string
}

// textsOf returns what somebody may have meant with what stands in the search field: that,
// or what is left without the white space around it.
func textsOf(field string) []string {
	trimmed := strings.TrimSpace(field)
	if trimmed == "" || trimmed == field {
		return []string{field}
	}
	return []string{field, trimmed}
}

// find looks for one of these texts in all stores: as a delivery ID, and the last of them as
// the ID of an execution, among up to so many records, 0 for not so.
func find(ctx context.Context, open []Store, texts []string, records int) found {
	ctx, cancel := context.WithTimeout(ctx, findFor)
	defer cancel()
	var f found
	for _, text := range texts {
		if f = findID(ctx, open, text); len(f.records) > 0 {
			return f
		}
	}
	if records > 0 && len(f.away) == 0 {
		f = findExecution(ctx, open, texts[len(texts)-1], records)
	}
	return f
}

// findExecution looks for the record of an execution, and of those that were forced after
// it. No store has an order for that: it goes through the records.
func findExecution(ctx context.Context, open []Store, id string, records int) (f found) {
	known := make(map[string]bool)
	w, err := through(ctx, open, "", records, func(store Store, page []idempotency.Listed) {
		for _, l := range page {
			name := store.Key() + string(l.Key[:])
			if l.Unreadable != nil || l.Record.ExecutionID != id && l.Record.ParentID != id || known[name] {
				continue
			}
			if f.more = len(f.records) >= mostFound; !f.more {
				known[name] = true
				f.records = append(f.records, seenListed(store, l))
			}
		}
	})
	if err != nil {
		return found{away: []away{{"the stores", err.Error()}}}
	}
	slices.SortFunc(f.records, func(a, b seen) int { return newerFirst(&a, &b) })
	if f.away = w.away; len(w.unfinished) > 0 {
		f.unseen = grouped(uint64(w.looked))
	}
	return f
}

// findID looks for the records of a delivery ID in all stores.
func findID(ctx context.Context, open []Store, id string) (f found) {
	defer func() {
		slices.SortFunc(f.records, func(a, b seen) int { return b.record.Claimed.Compare(a.record.Claimed) })
	}()
	known := make(map[string]bool)
	for _, store := range open {
		var of []idempotency.Beginning
		for _, namespace := range store.Namespaces() {
			of = append(of, idempotency.BeginningOf(namespace, id))
		}
		for cursor, first := "", true; first || cursor != ""; first = false {
			page, next, err := store.Find(ctx, of, cursor, walkBatch)
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				f.away = append(f.away, awayOf(store, err))
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

// only returns the store that a link names, if it is open.
func only(open []Store, in string) []Store {
	at := slices.IndexFunc(open, func(s Store) bool { return shortOf(s.Key()) == in })
	if at < 0 {
		return nil
	}
	return open[at : at+1]
}

// lookUp returns the record of a key, from the first store that has it. The error is errNone, or
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
			seen:    seenListed(store, idempotency.Listed{Key: key, Record: record, Now: now}),
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
		if _, changed := errors.AsType[idempotency.ChangedError](err); changed {
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
