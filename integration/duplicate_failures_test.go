package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// A sender that took a kept failure for a success would never deliver again.
func TestAcknowledgeReplaysAKeptFailure(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answersStatus(500))
	p := start(t, conf{store: "store memory", site: lines(
		dedupBlock("mode webhook", "max_attempts 2", "on_duplicate acknowledge"), proxyTo(up))})
	for n := range 4 {
		if got := p.post(t, "/", "k", "body"); got.Status != 500 {
			t.Errorf("delivery %d got %d, want 500", n+1, got.Status)
		}
	}
	up.wantRuns(t, "k", 2)
}

// A conflict names the first run in its header, too, and carries a response only
// as it can stand in JSON.
func TestConflictIsWholeJSON(t *testing.T) {
	t.Parallel()
	bodies := map[string]string{
		"plain":   `{"run":123}`,
		"markup":  `{"html":"` + strings.Repeat("<&>", 1300) + `"}`,
		"latin-1": "{\"name\":\"caf\xe9\"}",
	}
	up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, n run) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, bodies[n.Key])
	})
	p := start(t, conf{store: "store memory", site: lines(dedupBlock("on_duplicate conflict"), proxyTo(up))})
	for name, body := range bodies {
		first := p.post(t, "/", name, "body")
		got := p.post(t, "/", name, "body")
		wantProblem(t, got, 409, "duplicate_request")
		if got.executionID() != first.executionID() {
			t.Errorf("%s: the conflict names %q, want %q", name, got.executionID(), first.executionID())
		}
		if carried := strings.Contains(got.Body, body); carried != (name != "latin-1") {
			t.Errorf("%s: the response is carried: %v", name, carried)
		}
	}
}
