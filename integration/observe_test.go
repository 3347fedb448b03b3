package integration

import (
	"strings"
	"testing"
)

// Requests that were only observed are unknown when dedup begins, after a reload.
func TestObserveFirst(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{site: lines("dedup {", "observe", "}", proxyTo(up))})
	for range 2 {
		got := p.post(t, "/", "k", "body")
		if got.Status != 201 || got.executionID() != "" || got.Header.Get("Idempotent-Replayed") != "" {
			t.Errorf("under observe the client got %+v", got)
		}
	}
	up.wantRuns(t, "k", 2)
	observed := func(outcome string) string {
		return strings.Replace(requests("api", outcome), `observed="false"`, `observed="true"`, 1)
	}
	eventuallyEqual(t, "what would have become of them", series{observed("executed"): 1, observed("replayed"): 1},
		func() series { return p.scrape(t).since(nil) })

	p.reload(t, lines("dedup", proxyTo(up)))
	first := p.post(t, "/", "k", "body")
	wantFresh(t, first, 201, "run 3 of k")
	wantReplay(t, p.post(t, "/", "k", "body"), first)
}
