package integration

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// operator asks the admin API about a key and returns its record, if it is one.
func (p *caddy) operator(t *testing.T, method, path string, want int) map[string]any {
	t.Helper()
	status, body := p.askAdmin(t, method, "/dedup/keys/"+path, "", "")
	if status != want {
		t.Fatalf("%s %s: got %d %s, want %d", method, path, status, body, want)
	}
	var record map[string]any
	if body != "" {
		if err := json.Unmarshal([]byte(body), &record); err != nil {
			t.Fatalf("%s %s: %v in %q", method, path, err, body)
		}
	}
	return record
}

// A held key whose work is done gets an answer: its duplicates get that, and nothing runs. What an operator does is a
// log line that says who did it.
func TestOperatorCompletesAHeldKey(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store string) {
		up := startUpstream(t, inTurn(noAnswer, answers201))
		p := start(t, conf{store: store, site: lines(dedupBlock("key header Idempotency-Key shop", "mode api", "on_unknown hold", "release_on 409"), proxyTo(up))})
		p.post(t, "/", "k", "body")
		held := wantProblem(t, p.post(t, "/", "k", "body"), 409, "outcome_unknown")
		large := strings.Repeat("paid ", 100_000)
		text, err := json.Marshal(map[string]any{"status": 409, "body": large})
		if err != nil {
			t.Fatal(err)
		}
		complete := func(body string, want int) string {
			t.Helper()
			status, answer := p.askAdmin(t, "POST", "/dedup/keys/"+held.Key+"/complete?state=held", "application/json", body)
			if status != want {
				t.Fatalf("complete: got %d %s, want %d", status, answer, want)
			}
			return answer
		}
		complete(`{"status": 100}`, 400)
		complete(string(text), 204)
		for range 2 {
			got := p.post(t, "/", "k", "body")
			if got.Status != 409 || got.Body != large || !got.replayed() || got.Header.Get("Content-Type") != "text/plain" ||
				got.Header.Get("Dedup-Execution-Id") != held.ExecutionID {
				t.Errorf("a duplicate got %d %.40q %v", got.Status, got.Body, got.Header)
			}
		}
		wantProblem(t, p.post(t, "/", "k", "another body"), 422, "idempotency_key_reused")
		if answer := complete(`{}`, 409); !strings.Contains(answer, "complete now") {
			t.Errorf("completed again: %s", answer)
		}
		if record := p.operator(t, http.MethodGet, held.Key, 200); record["state"] != "complete" || record["reason"] != "completed by unix socket "+adminSocket(p.conf.dir) {
			t.Errorf("the record is %v", record)
		}
		up.wantRuns(t, "k", 1)
		p.operator(t, http.MethodPost, held.Key+"/release", 204)
		second := p.post(t, "/", "k", "body")
		wantFresh(t, second, 201, "run 2 of k")
		p.operator(t, http.MethodDelete, held.Key, 204)
		for message, execution := range map[string]string{
			"an operator completed a key": held.ExecutionID, "an operator released a key": held.ExecutionID, "an operator forgot a key": second.executionID(),
		} {
			line := p.awaitLog(t, message, func(e entry) bool { return e.text("msg") == message })
			if line.text("level") != "warn" || line.text("key") != held.Key || line.text("delivery_id") != "k" || line.text("provider") != "shop" ||
				line.text("execution_id") != execution || line.text("remote") != "unix socket "+adminSocket(p.conf.dir) {
				t.Errorf("%s: %v", message, line)
			}
		}
	})
}
