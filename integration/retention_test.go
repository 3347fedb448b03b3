package integration

import (
	"fmt"
	"net/http"
	"testing"
)

func TestKeptResponseIsForgottenAfterItsRetention(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store string) {
		up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
			if asked := r.URL.Query().Get("retention"); asked != "" {
				w.Header().Set("Dedup-Retention", asked)
			}
			answers201(w, r, n)
		})
		p := start(t, conf{store: store, site: lines(
			"handle /short {", dedupBlock("retention 1s", "lease 1500ms"), proxyTo(up), "}",
			"handle {", dedupBlock("lease 1500ms"), proxyTo(up), "}")})

		lengthened := p.post(t, "/short?retention=3600", "lengthened", "")
		short := p.post(t, "/short", "short", "")
		shortened := p.post(t, "/?retention=1", "shortened", "")
		for name, got := range map[string]reply{"lengthened": lengthened, "short": short, "shortened": shortened} {
			wantFresh(t, got, 201, "run 1 of "+name)
			if v, ok := got.Header["Dedup-Retention"]; ok {
				t.Errorf("%s: the client got Dedup-Retention %q", name, v)
			}
		}
		// Replays do not prolong it: otherwise this would never end.
		for key, path := range map[string]string{"short": "/short", "shortened": "/?retention=1"} {
			var got reply
			eventually(t, fmt.Sprintf("%q runs again", key), func() bool {
				got = p.post(t, path, key, "")
				return !got.replayed()
			})
			wantFresh(t, got, 201, "run 2 of "+key)
			wantAttempt(t, up, key, 2, "1")
		}
		wantReplay(t, p.post(t, "/short?retention=3600", "lengthened", ""), lengthened)
	})
}

func TestUpstreamReleasesAResponse(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		w.Header().Set("Dedup-Retention", "0")
		answers201(w, r, n)
	})
	p := start(t, conf{store: "store memory", site: lines("dedup", proxyTo(up))})
	for n := range 3 {
		got := p.post(t, "/", "k", "")
		wantFresh(t, got, 201, fmt.Sprintf("run %d of k", n+1))
		if v, ok := got.Header["Dedup-Retention"]; ok {
			t.Errorf("the client got Dedup-Retention %q", v)
		}
		wantAttempt(t, up, "k", n+1, fmt.Sprint(n+1))
	}
}

func TestUnparsableRetentionOfTheUpstreamIsIgnored(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		w.Header().Set("Dedup-Retention", n.Header.Get("X-Asked"))
		answers201(w, r, n)
	})
	p := start(t, conf{store: "store memory", site: lines("dedup", proxyTo(up))})
	for _, asked := range []string{"soon", "-1", "1.5", "1s", "99999999999999999999", ""} {
		first := p.post(t, "/", "k"+asked, "", header("X-Asked", asked))
		wantReplay(t, p.post(t, "/", "k"+asked, "", header("X-Asked", asked)), first)
		if v, ok := first.Header["Dedup-Retention"]; ok {
			t.Errorf("the client got Dedup-Retention %q", v)
		}
	}
}
