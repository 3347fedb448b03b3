package caddymodule

import (
	"strings"
	"testing"
)

func TestHealthOfASite(t *testing.T) {
	s := serve(t, "dedup_health /live live", "dedup_health /ready", "dedup_health /also ready", "dedup", "respond done 201")
	for path, want := range map[string]string{"/live": `{"live":true}`, "/ready": `"ready":true`, "/also": `"store":"memory store`} {
		if got := s.must(with("", "GET", path)); got.status != 200 || !strings.Contains(got.body, want) {
			t.Errorf("%s is answered %+v", path, got)
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
