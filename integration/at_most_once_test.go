package integration

import (
	"net/http"
	"path"
	"testing"
)

// `on_unknown hold` with `release_on off` is strict at-most-once: whatever the first
// run's end, the upstream never sees the key again. Only a request that was
// never sent may be sent.
func TestStrictAtMostOnce(t *testing.T) {
	t.Parallel()
	ends := map[string]struct {
		answer answering
		// status and code are what a retry gets; no code is a replay.
		status int
		code   string
	}{
		"created":     {answers201, 201, ""},
		"refused":     {answersStatus(409), 409, ""},
		"failed":      {answersStatus(500), 500, ""},
		"unavailable": {answersStatus(503), 503, ""},
		"bad-gateway": {answersStatus(502), 409, "outcome_unknown"},
		"timeout":     {answersStatus(504), 409, "outcome_unknown"},
		"no-answer":   {noAnswer, 409, "outcome_unknown"},
		"cut-body":    {cutBody, 409, "outcome_unknown"},
		"cut-stream":  {cutStream, 409, "outcome_unknown"},
		"too-slow":    {untilGone, 409, "outcome_unknown"},
	}
	eachStore(t, func(t *testing.T, store string) {
		up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
			ends[path.Base(r.URL.Path)].answer(w, r, n)
		})
		p := start(t, conf{store: store, site: lines(
			dedupBlock("on_unknown hold", "release_on off", "timeout 2s"), proxyTo(up))})
		for name, end := range ends {
			_, _ = try(oneShot, p.newPost("/"+name, name, "body")) // it may be cut off
			for range 3 {
				got := p.post(t, "/"+name, name, "body")
				if end.code != "" {
					wantProblem(t, got, end.status, end.code)
				} else if got.Status != end.status || !got.replayed() {
					t.Errorf("%s: the retry got %d %v, want a replay of %d", name, got.Status, got.Header, end.status)
				}
			}
			up.wantRuns(t, name, 1)
		}
	})
}
