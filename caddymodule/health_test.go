package caddymodule

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

func TestHealthOfASite(t *testing.T) {
	s := serve(t, "dedup_health /live live", "dedup_health /ready", "dedup_health /also ready", "dedup", "respond done 201")
	for path, want := range map[string]string{"/live": `{"live":true}`, "/ready": `"ready":true`, "/also": `"store":"memory store`} {
		got, err := http.Get(s.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(got.Body)
		got.Body.Close()
		if got.StatusCode != 200 || !strings.Contains(string(body), want) {
			t.Errorf("%s is answered %d %s", path, got.StatusCode, body)
		}
	}
	if got := s.mustPost("k", "body"); got.status != 201 {
		t.Errorf("another path is answered %d", got.status)
	}
}

// A probe opens no store: one that no configuration uses is none of its business.
func TestProbeOpensNoStore(t *testing.T) {
	open, _ := probedStores()
	for _, store := range open {
		t.Errorf("%s is open", store.Name())
		store.Leave()
	}
}
