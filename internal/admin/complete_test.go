package admin

import (
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/admin/admintest"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// A completed key has the response that the operator has sent, with a content type that fits.
func TestCompletesWithAResponse(t *testing.T) {
	o := operate(t, "a")
	for name, c := range map[string]struct {
		state      idempotency.State
		body       string
		status     int
		kind, text string
	}{
		"nothing":            {idempotency.Held, `{}`, 200, "", ""},
		"a status":           {idempotency.Released, `{"status":204}`, 204, "", ""},
		"JSON":               {idempotency.Held, `{"status":201,"body":"{\"id\": 17}"}`, 201, "application/json", `{"id": 17}`},
		"text":               {idempotency.Held, `{"body":"done"}`, 200, "text/plain", "done"},
		"what was asked for": {idempotency.Held, `{"content_type":"text/csv; charset=utf-8","body":"1"}`, 200, "text/csv; charset=utf-8", "1"},
		"a failure":          {idempotency.Held, `{"status":599,"body":"no"}`, 599, "text/plain", "no"},
		"as large as can be": {idempotency.Held, `{"body":"` + strings.Repeat(`\u0001`, MaxCompleteBody) + `"}`, 200, "text/plain", strings.Repeat("\x01", MaxCompleteBody)},
	} {
		target := "/dedup/keys/" + o.Put(t, admintest.Run{ID: name, State: c.state, Reason: "EOF"}).String()
		wantAsked(t, "POST", target+"/complete?state="+string(c.state), c.body, 204)
		shown := wantRecord(t, target+"?body=true")
		if shown.State != "complete" || shown.Status != c.status || shown.Reason != "completed by 192.0.2.1" || shown.ExecutionID != "execution of "+name {
			t.Errorf("%s: the record is %+v", name, shown)
		}
		if kind := strings.Join(shown.Response.Header["Content-Type"], ", "); shown.Response.Status != c.status || shown.Response.Body != c.text || kind != c.kind {
			t.Errorf("%s: the response is %d %q %.40q, want %d %q", name, shown.Response.Status, kind, shown.Response.Body, c.status, c.kind)
		}
	}
}

// Of a key in two stores, the record that is complete already is named, and left alone.
func TestCompletesInAllStoresThatHaveTheKey(t *testing.T) {
	a, b := operate(t, "a"), operate(t, "b")
	key := a.Put(t, admintest.Run{ID: "k", State: idempotency.Held})
	b.Put(t, admintest.Run{ID: "k", State: idempotency.Complete})
	got := wantAsked(t, "POST", "/dedup/keys/"+key.String()+"/complete", "{}", 409)
	if got.Code != "complete" || len(got.Outcomes) != 2 || !got.Outcomes[0].Done || got.Outcomes[1].Done {
		t.Errorf("it was done as %s", got.text)
	}
	if a.State(t, key) != idempotency.Complete {
		t.Errorf("in a store that has it held it is %s", a.State(t, key))
	}
}
