package admin

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-dedup/caddy-dedup/internal/admin/admintest"
)

// maxRun is the longest timeout of a handler.
const maxRun = 5 * time.Minute

// open are the stores that a test has opened.
var open []*admintest.Store

// enterAll returns them as the API gets them.
func enterAll() (all []Store) {
	for _, o := range open {
		all = append(all, o.Enter())
	}
	return all
}

// operate opens a store of this name, whose keys are in these namespaces, until the test
// ends.
func operate(t *testing.T, name string, namespaces ...string) *admintest.Store {
	t.Helper()
	o := admintest.Open(t, t.Name()+" "+name, namespaces...)
	open = append(open, o)
	t.Cleanup(func() { open = slices.DeleteFunc(open, func(other *admintest.Store) bool { return other == o }) })
	return o
}

// asked is the answer of the admin API.
type asked struct {
	status      int
	kind        string
	allow       []string // as it stands in the header; nil without one
	text        string
	Keys        []Record    `json:"keys"`
	Next        string      `json:"next"`
	Missing     []string    `json:"missing"`
	Detail      string      `json:"detail"`
	Code        string      `json:"code"`
	Status      int         `json:"status"`
	Stores      []Readiness `json:"stores"`
	Unused      []string    `json:"unused"`
	Unavailable []Readiness `json:"unavailable"`

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
	api := &API{
		Open: enterAll, ParseDuration: caddy.ParseDuration, MaxRun: func() time.Duration { return maxRun },
		CheckProvider: func(string) error { return nil },
	}
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
