package caddymodule

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Operators see the stores of the configurations that run, with their keys.
func TestAdminAPISeesTheOpenStores(t *testing.T) {
	address, _ := startUpstream(t, answers(201, "made"))
	s := serve(t, "dedup {\nmode api\nkey header Idempotency-Key submits\n}", "reverse_proxy "+address)
	s.mustPost("operated", "")
	mux := http.NewServeMux()
	for _, route := range new(AdminAPI).Routes() {
		mux.HandleFunc(route.Pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := route.Handler.ServeHTTP(w, r); err != nil {
				t.Error(err)
			}
		})
	}
	for _, c := range []struct {
		target string
		status int
		want   string
	}{
		{"/dedup/ready", 200, `"ready":true`},
		{"/dedup/keys?delivery_id=operated&newer_than=1d", 200, `"status":201`},
		{"/dedup/keys?provider=submits&state=held", 200, `"keys":[]`},
		{"/dedup/keys?provider=github", 200, `"keys":[]`},
		{"/dedup/keys?provider=githb", 400, `did you mean github?`},
		{"/dedup/keys?provider=submit", 400, `did you mean submits?`},
		{"/dedup/keys?provider=orders&order=store", 400, `is not a provider; accepted are the names of`},
	} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, c.target, nil))
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s: got %d %s, want %d and %s in it", c.target, w.Code, w.Body.String(), c.status, c.want)
		}
	}
}
