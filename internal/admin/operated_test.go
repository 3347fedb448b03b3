package admin

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/memory"
)

// operated is a memory store that an operator asks, by an engine of its own.
type operated struct {
	idempotency.Store
	name    string
	away    atomic.Bool
	damaged map[idempotency.Key]bool
	delay   time.Duration // of a list
}

var errAway = errors.New("the store is away")

func (o *operated) Ready(ctx context.Context) error {
	if o.away.Load() {
		return errAway
	}
	return o.Store.Ready(ctx)
}

func (o *operated) Lookup(ctx context.Context, key idempotency.Key) (*idempotency.Record, time.Time, error) {
	if o.away.Load() {
		return nil, time.Time{}, errAway
	}
	if o.damaged[key] {
		return nil, time.Time{}, damage(key)
	}
	return o.Store.Lookup(ctx, key)
}

func (o *operated) Change(ctx context.Context, key idempotency.Key, c idempotency.Change) (*idempotency.Record, error) {
	if o.away.Load() {
		return nil, errAway
	}
	return o.Store.Change(ctx, key, c)
}

func (o *operated) Forget(ctx context.Context, key idempotency.Key, seen idempotency.Precondition) error {
	if o.away.Load() {
		return errAway
	}
	return o.Store.Forget(ctx, key, seen)
}

func damage(key idempotency.Key) error {
	return &idempotency.UnreadableError{Where: "record " + key.String(), Err: errors.New("it is damaged")}
}

func (o *operated) listed(page []idempotency.Listed, next string, err error) ([]idempotency.Listed, string, error) {
	time.Sleep(o.delay)
	if o.away.Load() {
		return nil, "", errAway
	}
	for i, listed := range page {
		if o.damaged[listed.Key] {
			page[i] = idempotency.Listed{Key: listed.Key, Unreadable: damage(listed.Key)}
		}
	}
	return page, next, err
}

func (o *operated) List(ctx context.Context, cursor string, limit int) ([]idempotency.Listed, string, error) {
	return o.listed(o.Store.List(ctx, cursor, limit))
}

func (o *operated) Find(ctx context.Context, of []idempotency.KeyPrefix, cursor string, limit int) ([]idempotency.Listed, string, error) {
	return o.listed(o.Store.Find(ctx, of, cursor, limit))
}

// opened is such a store as the API gets it.
type opened struct {
	*engine.Engine
	name       string
	namespaces []string
	unused     bool
	users      int
}

func (o *opened) Key() string          { return o.name }
func (o *opened) Name() string         { return "store " + o.name }
func (o *opened) Namespaces() []string { return o.namespaces }
func (o *opened) InUse() bool          { return !o.unused }
func (o *opened) Leave()               { o.users-- }

// open are the stores that a test has opened.
var open []*opened

// enterAll returns them as the API gets them.
func enterAll() (all []Store) {
	for _, o := range open {
		o.users++
		all = append(all, o)
	}
	return all
}

// operate opens a store of this name, whose keys are in these namespaces, until the test
// ends.
func operate(t *testing.T, name string, namespaces ...string) *operated {
	t.Helper()
	o := &operated{Store: memory.New(64 << 20), name: t.Name() + " " + name, damaged: make(map[idempotency.Key]bool)}
	of := &opened{
		Engine: engine.New(o, engine.Options{Timeout: time.Minute, Logger: zap.NewNop(), NewToken: rand.Text}), name: o.name, namespaces: namespaces,
	}
	open = append(open, of)
	t.Cleanup(func() {
		open = slices.DeleteFunc(open, func(other *opened) bool { return other == of })
		if of.users != 0 {
			t.Errorf("%s was entered %d times more than it was left", of.name, of.users)
		}
		if err := of.Close(); err != nil {
			t.Error(err)
		}
	})
	return o
}

// claimed is what was claimed of a key, and how its run ended: "" for not at all.
type claimed struct {
	namespace, provider, id, route, path string
	state                                idempotency.State
	lease                                time.Duration
	in                                   string // the end of its execution ID
	json                                 string // its response, if that is JSON
	part                                 string // the second one of its ID
	reason                               string // why it left nothing
}

func (o *operated) put(t *testing.T, c claimed) idempotency.Key {
	t.Helper()
	if c.namespace == "" {
		c.namespace = "default"
	}
	if c.lease == 0 {
		c.lease = time.Hour
	}
	var parts []string
	if c.part != "" {
		parts = []string{c.part}
	}
	key := idempotency.Identity{Namespace: c.namespace, Scope: []string{c.route}, Prefix: c.provider, ID: c.id, Tuple: c.part}.Key()
	got, err := o.Claim(t.Context(), idempotency.Claim{
		Key: key, Token: "secret-token", ExecutionID: "execution of " + c.id + c.route + c.in,
		Origin: idempotency.Origin{Provider: c.provider, DeliveryID: c.id, Parts: parts, Path: c.path},
		Terms:  idempotency.Terms{Lease: c.lease, Retention: time.Hour},
	})
	if err != nil || got.Verdict != idempotency.Proceed {
		t.Fatalf("claim of %+v: %v, %v", c, got.Verdict, err)
	}
	if c.state != "" {
		settlement := idempotency.Settlement{State: c.state, Counted: true, Retention: time.Hour, Reason: c.reason}
		if c.state == idempotency.Complete {
			settlement.Response = &idempotency.Response{Status: 201, Body: []byte("kept")}
			if c.json != "" {
				settlement.Response.Header = map[string][]string{"Content-Type": {"application/json"}}
				settlement.Response.Body = []byte(c.json)
			}
		}
		if err := o.Settle(t.Context(), key, got.Record, settlement); err != nil {
			t.Fatal(err)
		}
	}
	return key
}

// asked is the answer of the admin API.
type asked struct {
	status  int
	kind    string
	allow   []string // as it stands in the header; nil without one
	text    string
	Keys    []Record    `json:"keys"`
	Next    string      `json:"next"`
	Missing []string    `json:"missing"`
	Detail  string      `json:"detail"`
	Code    string      `json:"code"`
	Status  int         `json:"status"`
	Stores  []Readiness `json:"stores"`
	Unasked []Readiness `json:"unasked"`

	Incomplete bool `json:"incomplete"`
	Seen       int  `json:"seen"`

	Outcomes []Outcome `json:"outcomes"`
}

func (a asked) ids() []string {
	ids := make([]string, 0, len(a.Keys))
	for _, one := range a.Keys {
		ids = append(ids, one.DeliveryID)
	}
	slices.Sort(ids)
	return ids
}

func askAdmin(t *testing.T, method, target, body string) asked {
	t.Helper()
	mux := http.NewServeMux()
	api := &API{Open: enterAll, ParseDuration: caddy.ParseDuration}
	for _, route := range api.Routes() {
		mux.HandleFunc(route.Pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := route.Serve(w, r); err != nil {
				t.Errorf("%s %s: %v is not answered as a problem", method, target, err)
			}
		})
	}
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(method, target, strings.NewReader(body)))
	a := asked{status: w.Code, kind: w.Header().Get("Content-Type"), allow: w.Header()["Allow"], text: w.Body.String()}
	if w.Code == http.StatusNoContent {
		if within := w.Header().Get(CopiesHeader); within != "5s" {
			t.Errorf("%s %s says that copies are gone within %q", method, target, within)
		}
	} else {
		if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
			t.Fatalf("%s %s: %v in %q", method, target, err, a.text)
		}
	}
	if strings.Contains(a.text, "secret-token") {
		t.Errorf("%s %s shows the owner's token", method, target)
	}
	return a
}

func wantAsked(t *testing.T, method, target, body string, status int) asked {
	t.Helper()
	a := askAdmin(t, method, target, body)
	if a.status != status {
		t.Fatalf("%s %s %s: got %d %s, want %d", method, target, body, a.status, a.text, status)
	}
	return a
}
