package admin

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Page is a page of records.
type Page struct {
	Keys []Record `json:"keys"`
	Next string   `json:"next,omitempty"`
	// Incomplete reports whether records were left unread: these are the newest of the others.
	// Seen is the number of records read; in the order of the stores, for this page.
	Incomplete bool `json:"incomplete,omitempty"`
	Seen       int  `json:"seen,omitempty"`
	// Unavailable are stores that failed, while others answered or no configuration uses them any more.
	Unavailable []Readiness `json:"unavailable,omitempty"`
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
	order, id := query.Get(ParamOrder), query.Get(ParamDeliveryID)
	if order != "" && order != OrderStore {
		return wrongRequest("order=%q is not accepted; it is %s, or left out for the newest first", order, OrderStore)
	}
	from, err := parseListCursor(query.Get(ParamCursor))
	if err != nil {
		return err
	}
	if from.inStoreOrder() && id != "" {
		return wrongRequest("cursor=%q belongs to a list without %s; start again without a cursor", query.Get(ParamCursor), ParamDeliveryID)
	}
	var page Page
	if from.inStoreOrder() || from.Store == "" && order == OrderStore && id == "" {
		page, err = a.inOrderOfStores(r.Context(), &listing{keyFilter: filter, limit: limit}, from)
	} else {
		page, err = a.newest(r.Context(), filter, id, limit, from)
	}
	if err != nil {
		return err
	}
	// An unknown provider is a mistake only if all keys were seen and none has it.
	if whole := from == (listCursor{}) && page.Next == "" && !page.Incomplete && len(page.Unavailable) == 0; whole && len(page.Keys) == 0 && filter.provider != "" {
		if err := a.CheckProvider(filter.provider); err != nil {
			return wrongRequest("%s: no key matches, and %w", ParamProvider, err)
		}
	}
	return answerJSON(w, page)
}

// newest returns a page with the newest records of all stores. It leaves them before the page is
// written, because the client may read slowly.
func (a *API) newest(ctx context.Context, filter keyFilter, id string, limit int, from listCursor) (Page, error) {
	open, err := a.enter()
	if err != nil {
		return Page{}, err
	}
	defer LeaveAll(open)
	s := Search{Wants: filter.wants, Max: limit, After: from.after(), Timeout: WalkTimeout}
	if id != "" {
		s.IDs, s.Timeout = []string{id}, FindTimeout
	}
	s.Run(ctx, open)
	found := s.Result.Found
	if len(found) == 0 && s.unavailable {
		return Page{}, unavailableProblem(s.Failed)
	}
	page := Page{Keys: showAll(found), Unavailable: s.Failed}
	if s.Incomplete() {
		page.Incomplete, page.Seen = true, s.Read
	}
	if s.Result.Count > len(found) {
		page.Next = CursorAfter(found[len(found)-1])
	}
	return page, nil
}

// listCursor is where a page starts. In the order of the stores that is the start of a page of a store,
// never a place within one, because the store may return another page the next time. Otherwise it is
// after a record.
type listCursor struct {
	Store string `json:"s"`
	At    string `json:"c,omitempty"`

	Key        string `json:"k,omitempty"`
	Claimed    int64  `json:"t,omitempty"` // in milliseconds
	Unreadable bool   `json:"u,omitempty"`
}

// inStoreOrder reports whether the cursor belongs to a list in the order of the stores.
func (c listCursor) inStoreOrder() bool { return c.Store != "" && c.Key == "" }

// after returns the record after which a page starts, nil for none.
func (c listCursor) after() *Found {
	key, err := idempotency.ParseKey(c.Key)
	if err != nil {
		return nil
	}
	f := &Found{in: c.Store, Listed: idempotency.Listed{Key: key, Record: new(idempotency.Record)}}
	if c.Unreadable {
		f.State = StateUnreadable
	} else {
		f.Record.Claimed = time.UnixMilli(c.Claimed)
	}
	return f
}

// CursorAfter returns the cursor of the page after a record, the newest first.
func CursorAfter(f *Found) string {
	c := listCursor{Store: f.in, Key: f.Key.String(), Unreadable: f.State == StateUnreadable}
	if !c.Unreadable {
		c.Claimed = f.Record.Claimed.UnixMilli()
	}
	return c.String()
}

// ParseAfter returns the record after which the page of a cursor starts, nil if there is no cursor. Only
// the fields that order records are set.
func ParseAfter(cursor string) (*Found, error) {
	c, err := parseListCursor(cursor)
	if err == nil && c.inStoreOrder() {
		err = wrongCursor(cursor)
	}
	return c.after(), err
}

func (c listCursor) String() string {
	text, err := json.Marshal(c)
	if err != nil {
		panic("admin: a cursor that JSON cannot hold: " + err.Error()) // impossible by its type
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

func parseListCursor(text string) (c listCursor, err error) {
	if text == "" {
		return listCursor{}, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	if err != nil || c.Store == "" || c.Key != "" && c.after() == nil {
		return listCursor{}, wrongCursor(text)
	}
	return c, nil
}

func wrongCursor(text string) error {
	return wrongRequest("cursor=%q is not accepted; it is the `next` of the page before; start again without a cursor", text)
}

// listTimeout is how long one request reads records in the order of the stores. Then it answers with the
// records found so far and a cursor.
const listTimeout = 3 * time.Second

// listing reads the stores one after the other, each in its own order.
type listing struct {
	keyFilter
	limit int

	found []*Found
	seen  int // records that were read
	failures
}

// inOrderOfStores returns a page that starts at a cursor.
func (a *API) inOrderOfStores(ctx context.Context, l *listing, from listCursor) (Page, error) {
	open, err := a.enter()
	if err != nil {
		return Page{}, err
	}
	defer LeaveAll(open)
	i, at := 0, from.At
	if from.Store != "" {
		i = slices.IndexFunc(open, func(o Store) bool { return cursorName(o) == from.Store })
		if i < 0 {
			return Page{}, wrongRequest("cursor=%q belongs to a store that is not open any more; start again without a cursor", from)
		}
	}
	for until := time.Now().Add(listTimeout); i < len(open) && len(l.found) < l.limit && time.Now().Before(until); {
		next, err := l.step(ctx, open[i], at)
		if errors.Is(err, idempotency.ErrCursor) {
			return Page{}, wrongCursor(from.String())
		}
		if err != nil {
			l.fail(open[i], err)
			next = ""
		}
		if at = next; at == "" {
			i++
		}
	}
	page := Page{Keys: showAll(l.found), Seen: l.seen, Unavailable: l.Failed}
	switch {
	case i < len(open):
		page.Next = listCursor{Store: cursorName(open[i]), At: at}.String()
	case len(l.found) == 0 && l.unavailable:
		return Page{}, unavailableProblem(l.Failed)
	}
	return page, nil
}

// step adds the wanted records of one page of a store. It returns the store's next cursor, "" at the end.
// A store may return more records than its limit, and then so does the list.
func (l *listing) step(ctx context.Context, store Store, at string) (string, error) {
	name, room := cursorName(store), l.limit-len(l.found)
	for batch := walkBatch; ; {
		page, next, err := store.List(ctx, at, batch)
		if err != nil {
			return "", err
		}
		var wanted []*Found
		fits := 0 // the number of records up to the last wanted one that fits
		for i, listed := range page {
			if f := foundIn(store, name, listed); l.wants(f) {
				if wanted = append(wanted, f); len(wanted) == room {
					fits = i + 1
				}
			}
		}
		switch {
		case len(wanted) > room && fits < batch:
			batch = fits
		case len(wanted) > room && batch > room: // a store may return others first
			batch = room
		default:
			l.found = append(l.found, wanted...)
			l.seen += len(page)
			return next, nil
		}
	}
}
