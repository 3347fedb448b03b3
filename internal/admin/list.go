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
	"strings"
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
	// listBatch is how many records a store is asked for at a time, and findBatch how many of
	// a delivery ID: a Redis looks at so many names.
	listBatch = 500
	findBatch = 2000
)

// Page is a page of records.
type Page struct {
	Keys []Record `json:"keys"`
	Next string   `json:"next,omitempty"`
	// Unasked are the stores that could not be asked, where others could, or where no
	// configuration uses them any more.
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
	if from.Store != "" && from.ID != idInCursor(filter.deliveryID) {
		return wrongRequest("cursor=%q is of a list with another %s, or with none; begin the list anew", query.Get(ParamCursor), ParamDeliveryID)
	}
	page, err := a.page(r.Context(), &l, from)
	if err != nil {
		return err
	}
	return answerJSON(w, http.StatusOK, page)
}

// page leaves the stores before the page is written: whoever asks may read it slowly.
func (a *API) page(ctx context.Context, l *listing, from listCursor) (Page, error) {
	open, err := a.enter()
	if err != nil {
		return Page{}, err
	}
	defer leaveAll(open)
	l.joined = strings.Contains(l.deliveryID, ":") && !l.isID(ctx, open)
	return l.page(ctx, open, from)
}

// isID reports whether a record has the whole text as its delivery ID. Only if none has, it is
// that of parts. A store that cannot be asked has none here; the page says so.
func (l *listing) isID(ctx context.Context, open []Store) bool {
	id := keyFilter{deliveryID: l.deliveryID}
	for _, store := range open {
		for cursor, more := "", true; more; more = cursor != "" {
			page, next, err := store.Find(ctx, beginningsOf(store, l.deliveryID), cursor, listBatch)
			if err != nil || ctx.Err() != nil {
				break
			}
			for _, listed := range page {
				if id.wants(showListed(store.Name(), listed), listed.Now) {
					return true
				}
			}
			cursor = next
		}
	}
	return false
}

// listCursor is where a page begins: in a store, at a page of the store's own. It never
// is within one: asked again, a store may have another page there.
type listCursor struct {
	Store string `json:"s"`
	At    string `json:"c,omitempty"`
	// ID is of the delivery ID that is looked for, among whose keys alone the place is one.
	ID string `json:"d,omitempty"`
}

// idInCursor is how a cursor names a delivery ID, "" where there is none.
func idInCursor(deliveryID string) string {
	if deliveryID == "" {
		return ""
	}
	return shortSum(deliveryID)
}

// shortSum names a text in a cursor, which need not show it.
func shortSum(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:6])
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
	if err != nil || c.Store == "" {
		return listCursor{}, wrongCursor(text)
	}
	return c, nil
}

func wrongCursor(text string) error {
	return wrongRequest("cursor=%q is not accepted; it is the next of the page before, and without one the list begins", text)
}

// cursorName names a store in a cursor.
func cursorName(store Store) string { return shortSum(store.Key()) }

// listing goes through the stores, one after the other.
type listing struct {
	keyFilter
	limit int
	until time.Time

	found   []Record
	seen    map[string]bool // a store may list a key twice
	unasked []Readiness
	away    bool // one of them is in use
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
				l.away = l.away || store.InUse()
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
	if len(l.found) == 0 && l.away {
		return Page{}, unaskedProblem(l.unasked)
	}
	return l.upTo(nil), nil
}

// upTo is the page of what was found, the newest claim first, with where the next page begins, nil
// for nowhere.
func (l *listing) upTo(next *listCursor) Page {
	slices.SortStableFunc(l.found, func(a, b Record) int { return b.Claimed.Compare(a.Claimed) })
	p := Page{Keys: l.found, Unasked: l.unasked}
	if p.Keys == nil {
		p.Keys = []Record{} // in JSON it is a list
	}
	if next != nil {
		next.ID = idInCursor(l.deliveryID)
		p.Next = next.String()
	}
	return p
}

// step takes the records of a store that are wanted, from a place on. It returns where the
// next step begins, nil at the end of the store. The page may get somewhat more than its limit,
// from a store whose own pages do.
func (l *listing) step(ctx context.Context, store Store, at listCursor) (*listCursor, error) {
	room := l.limit - len(l.found)
	batch := listBatch
	if l.deliveryID != "" {
		batch = findBatch
	}
	wanted, next, last, err := l.look(ctx, store, at.At, batch)
	if err == nil && len(wanted) > room { // as many records as have so many that are wanted
		wanted, next, _, err = l.look(ctx, store, at.At, last)
	}
	if err == nil && len(wanted) > room { // a store may begin with others
		wanted, next, _, err = l.look(ctx, store, at.At, room)
	}
	if err != nil {
		return nil, err
	}
	for _, shown := range wanted {
		if l.seen == nil {
			l.seen = make(map[string]bool)
		}
		l.seen[store.Key()+" "+shown.Key] = true
	}
	l.found = append(l.found, wanted...)
	if next == "" {
		return nil, nil
	}
	return &listCursor{Store: at.Store, At: next}, nil
}

// look returns the wanted ones of up to so many records of a store, and where the next ones
// begin, "" at the end. last is how many records have as many that are wanted as the page
// has room for.
func (l *listing) look(ctx context.Context, store Store, at string, most int) (wanted []Record, next string, last int, err error) {
	batch, next, err := l.ask(ctx, store, at, most)
	for i, listed := range batch {
		shown := showListed(store.Name(), listed)
		if l.deliveryID != "" && shown.State == StateUnreadable {
			shown.DeliveryID = l.idSought() // its key begins so
		}
		if l.wants(shown, listed.Now) && !l.seen[store.Key()+" "+shown.Key] {
			wanted = append(wanted, shown)
			if len(wanted) == l.limit-len(l.found) {
				last = i + 1
			}
		}
	}
	return wanted, next, last, err
}

func (l *listing) ask(ctx context.Context, store Store, at string, most int) ([]idempotency.Listed, string, error) {
	if l.deliveryID == "" {
		return store.List(ctx, at, most)
	}
	return store.Find(ctx, beginningsOf(store, l.idSought()), at, most)
}

// beginningsOf returns how the keys of delivery IDs begin in this store.
func beginningsOf(store Store, ids ...string) []idempotency.KeyPrefix {
	var of []idempotency.KeyPrefix
	for _, namespace := range store.Namespaces() {
		for _, id := range ids {
			of = append(of, idempotency.PrefixFor(namespace, id))
		}
	}
	return of
}

// showListed shows a record of a page, also one that cannot be read.
func showListed(store string, listed idempotency.Listed) Record {
	if listed.Unreadable != nil {
		return Record{Key: listed.Key.String(), Store: store, State: StateUnreadable, Unreadable: listed.Unreadable.Error()}
	}
	return showRecord(store, listed.Key, listed.Record, listed.Now)
}
