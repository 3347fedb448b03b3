package caddymodule

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Operators see the stores of the configurations that run, with their keys.
func TestAdminAPISeesTheOpenStores(t *testing.T) {
	address, _ := upstream(t, answers(201, "made"))
	s := serve(t, "dedup", "reverse_proxy "+address)
	s.mustPost("operated", "")
	mux := http.NewServeMux()
	for _, route := range new(AdminAPI).Routes() {
		mux.HandleFunc(route.Pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := route.Handler.ServeHTTP(w, r); err != nil {
				t.Error(err)
			}
		})
	}
	for target, want := range map[string]string{
		"/dedup/ready": `"ready":true`,
		"/dedup/keys?delivery_id=operated&newer_than=1d": `"status":201`,
	} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, target, nil))
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: got %d %s, want %s in it", target, w.Code, w.Body.String(), want)
		}
	}
}
