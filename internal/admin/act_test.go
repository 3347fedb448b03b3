package admin

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Two operators have seen the same held key. When the first has freed it, and the sender's
// retry is done, the second one's confirmation is for what is there no more.
func TestActsOnlyOnWhatWasSeen(t *testing.T) {
	for method, action := range map[string]string{"POST": "/release", "DELETE": ""} {
		t.Run(method, func(t *testing.T) {
			o := operate(t, "a")
			key := o.put(t, claimed{id: "k", state: idempotency.Held})
			target := "/dedup/keys/" + key.String()
			seen := func() string {
				var r Record
				wantRecord(t, target, &r)
				return "?" + url.Values{"execution_id": {r.ExecutionID}, "state": {r.State}}.Encode()
			}
			first := seen()
			wantAsked(t, "POST", target+"/release"+first, "", 204)
			if got := wantAsked(t, method, target+action+first, "", 409); got.Code != "changed" || !strings.Contains(got.Detail, "released") {
				t.Errorf("a freed key: %s", got.text)
			}
			if err := o.Store.Forget(t.Context(), key, idempotency.Seen{}); err != nil {
				t.Fatal(err)
			}
			o.put(t, claimed{id: "k", state: idempotency.Complete})
			if got := wantAsked(t, method, target+action+first, "", 409); got.Code != "changed" || !strings.Contains(got.Detail, "complete") {
				t.Errorf("a key that has run since: %s", got.text)
			}
			wantAsked(t, method, target+action+"?execution_id=another", "", 409)
			if record, _, err := o.Store.Lookup(t.Context(), key); err != nil || record.State != idempotency.Complete {
				t.Errorf("it is %+v, %v", record, err)
			}
			wantAsked(t, method, target+action+seen(), "", 204)
		})
	}
}

// wantRecord shows the record of a key.
func wantRecord(t *testing.T, target string, into *Record) {
	t.Helper()
	if err := json.Unmarshal([]byte(wantAsked(t, "GET", target, "", 200).text), into); err != nil {
		t.Fatal(err)
	}
}
