package admin

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

const (
	// listFor is how long one request goes through records of which few are wanted. Then
	// it answers with what it has found, and with where to go on.
	listFor = 3 * time.Second
	// FindFor is that for a delivery ID, of which one request is to find all: a Redis of
	// a million keys takes a second, one of ten million ten.
	FindFor = 30 * time.Second
	// listBatch is how many records a store is asked for at a time.
	listBatch = 500
)

// Page is a page of records.
type Page struct {
	Keys []Record `json:"keys"`
	Next string   `json:"next,omitempty"`
	// Unasked are the stores that could not be asked, where others could.
	Unasked []Readiness `json:"unasked,omitempty"`
}

// serveList answers with a page of the records that the query asks for.
func (a *API) serveList(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodGet {
		return wrongMethod(w, r, "GET", "GET "+ListPath)
	}
	query, err := queryOf(r, listParameters...)
	if err != nil {
		return err
	}
	filter, limit, err := a.filterOf(query)
	if err != nil {
		return err
	}
	from, err := parseListCursor(query.Get(ParamCursor))
	if err != nil {
		return err
	}
	l := listing{keyFilter: filter, limit: limit, until: time.Now().Add(listFor)}
	if filter.deliveryID != "" {
		l.until = time.Now().Add(FindFor)
	}
	page, err := a.page(r.Context(), &l, from)
	if err != nil {
		return err
	}
	return answerJSON(w, http.StatusOK, page)
}

// page leaves the stores before the page is written: whoever asks may read it slowly.
func (a *API) page(ctx context.Context, l *listing, from listCursor) (Page, error) {
	open := a.Open()
	defer leaveAll(open)
	return l.page(ctx, open, from)
}

// listCursor is where a page begins: in a store, at a page of the store's own, and
// behind one of its keys.
type listCursor struct {
	Store string `json:"s"`
	At    string `json:"c,omitempty"`
	After string `json:"a,omitempty"`
}

func (c listCursor) String() string {
	text, err := json.Marshal(c)
	if err != nil {
		panic("admin: a cursor that JSON cannot hold: " + err.Error()) // impossible by its type
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

func parseListCursor(text string) (listCursor, error) {
	if text == "" {
		return listCursor{}, nil
	}
	var c listCursor
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	if err == nil && c.After != "" {
		_, err = idempotency.ParseKey(c.After)
	}
	if err != nil || c.Store == "" {
		return listCursor{}, wrongCursor(text)
	}
	return c, nil
}

func wrongCursor(text string) error {
	return wrongRequest("cursor=%q is not accepted; it is the next of the page before, and without one the list begins", text)
}

// cursorName names a store in a cursor.
func cursorName(store Store) string {
	sum := sha256.Sum256([]byte(store.Key()))
	return hex.EncodeToString(sum[:6])
}

// listing goes through the stores, one after the other.
type listing struct {
	keyFilter
	limit int
	until time.Time

	found   []Record
	seen    map[string]bool // a store may list a key twice
	unasked []Readiness
}

// page returns the records from a place on.
func (l *listing) page(ctx context.Context, open []Store, from listCursor) (Page, error) {
	first := 0
	if from.Store != "" {
		first = slices.IndexFunc(open, func(o Store) bool { return cursorName(o) == from.Store })
		if first < 0 {
			return Page{}, wrongRequest("cursor=%q is of a store that is not open any more; begin the list anew", from)
		}
	}
	for i, store := range open[first:] {
		at := &listCursor{Store: cursorName(store)}
		if i == 0 && from.Store != "" {
			at = &from
		}
		before := len(l.found)
		for at != nil {
			next, err := l.step(ctx, store, *at)
			switch {
			case errors.Is(err, idempotency.ErrCursor):
				return Page{}, wrongCursor(from.String())
			case err != nil && len(l.found) > before:
				return l.upTo(at), nil // whoever goes on from here is told
			case err != nil:
				l.unasked = append(l.unasked, Readiness{Store: store.Name(), Error: err.Error()})
				next = nil
			}
			at = next
			if len(l.found) < l.limit && time.Now().Before(l.until) {
				continue
			}
			if rest := open[first+i+1:]; at == nil && len(rest) > 0 {
				at = &listCursor{Store: cursorName(rest[0])}
			}
			return l.upTo(at), nil
		}
	}
	if len(l.found) == 0 && len(l.unasked) > 0 {
		return Page{}, unaskedProblem(l.unasked)
	}
	return l.upTo(nil), nil
}

// upTo is the page of what was found, with where the next one begins, nil for nowhere.
func (l *listing) upTo(next *listCursor) Page {
	p := Page{Keys: l.found, Unasked: l.unasked}
	if p.Keys == nil {
		p.Keys = []Record{} // in JSON it is a list
	}
	if next != nil {
		p.Next = next.String()
	}
	return p
}

// step looks at some records of a store. It returns where the next step begins, nil at
// the end of the store.
func (l *listing) step(ctx context.Context, store Store, at listCursor) (*listCursor, error) {
	batch, next, err := l.ask(ctx, store, at.At)
	if err != nil {
		return nil, err
	}
	for i, listed := range batch {
		if listed.Key.String() <= at.After { // a page is in the order of its keys
			continue
		}
		l.look(store, listed)
		if len(l.found) == l.limit && i+1 < len(batch) {
			return &listCursor{Store: at.Store, At: at.At, After: listed.Key.String()}, nil
		}
	}
	if next == "" {
		return nil, nil
	}
	return &listCursor{Store: at.Store, At: next}, nil
}

func (l *listing) ask(ctx context.Context, store Store, at string) ([]idempotency.Listed, string, error) {
	if l.deliveryID == "" {
		return store.List(ctx, at, listBatch)
	}
	return store.Find(ctx, beginningsOf(store, l.deliveryID), at, listBatch)
}

// beginningsOf returns how the keys of delivery IDs begin in this store.
func beginningsOf(store Store, ids ...string) []idempotency.Beginning {
	var of []idempotency.Beginning
	for _, namespace := range store.Namespaces() {
		for _, id := range ids {
			of = append(of, idempotency.BeginningOf(namespace, id))
		}
	}
	return of
}

// look takes a record that is wanted.
func (l *listing) look(store Store, listed idempotency.Listed) {
	shown := showListed(store.Name(), listed)
	if l.deliveryID != "" && shown.State == StateUnreadable {
		shown.DeliveryID = l.deliveryID // its key begins so
	}
	name := store.Key() + " " + shown.Key
	if !l.wants(shown, listed.Now) || l.seen[name] {
		return
	}
	if l.seen == nil {
		l.seen = make(map[string]bool)
	}
	l.seen[name] = true
	l.found = append(l.found, shown)
}

// showListed shows a record of a page, also one that cannot be read.
func showListed(store string, listed idempotency.Listed) Record {
	if listed.Unreadable != nil {
		return Record{Key: listed.Key.String(), Store: store, State: StateUnreadable, Unreadable: listed.Unreadable.Error()}
	}
	return showRecord(store, listed.Key, listed.Record, listed.Now)
}
