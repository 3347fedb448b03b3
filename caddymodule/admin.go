package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

func init() {
	caddy.RegisterModule(new(AdminAPI))
}

// AdminAPI answers operators' requests about keys at Caddy's admin address:
//
//	GET    /dedup/keys                records, by state, delivery ID and more, in pages
//	POST   /dedup/lookup              the records of many delivery IDs
//	GET    /dedup/keys/<key>          the key's record; with ?body=true its response, too
//	POST   /dedup/keys/<key>/release  frees a held, complete or exhausted key, and keeps its history
//	DELETE /dedup/keys/<key>          forgets the key
//	GET    /dedup/ready               whether the stores answer
type AdminAPI struct{}

// CaddyModule returns the Caddy module information.
func (*AdminAPI) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "admin.api.dedup",
		New: func() caddy.Module { return new(AdminAPI) },
	}
}

// The paths of the admin API.
const (
	listPath   = "/dedup/keys"
	keysPath   = listPath + "/"
	lookupPath = "/dedup/lookup"
	readyPath  = "/dedup/ready"
)

// Routes implements caddy.AdminRouter.
func (a *AdminAPI) Routes() []caddy.AdminRoute {
	return []caddy.AdminRoute{
		{Pattern: listPath, Handler: explained(a.serveList)},
		{Pattern: keysPath, Handler: explained(a.serveKey)},
		{Pattern: lookupPath, Handler: explained(a.serveLookup)},
		{Pattern: readyPath, Handler: explained(a.serveReady)},
	}
}

// serveKey answers a request about one key.
func (a *AdminAPI) serveKey(w http.ResponseWriter, r *http.Request) error {
	text, action, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, keysPath), "/")
	key, err := idempotency.ParseKey(text)
	if err != nil {
		return adminError(http.StatusBadRequest, err)
	}
	switch {
	case r.Method == http.MethodGet && action == "":
		return a.show(w, r, key)
	case r.Method == http.MethodPost && action == "release":
		return onKey(w, r, key, (*engine.Engine).Free)
	case r.Method == http.MethodDelete && action == "":
		return onKey(w, r, key, (*engine.Engine).Forget)
	default:
		return wrongMethod(r, "GET or DELETE "+keysPath+"<key>, or POST "+keysPath+"<key>/release")
	}
}

// show answers with the record that the key has in one of the stores.
func (a *AdminAPI) show(w http.ResponseWriter, r *http.Request, key idempotency.Key) error {
	withBody, err := wantsBody(r)
	if err != nil {
		return err
	}
	return inStores(key, func(store string, engine *engine.Engine) error {
		record, now, err := engine.Lookup(r.Context(), key)
		if unreadable, ok := errors.AsType[*idempotency.UnreadableError](err); ok {
			return answerJSON(w, http.StatusOK, showListed(store, idempotency.Listed{Key: key, Unreadable: unreadable}))
		}
		if err != nil {
			return err
		}
		if record == nil {
			return idempotency.ErrGone
		}
		shown := showRecord(store, key, record, now)
		if withBody {
			response, err := engine.Response(r.Context(), key, record)
			if err != nil {
				return err
			}
			shown.Response = showResponse(response)
		}
		return answerJSON(w, http.StatusOK, shown)
	})
}

// onKey does something about a key in the store that has it.
func onKey(w http.ResponseWriter, r *http.Request, key idempotency.Key, do func(*engine.Engine, context.Context, idempotency.Key) error) error {
	if _, err := queryOf(r); err != nil {
		return err
	}
	return inStores(key, func(_ string, keys *engine.Engine) error {
		if err := do(keys, r.Context(), key); err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	})
}

// inStores asks the stores that are open, one after the other, until one of them
// has the key. One that cannot be asked counts only if no other has it.
func inStores(key idempotency.Key, do func(store string, keys *engine.Engine) error) error {
	open := stores.all()
	defer leaveAll(open)
	var unasked error
	for _, store := range open {
		err := do(store.name, store.Engine)
		var unreadable *idempotency.UnreadableError
		switch {
		case errors.Is(err, idempotency.ErrGone):
			continue
		case errors.Is(err, idempotency.ErrInFlight):
			return adminError(http.StatusConflict, err)
		case errors.As(err, &unreadable):
			return adminError(http.StatusInternalServerError, err)
		case err != nil:
			unasked = errors.Join(unasked, fmt.Errorf("%s: %w", store.name, err))
			continue
		}
		return nil
	}
	if unasked != nil {
		return adminError(http.StatusServiceUnavailable, unasked)
	}
	return adminError(http.StatusNotFound, fmt.Errorf("no store has a record of the key %s", key))
}

var _ caddy.AdminRouter = (*AdminAPI)(nil)

// shownRecord is a record as operators see it. The owner's token, which is a
// secret, is not part of it.
type shownRecord struct {
	Key         string         `json:"key"`
	Store       string         `json:"store"`
	State       string         `json:"state"`
	Provider    string         `json:"provider,omitempty"`
	DeliveryID  string         `json:"delivery_id,omitempty"`
	ExecutionID string         `json:"execution_id,omitempty"`
	ParentID    string         `json:"parent_id,omitempty"`
	Attempt     int            `json:"attempt,omitempty"`
	Status      int            `json:"status,omitempty"`
	Claimed     time.Time      `json:"claimed,omitzero"`
	Ended       time.Time      `json:"ended,omitzero"`
	LeaseUntil  time.Time      `json:"lease_until,omitzero"`
	Expires     time.Time      `json:"expires,omitzero"`
	Response    *shownResponse `json:"response,omitempty"`
	// Unreadable says why the record cannot be read; then little is known of it.
	Unreadable string `json:"unreadable,omitempty"`
}

// shownResponse is a kept response, for an operator who asked for it.
type shownResponse struct {
	Status  int                 `json:"status"`
	Header  map[string][]string `json:"header,omitempty"`
	Omitted bool                `json:"omitted,omitempty"`
	// Body is the body if it is UTF-8; else Base64 is.
	Body   string `json:"body,omitempty"`
	Base64 []byte `json:"base64,omitempty"`
}

// stateLapsed is what operators see of a claim that is stored as in flight, and whose
// lease was not renewed: the next request takes it over.
const stateLapsed = "lapsed"

// shownState is the state of a record at the time of its store's clock. A claim that
// has lapsed is shown as what it means: held, or free to be taken over.
func shownState(r *idempotency.Record, now time.Time) string {
	switch {
	case r.Lapsed(now) && r.Hold:
		return string(idempotency.Held)
	case r.Lapsed(now):
		return stateLapsed
	default:
		return string(r.State)
	}
}

// showRecord shows a record at the time of its store's clock.
func showRecord(store string, key idempotency.Key, r *idempotency.Record, now time.Time) shownRecord {
	return shownRecord{
		Key: key.String(), Store: store, State: shownState(r, now),
		Provider: r.Provider, DeliveryID: r.DeliveryID,
		ExecutionID: r.ExecutionID, ParentID: r.ParentID,
		Attempt: r.Attempt, Status: r.Status,
		Claimed: r.Claimed, Ended: r.Ended, LeaseUntil: r.LeaseUntil, Expires: r.Expires,
	}
}

func showResponse(r *idempotency.Response) *shownResponse {
	if r == nil {
		return nil
	}
	shown := &shownResponse{Status: r.Status, Header: r.Header, Omitted: r.Omitted}
	if utf8.Valid(r.Body) {
		shown.Body = string(r.Body)
	} else {
		shown.Base64 = r.Body
	}
	return shown
}
