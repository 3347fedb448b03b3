// Package admin is the HTTP API by which operators see and change keys in the open stores. It does
// not depend on Caddy, which serves it at its admin address.
package admin

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// API serves operators' requests about keys. docs/admin.md describes them.
type API struct {
	// Open returns the stores that are open now, in a stable order. The API leaves each
	// after use.
	Open func() []Store
	// ParseDuration parses a duration of the configuration, such as 90s or 7d.
	ParseDuration func(text string) (time.Duration, error)
	// CheckProvider returns an error that names the known providers if the process does not know this one.
	// Keys of an earlier configuration may have others.
	CheckProvider func(name string) error
	// MaxRun returns the longest timeout of a handler.
	MaxRun func() time.Duration
}

// Store is an open store with its engine.
type Store interface {
	// Key identifies the store in the process. It contains no secret.
	Key() string
	// Name describes the store to people.
	Name() string
	// Namespaces returns the namespaces of all configurations that use or have used the store. They
	// determine the prefixes of the keys of a delivery ID.
	Namespaces() []string
	// InUse reports whether a configuration uses the store. Otherwise no request uses it, and it is open
	// only for runs of an earlier configuration.
	InUse() bool
	// Leave ends the use of the store.
	Leave()

	// The methods of [engine.Engine] for operators.
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

// enter returns the open stores. None is an error, because it is then unknown which keys exist.
func (a *API) enter() ([]Store, error) {
	open := a.Open()
	if len(open) == 0 {
		return nil, errNoStore()
	}
	return open, nil
}

// LeaveAll ends a use of each of the stores.
func LeaveAll(open []Store) {
	for _, store := range open {
		store.Leave()
	}
}

// The paths of the admin API.
const (
	// ListPath lists keys.
	ListPath = "/dedup/keys"
	// KeysPath is the prefix of the path of a key.
	KeysPath = ListPath + "/"
	// LookupPath looks up the records of many delivery IDs.
	LookupPath = "/dedup/lookup"
	// ReadyPath reports whether the stores are ready.
	ReadyPath = "/dedup/ready"
	anyPath   = "/dedup/"
)

// CopiesHeader is the time after a release, a completion or a DELETE within which other replicas drop
// their local copies of the response: a duration such as 5s.
const CopiesHeader = "Dedup-Copies-Gone-Within"

// Route is a path of the API, as a pattern of [http.ServeMux], and its handler. The handler returns
// only errors of writing the response: it writes all others as problems.
type Route struct {
	Pattern string
	Serve   func(http.ResponseWriter, *http.Request) error
}

// Routes returns all paths of the API.
func (a *API) Routes() []Route {
	return []Route{
		{ListPath, withProblems(a.serveList)},
		{KeysPath, withProblems(a.serveKey)},
		{LookupPath, withProblems(a.serveLookup)},
		{ReadyPath, withProblems(a.serveReady)},
		{anyPath, withProblems(a.serveUnknown)},
	}
}

// serveUnknown answers a request to an unknown path.
func (*API) serveUnknown(_ http.ResponseWriter, r *http.Request) error {
	return &Problem{
		Title: "Unknown path", Status: http.StatusNotFound,
		Detail: fmt.Sprintf("%[1]s does not exist; the paths are %[2]s, %[3]s<key>, %[3]s<key>/release, %[3]s<key>/complete, %[4]s and %[5]s", r.URL.Path, ListPath, KeysPath, LookupPath, ReadyPath),
	}
}

// allowedOnKey has the methods of the paths of a key, by the part behind the key.
var allowedOnKey = map[string]string{"": "GET, DELETE", "release": "POST", "complete": "POST"}

// serveKey answers a request about one key.
func (a *API) serveKey(w http.ResponseWriter, r *http.Request) error {
	text, action, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, KeysPath), "/")
	key, err := idempotency.ParseKey(text)
	if err != nil {
		return problemOf(http.StatusBadRequest, err)
	}
	switch r.Method + " " + action {
	case "GET ":
		return a.show(w, r, key)
	case "POST release":
		return a.onKey(w, r, key, Store.Release)
	case "POST complete":
		return a.complete(w, r, key)
	case "DELETE ":
		return a.onKey(w, r, key, Store.Forget)
	}
	allowed, known := allowedOnKey[action]
	if !known {
		return a.serveUnknown(w, r)
	}
	return wrongMethod(w, r, allowed, "GET or DELETE "+KeysPath+"<key>, or POST "+KeysPath+"<key>/release or /complete")
}

// show answers with the record of a key, and its records in other stores.
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
	return answerJSON(w, all[0])
}
