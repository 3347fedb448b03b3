// Package admin answers what operators ask about keys, over HTTP, from the stores that
// are open. It knows nothing of Caddy, at whose admin address it is served.
package admin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// API answers operators' requests about keys:
//
//	GET    /dedup/keys                records, by state, delivery ID and more, in pages
//	POST   /dedup/lookup              the records of many delivery IDs
//	GET    /dedup/keys/<key>          the key's record; with ?body=true its response, too
//	POST   /dedup/keys/<key>/release  frees a held, complete or exhausted key, and keeps its history
//	DELETE /dedup/keys/<key>          forgets the key
//	GET    /dedup/ready               whether the stores answer
type API struct {
	// Open returns the stores that are open now, in a stable order. The API leaves each
	// when it has answered.
	Open func() []Store
	// ParseDuration reads a duration as the configuration has them, such as 90s or 7d.
	ParseDuration func(text string) (time.Duration, error)
	// User names the user who asks, "" if nobody knows; nil for that.
	User func(r *http.Request) string
}

// Store is a store that is open, as operators ask for it.
type Store interface {
	// Key tells the stores of a process apart. It has no secret in it.
	Key() string
	// Name says to people which store it is.
	Name() string
	// Namespaces are those of the configurations that use the store: what the keys of a
	// delivery ID begin with depends on them.
	Namespaces() []string
	// Leave ends the use of the store.
	Leave()

	// What an engine does for an operator, as package engine says.
	Lookup(ctx context.Context, key idempotency.Key) (*idempotency.Record, time.Time, error)
	Response(ctx context.Context, key idempotency.Key, record *idempotency.Record) (*idempotency.Response, error)
	Free(ctx context.Context, key idempotency.Key, seen idempotency.Seen) error
	Forget(ctx context.Context, key idempotency.Key, seen idempotency.Seen) error
	List(ctx context.Context, cursor string, limit int) ([]idempotency.Listed, string, error)
	Find(ctx context.Context, of []idempotency.Beginning, cursor string, limit int) ([]idempotency.Listed, string, error)
}

// leaveAll ends a use of each of the stores.
func leaveAll(open []Store) {
	for _, store := range open {
		store.Leave()
	}
}

// The paths of the admin API.
const (
	// ListPath has the list of keys.
	ListPath = "/dedup/keys"
	// KeysPath is what stands before a key.
	KeysPath   = ListPath + "/"
	lookupPath = "/dedup/lookup"
	// ReadyPath says whether the stores answer.
	ReadyPath = "/dedup/ready"
)

// CopiesHeader says in an answer to a release or a DELETE within which time other replicas
// answer no more from their local copies: a duration such as 5s.
const CopiesHeader = "Dedup-Copies-Gone-Within"

// Route is a path of the API, as a pattern of [http.ServeMux], and who answers it. An
// error is one of writing the answer: mistakes and failures are answered as problems.
type Route struct {
	Pattern string
	Serve   func(http.ResponseWriter, *http.Request) error
}

// Routes returns all paths of the API.
func (a *API) Routes() []Route {
	return []Route{
		{ListPath, explained(a.serveList)},
		{KeysPath, explained(a.serveKey)},
		{lookupPath, explained(a.serveLookup)},
		{ReadyPath, explained(a.serveReady)},
	}
}

// allowedOnKey are the methods under a key, by what follows it. Other paths take none.
var allowedOnKey = map[string]string{"": "GET, DELETE", "release": "POST"}

// serveKey answers a request about one key.
func (a *API) serveKey(w http.ResponseWriter, r *http.Request) error {
	text, action, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, KeysPath), "/")
	key, err := idempotency.ParseKey(text)
	if err != nil {
		return problemOf(http.StatusBadRequest, err)
	}
	switch {
	case r.Method == http.MethodGet && action == "":
		return a.show(w, r, key)
	case r.Method == http.MethodPost && action == "release":
		return a.onKey(w, r, key, Store.Free)
	case r.Method == http.MethodDelete && action == "":
		return a.onKey(w, r, key, Store.Forget)
	default:
		return wrongMethod(w, r, allowedOnKey[action], "GET or DELETE "+KeysPath+"<key>, or POST "+KeysPath+"<key>/release")
	}
}

// show answers with the record that the key has in one of the stores.
func (a *API) show(w http.ResponseWriter, r *http.Request, key idempotency.Key) error {
	withBody, err := wantsBody(r)
	if err != nil {
		return err
	}
	return a.inStores(key, func(store Store) error {
		record, now, err := store.Lookup(r.Context(), key)
		if unreadable, ok := errors.AsType[*idempotency.UnreadableError](err); ok {
			return answerJSON(w, http.StatusOK, showListed(store.Name(), idempotency.Listed{Key: key, Unreadable: unreadable}))
		}
		if err != nil {
			return err
		}
		if record == nil {
			return idempotency.ErrGone
		}
		shown := showRecord(store.Name(), key, record, now)
		if withBody {
			response, err := store.Response(r.Context(), key, record)
			if err != nil {
				return err
			}
			shown.Response = showResponse(response)
		}
		return answerJSON(w, http.StatusOK, shown)
	})
}

// onKey does something about a key in the store that has it.
func (a *API) onKey(w http.ResponseWriter, r *http.Request, key idempotency.Key, do func(Store, context.Context, idempotency.Key, idempotency.Seen) error) error {
	seen, err := seenIn(r)
	if err != nil {
		return err
	}
	ctx := engine.ByOperator(r.Context(), a.operator(r))
	return a.inStores(key, func(store Store) error {
		if err := do(store, ctx, key, seen); err != nil {
			return err
		}
		w.Header().Set(CopiesHeader, engine.CopyBound.String())
		w.WriteHeader(http.StatusNoContent)
		return nil
	})
}

// operator says who asks.
func (a *API) operator(r *http.Request) engine.Operator {
	who := engine.Operator{Remote: r.RemoteAddr}
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && local.Network() == "unix" {
		who.Remote = "unix socket " + local.String() // the other end of a socket has no address
	}
	if a.User != nil {
		who.User = a.User(r)
	}
	if who.User == "" && r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		who.User = r.TLS.PeerCertificates[0].Subject.String()
	}
	return who
}

// inStores asks the stores that are open, one after the other, until one of them
// has the key. One that cannot be asked counts only if no other has it.
func (a *API) inStores(key idempotency.Key, do func(Store) error) error {
	open := a.Open()
	defer leaveAll(open)
	var unasked error
	for _, store := range open {
		err := do(store)
		var unreadable *idempotency.UnreadableError
		_, changed := errors.AsType[idempotency.ChangedError](err)
		switch {
		case changed:
			return changedProblem(err)
		case errors.Is(err, idempotency.ErrGone):
			continue
		case errors.Is(err, idempotency.ErrInFlight):
			return problemOf(http.StatusConflict, err)
		case errors.As(err, &unreadable):
			return problemOf(http.StatusInternalServerError, err)
		case err != nil:
			unasked = errors.Join(unasked, fmt.Errorf("%s: %w", store.Name(), err))
			continue
		}
		return nil
	}
	if unasked != nil {
		return problemOf(http.StatusServiceUnavailable, unasked)
	}
	return problemOf(http.StatusNotFound, fmt.Errorf("no store has a record of the key %s", key))
}
