package admin

import (
	"slices"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/admin/admintest"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

func TestAdminMistakes(t *testing.T) {
	o := operate(t, "a", "default")
	running := o.Put(t, admintest.Run{ID: "running"}).String()
	held := o.Put(t, admintest.Run{ID: "held", State: idempotency.Held}).String()
	done := o.Put(t, admintest.Run{ID: "done", State: idempotency.Complete}).String()
	broken := o.Put(t, admintest.Run{ID: "broken", State: idempotency.Held})
	unknown := strings.Repeat("0", 64)
	_, storesOwn, err := o.List(t.Context(), "", 1)
	if err != nil {
		t.Fatal(err)
	}
	entered := enterAll()
	defer LeaveAll(entered)
	many := `{"ids":["` + strings.Repeat(`a","`, maxIDs) + `a"]}`
	for _, c := range []struct {
		method, target, body string
		status               int
		says                 []string
	}{
		// What a 405 says are the methods of its path (RFC 9110, section 15.5.6).
		{"POST", "/dedup/keys", "", 405, []string{"GET"}},
		{"HEAD", "/dedup/keys/" + held + "/release", "", 405, []string{"POST"}},
		{"POST", "/dedup/keys/" + held, "", 405, []string{"GET, DELETE"}},
		{"PUT", "/dedup/keys/" + held + "/complete", "", 405, []string{"POST"}},
		{"GET", "/dedup/lookup", "", 405, []string{"POST"}},
		{"DELETE", "/dedup/ready", "", 405, []string{"GET, HEAD"}},
		{"GET", "/dedup/keys?stat=held", "", 400, []string{`"stat"`, "state, provider, delivery_id, execution_id, path, status, older_than, newer_than, limit, order, cursor"}},
		{"GET", "/dedup/keys?state=helt", "", 400, []string{`"helt"`, "in_flight, lapsed, complete, released, held, unreadable"}},
		{"GET", "/dedup/keys?provider=github&provider=slack", "", 400, []string{"provider is there 2 times", "state"}},
		{"GET", "/dedup/keys?older_than=yesterday", "", 400, []string{"older_than", `"yesterday"`, "7d"}},
		{"GET", "/dedup/keys?newer_than=-1h", "", 400, []string{"newer_than", `"-1h"`}},
		{"GET", "/dedup/keys?older_than=2h&newer_than=1h", "", 400, []string{"2h", "1h", "longer"}},
		{"GET", "/dedup/keys?status=4x", "", 400, []string{`status="4x"`, "422", "4xx"}},
		{"GET", "/dedup/keys?status=600", "", 400, []string{`status="600"`}},
		{"GET", "/dedup/keys?limit=0", "", 400, []string{`"0"`, "1 to 1000"}},
		{"GET", "/dedup/keys?limit=1001", "", 400, []string{`"1001"`}},
		{"GET", "/dedup/keys?limit=ten", "", 400, []string{`"ten"`}},
		{"GET", "/dedup/keys?cursor=next", "", 400, []string{`"next"`, "of the page before"}},
		{"GET", "/dedup/keys?cursor=" + storesOwn, "", 400, []string{"cursor="}},
		{"GET", "/dedup/keys?cursor=" + listCursor{Store: "closed"}.String(), "", 400, []string{"not open any more"}},
		{"GET", "/dedup/keys?delivery_id=1&cursor=" + listCursor{Store: cursorName(entered[0])}.String(), "", 400, []string{"a list without delivery_id"}},
		{"GET", "/dedup/keys?order=newest", "", 400, []string{`"newest"`, "store"}},
		{"GET", "/dedup/keys?cursor=" + listCursor{Store: "any", Key: "abc"}.String(), "", 400, []string{"of the page before"}},
		{"GET", "/dedup/keys?cursor=" + listCursor{Store: cursorName(entered[0]), At: "x"}.String(), "", 400, []string{"cursor="}},
		{"GET", "/dedup/keys?state=%zz", "", 400, []string{"%zz"}},
		{"GET", "/dedup/keys?older_than=99999999d", "", 400, []string{`"99999999d"`, "up to 106751d"}},
		{"GET", "/dedup/keys?older_than=0d", "", 400, []string{"more than 0"}},
		{"GET", "/dedup/keys/" + running + "/other", "", 404, []string{"/other does not exist", "/release"}},
		{"GET", "/dedup/keys/" + running + "/release/other", "", 404, []string{"/other does not exist"}},
		{"GET", "/dedup/nothing", "", 404, []string{"/dedup/nothing does not exist", "/dedup/lookup"}},
		{"POST", "/dedup/", "", 404, []string{"/dedup/ does not exist"}},
		{"POST", "/dedup/lookup", `{"ids":"a"}`, 400, []string{`the member "ids"`, `{"provider": "github", "ids": ["…"]}`}},
		{"POST", "/dedup/lookup", `{"ids":[1]}`, 400, []string{`the member "ids/0"`}},
		{"POST", "/dedup/lookup", `["a"]`, 400, []string{"not an object"}},
		{"POST", "/dedup/lookup", `{"ids":["` + strings.Repeat("a", maxLookup) + `"]}`, 400, []string{"larger than 4194304 bytes"}},
		{"GET", "/dedup/keys/abc", "", 400, []string{`"abc"`, "64"}},
		{"GET", "/dedup/keys/" + unknown, "", 404, []string{unknown}},
		{"GET", "/dedup/keys/" + running + "?body=yes", "", 400, []string{`"yes"`, "true or false"}},
		{"GET", "/dedup/keys/" + running + "?boddy=true", "", 400, []string{`"boddy"`, "body"}},
		{"DELETE", "/dedup/keys/" + running + "?force=true", "", 400, []string{`"force"`, "execution_id, state"}},
		{"DELETE", "/dedup/keys/" + running + "?state=helt", "", 400, []string{`"helt"`, "in_flight, lapsed"}},
		{"DELETE", "/dedup/keys/" + running + "?state=held&state=lapsed", "", 400, []string{"2 times", "one state"}},
		{"DELETE", "/dedup/keys/" + running + "?execution_id=", "", 400, []string{"execution_id is empty"}},
		{"GET", "/dedup/ready?state=held", "", 400, []string{`"state"`, "none"}},
		{"POST", "/dedup/keys/" + running + "/release", "", 409, []string{"in flight"}},
		{"POST", "/dedup/keys/" + running + "/complete", "{}", 409, []string{"in flight"}},
		{"POST", "/dedup/keys/" + done + "/complete", "{}", 409, []string{"complete", "release it first"}},
		{"POST", "/dedup/keys/" + unknown + "/complete", "{}", 404, []string{unknown}},
		{"POST", "/dedup/keys/" + held + "/complete?state=complete", "{}", 409, []string{"held"}},
		{"POST", "/dedup/keys/" + held + "/complete?status=200", "{}", 400, []string{`"status"`, "execution_id, state"}},
		{"POST", "/dedup/keys/" + held + "/complete", "", 400, []string{`{"status": 200, "content_type": "text/plain", "body": "…"}`}},
		{"POST", "/dedup/keys/" + held + "/complete", `{"status":199}`, 400, []string{"199", "200 to 599"}},
		{"POST", "/dedup/keys/" + held + "/complete", `{"status":600}`, 400, []string{"600", "200 to 599"}},
		{"POST", "/dedup/keys/" + held + "/complete", `{"status":0}`, 400, []string{"200 to 599"}},
		{"POST", "/dedup/keys/" + held + "/complete", `{"status":"200"}`, 400, []string{`the member "status"`}},
		{"POST", "/dedup/keys/" + held + "/complete", `{"body":{"id":1}}`, 400, []string{`the member "body"`}},
		{"POST", "/dedup/keys/" + held + "/complete", `{"Body":"a"}`, 400, []string{`the member "Body" is unknown`}},
		{"POST", "/dedup/keys/" + held + "/complete", `{"header":{}}`, 400, []string{`"header"`, `"content_type"`}},
		{"POST", "/dedup/keys/" + held + "/complete", `{"status":204,"body":"a"}`, 400, []string{"204 has no body"}},
		{"POST", "/dedup/keys/" + held + "/complete", `{"content_type":"text"}`, 400, []string{`"text"`, "application/json"}},
		{"POST", "/dedup/keys/" + held + "/complete", `{"content_type":"text/plain\r\nX: y"}`, 400, []string{"application/json"}},
		{"POST", "/dedup/keys/" + held + "/complete", `{"body":"` + strings.Repeat("a", MaxCompleteBody+1) + `"}`, 400, []string{"1048577 bytes", "1048576"}},
		{"POST", "/dedup/keys/" + held + "/complete", `{"body":"` + strings.Repeat("a", maxComplete) + `"}`, 400, []string{"larger than 6356992 bytes"}},
		{"DELETE", "/dedup/keys/" + running, "", 409, []string{"in flight"}},
		{"POST", "/dedup/lookup", ``, 400, []string{`{"provider": "github", "ids": ["…"]}`}},
		{"POST", "/dedup/lookup", `{"ids":[]}`, 400, []string{"0 ids", "1000"}},
		{"POST", "/dedup/lookup", many, 400, []string{"1001 ids", "1000"}},
		{"POST", "/dedup/lookup", `{"ids":["a",""]}`, 400, []string{"id 2"}},
		{"POST", "/dedup/lookup", `{"id":["a"]}`, 400, []string{`"id"`}},
		{"POST", "/dedup/lookup", `{"ids":["a"]}{}`, 400, []string{"after top-level value"}},
		{"POST", "/dedup/lookup", `{"ids":["a"],"ids":["b"]}`, 400, []string{`duplicate object member name "ids"`}},
		{"POST", "/dedup/lookup", `{"IDS":["a"],"ids":["b"]}`, 400, []string{`the member "IDS" is unknown`, `"ids"`}},
		{"POST", "/dedup/lookup", `{"Provider":"github","ids":["b"]}`, 400, []string{`"Provider"`}},
		{"POST", "/dedup/lookup", `{"ids":["\ud800"]}`, 400, []string{"cannot be read", "surrogate"}},
		{"POST", "/dedup/lookup", "{\"ids\":[\"\xff\"]}", 400, []string{"cannot be read", "UTF-8"}},
		{"POST", "/dedup/lookup?provider=github", `{"ids":["a"]}`, 400, []string{`"provider"`}},
		{"GET", "/dedup/ready?verbose", "", 400, []string{`"verbose"`}},
	} {
		got := askAdmin(t, c.method, c.target, c.body)
		if got.status != c.status || got.Status != c.status || got.kind != "application/problem+json" {
			t.Errorf("%s %s %.40s: got %d %s %s, want %d", c.method, c.target, c.body, got.status, got.kind, got.text, c.status)
		}
		says := c.says
		if c.status == 405 {
			if !slices.Equal(got.allow, says) {
				t.Errorf("%s %s: got the Allow %q, want %q", c.method, c.target, got.allow, says)
			}
			says = strings.Split(says[0], ", ")[:1]
		} else if got.allow != nil {
			t.Errorf("%s %s: got the Allow %q", c.method, c.target, got.allow)
		}
		for _, word := range says {
			if !strings.Contains(got.Detail, word) || strings.Contains(got.Detail, "Go ") {
				t.Errorf("%s %s %.40s: %q does not say %q", c.method, c.target, c.body, got.Detail, word)
			}
		}
	}
	wantAsked(t, "POST", "/dedup/keys/"+broken.String()+"/release", "", 204)
	wantAsked(t, "DELETE", "/dedup/keys/"+broken.String(), "", 204)
}
