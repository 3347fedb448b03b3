package integration

import (
	"fmt"
	"net/http"
	"testing"
)

func TestDuplicateIsReplayedWithoutTheUpstream(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store string) {
		up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, r run) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Location", "/orders/7")
			w.Header().Add("Vary", "Origin")
			w.Header().Add("Vary", "Accept")
			w.Header().Set("Access-Control-Allow-Origin", "https://shop.test")
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, `{"run":%q}`, r.text())
		})
		p := start(t, conf{store: store, site: lines("dedup", proxyTo(up))})

		first := p.post(t, "/orders", "k", "{}")
		wantFresh(t, first, 201, `{"run":"run 1 of k"}`)
		if first.executionID() == "" {
			t.Error("the first answer names no execution")
		}
		second := p.post(t, "/orders", "k", "{}")
		wantReplay(t, second, first)
		for _, name := range []string{"Content-Type", "Location", "Vary", "Access-Control-Allow-Origin"} {
			if got, want := fmt.Sprint(second.Header[name]), fmt.Sprint(first.Header[name]); got != want {
				t.Errorf("the replay has %s %s, the first %s", name, got, want)
			}
		}
		wantReplay(t, p.post(t, "/orders", "k", "{}"), first)
		up.wantRuns(t, "k", 1)

		other := p.post(t, "/orders", "k2", "{}")
		wantFresh(t, other, 201, `{"run":"run 1 of k2"}`)
		if other.executionID() == first.executionID() {
			t.Error("two keys have one execution ID")
		}
	})
}
