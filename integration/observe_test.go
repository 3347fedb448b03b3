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
	counted := series{}
	for _, outcome := range []string{"executed", "replayed"} {
		got := p.post(t, "/", "k", "body")
		if got.Status != 201 || got.executionID() != "" || got.Header.Get("Idempotent-Replayed") != "" {
			t.Errorf("under observe the client got %+v", got)
		}
		counted[strings.Replace(requests("api", outcome), `observed="false"`, `observed="true"`, 1)] = 1
		eventuallyEqual(t, "what would have become of them", counted, func() series { return p.scrape(t).since(nil) })
	}
	up.wantRuns(t, "k", 2)

	p.reload(t, lines("dedup", proxyTo(up)))
	first := p.post(t, "/", "k", "body")
	wantFresh(t, first, 201, "run 3 of k")
	wantReplay(t, p.post(t, "/", "k", "body"), first)
}
