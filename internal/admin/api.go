// Package admin answers what operators ask about keys, over HTTP, from the stores that
// are open. It knows nothing of Caddy, at whose admin address it is served.
package admin

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// API answers operators' requests about keys:
//
//	GET    /dedup/keys                records, by state, delivery ID and more, in pages
//	POST   /dedup/lookup              the records of many delivery IDs
//	GET    /dedup/keys/<key>          the key's record; with ?body=true its response, too
//	POST   /dedup/keys/<key>/release  releases a held, complete or exhausted key, and keeps its history
//	POST   /dedup/keys/<key>/complete completes a held, lapsed or released key with a response
//	DELETE /dedup/keys/<key>          forgets the key
//	GET    /dedup/ready               whether the stores answer
type API struct {
	// Open returns the stores that are open now, in a stable order. The API leaves each
	// when it has answered.
	Open func() []Store
	// ParseDuration reads a duration as the configuration has them, such as 90s or 7d.
	ParseDuration func(text string) (time.Duration, error)
	// CheckProvider returns an error for a provider that the process does not know, with those that
	// it knows; it may be nil. Keys of an earlier configuration may have others.
	CheckProvider func(name string) error
	// MaxRun returns the longest timeout of a handler; it may be nil.
	MaxRun func() time.Duration
}

// Store is a store that is open, as operators ask for it.
type Store interface {
	// Key tells the stores of a process apart. It has no secret in it.
	Key() string
	// Name says to people which store it is.
	Name() string
	// Namespaces are those of the configurations that use the store or have used it: what
	// the keys of a delivery ID begin with depends on them.
	Namespaces() []string
	// InUse reports whether a configuration uses the store. Else no request comes to it, and
	// it is open only for what an earlier configuration has begun.
	InUse() bool
	// Leave ends the use of the store.
	Leave()

	// What an engine does for an operator, as package engine says.
	Ready(ctx context.Context) error
	WritesRefused() string
	Lookup(ctx context.Context, key idempotency.Key) (*idempotency.Record, time.Time, error)
	Response(ctx context.Context, key idempotency.Key, record *idempotency.Record) (*idempotency.Response, error)
	Release(ctx context.Context, key idempotency.Key, seen idempotency.Precondition) error
	Complete(ctx context.Context, key idempotency.Key, response *idempotency.Response, seen idempotency.Precondition) error
	Forget(ctx context.Context, key idempotency.Key, seen idempotency.Precondition) error
	List(ctx context.Context, cursor string, limit int) ([]idempotency.Listed, string, error)
	Find(ctx context.Context, of []idempotency.KeyPrefix, cursor string, limit int) ([]idempotency.Listed, string, error)
}

// enter returns the stores that are open. It returns an error if there is none,
// because then it is unknown which keys there are.
func (a *API) enter() ([]Store, error) {
	open := a.Open()
	if len(open) == 0 {
		return nil, errNoStore()
	}
	return open, nil
}

func (a *API) maxRun() time.Duration {
	if a.MaxRun == nil {
		return 0
	}
	return a.MaxRun()
}

// LeaveAll ends a use of each of the stores.
func LeaveAll(open []Store) {
	for _, store := range open {
		store.Leave()
	}
}

// The paths of the admin API.
const (
	// ListPath has the list of keys.
	ListPath = "/dedup/keys"
	// KeysPath is what stands before a key.
	KeysPath = ListPath + "/"
	// LookupPath has the records of many delivery IDs.
	LookupPath = "/dedup/lookup"
	// ReadyPath says whether the stores answer.
	ReadyPath = "/dedup/ready"
	anyPath   = "/dedup/"
)

// CopiesHeader says in an answer to a release, a completion or a DELETE within which time other replicas
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
		{LookupPath, explained(a.serveLookup)},
		{ReadyPath, explained(a.serveReady)},
		{anyPath, explained(a.serveNothing)},
	}
}

// serveNothing answers a request to a path that there is not.
func (*API) serveNothing(_ http.ResponseWriter, r *http.Request) error {
	return &Problem{
		Title: "There is no such path", Status: http.StatusNotFound,
		Detail: fmt.Sprintf("%[1]s is not there; there are %[2]s, %[3]s<key>, %[3]s<key>/release, %[3]s<key>/complete, %[4]s and %[5]s", r.URL.Path, ListPath, KeysPath, LookupPath, ReadyPath),
	}
}

// allowedOnKey are the methods under a key, by what follows it.
var allowedOnKey = map[string]string{"": "GET, DELETE", "release": "POST", "complete": "POST"}

// serveKey answers a request about one key.
func (a *API) serveKey(w http.ResponseWriter, r *http.Request) error {
	text, action, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, KeysPath), "/")
	key, err := idempotency.ParseKey(text)
	if err != nil {
		return problemOf(http.StatusBadRequest, err)
	}
	if allowedOnKey[action] == "" {
		return a.serveNothing(w, r)
	}
	switch {
	case r.Method == http.MethodGet && action == "":
		return a.show(w, r, key)
	case r.Method == http.MethodPost && action == "release":
		return a.onKey(w, r, key, Store.Release)
	case r.Method == http.MethodPost && action == "complete":
		return a.complete(w, r, key)
	case r.Method == http.MethodDelete && action == "":
		return a.onKey(w, r, key, Store.Forget)
	default:
		return wrongMethod(w, r, allowedOnKey[action], "GET or DELETE "+KeysPath+"<key>, or POST "+KeysPath+"<key>/release or /complete")
	}
}

// show answers with the record of a key, and with those that it has in other stores.
func (a *API) show(w http.ResponseWriter, r *http.Request, key idempotency.Key) error {
	withBody, err := wantsBody(r)
	if err != nil {
		return err
	}
	open, err := a.enter()
	if err != nil {
		return err
	}
	defer LeaveAll(open)
	found, err := LookUp(r.Context(), open, key)
	if len(found) == 0 {
		return err
	}
	all := showAll(found)
	for i, f := range found {
		if withBody && f.Unreadable == nil {
			response, err := f.Store.Response(r.Context(), key, f.Record)
			if err != nil {
				return problemIn([]Outcome{{Store: f.Store.Name(), Error: err.Error(), err: err}}, key, idempotency.Precondition{})
			}
			all[i].Response = showResponse(response)
		}
	}
	all[0].Others = all[1:]
	return answerJSON(w, http.StatusOK, all[0])
}
