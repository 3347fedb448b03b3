package admin

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/admin/admintest"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Two operators have seen the same held key. When the first has freed it, and the sender's
// retry is done, the second one's confirmation is for what is there no more.
func TestActsOnlyOnWhatWasSeen(t *testing.T) {
	for method, action := range map[string]string{"POST": "/release", "DELETE": ""} {
		t.Run(method, func(t *testing.T) {
			o := operate(t, "a")
			key := o.Put(t, admintest.Run{ID: "k", State: idempotency.Held})
			target := "/dedup/keys/" + key.String()
			seen := func() string {
				r := wantRecord(t, target)
				return "?" + url.Values{"execution_id": {r.ExecutionID}, "state": {r.State}}.Encode()
			}
			first := seen()
			wantAsked(t, "POST", target+"/release"+first, "", 204)
			if got := wantAsked(t, method, target+action+first, "", 409); got.Code != "changed" || !strings.Contains(got.Detail, "released") {
				t.Errorf("a freed key: %s", got.text)
			}
			if err := o.Records.Forget(t.Context(), key, idempotency.Precondition{}); err != nil {
				t.Fatal(err)
			}
			o.Put(t, admintest.Run{ID: "k", State: idempotency.Complete})
			if got := wantAsked(t, method, target+action+first, "", 409); got.Code != "changed" || !strings.Contains(got.Detail, "complete") {
				t.Errorf("a key that has run since: %s", got.text)
			}
			wantAsked(t, method, target+action+"?execution_id=another", "", 409)
			if record, _, err := o.Records.Lookup(t.Context(), key); err != nil || record.State != idempotency.Complete {
				t.Errorf("it is %+v, %v", record, err)
			}
			wantAsked(t, method, target+action+seen(), "", 204)
		})
	}
}

// wantRecord shows the record of a key.
func wantRecord(t *testing.T, target string) (r Record) {
	t.Helper()
	if err := json.Unmarshal([]byte(wantAsked(t, "GET", target, "", 200).text), &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// Two handlers of one process with a store each, say: a key can be in both.
func TestActsInAllStoresThatHaveTheKey(t *testing.T) {
	held, running := admintest.Run{ID: "k", State: idempotency.Held}, admintest.Run{ID: "k"}
	complete := admintest.Run{ID: "k", State: idempotency.Complete}
	for name, c := range map[string]struct {
		in     [2]admintest.Run
		away   bool // the second one
		query  string
		status int
		after  [2]idempotency.State
		says   []string
	}{
		"whatever it is": {[2]admintest.Run{held, complete}, false, "", 204, [2]idempotency.State{"released", "released"}, nil},
		"one of them runs": {
			[2]admintest.Run{held, running}, false, "", 409, [2]idempotency.State{"released", "in_flight"},
			[]string{" a: done", " b: a run is in flight"},
		},
		"the first runs": {
			[2]admintest.Run{running, held}, false, "", 409, [2]idempotency.State{"in_flight", "released"},
			[]string{" a: a run is in flight", " b: done"},
		},
		"one of them is away": {
			[2]admintest.Run{held, held}, true, "", 503, [2]idempotency.State{"released", "held"},
			[]string{" a: done", " b: " + admintest.ErrAway.Error()},
		},
		"of one execution": {
			[2]admintest.Run{held, held}, false, "?execution_id=execution+of+k+in+b&state=held", 204, [2]idempotency.State{"held", "released"}, nil,
		},
		"of one execution beside a run": {
			[2]admintest.Run{held, running}, false, "?execution_id=execution+of+k+in+a", 204, [2]idempotency.State{"released", "in_flight"}, nil,
		},
		"of one execution beside a store that is away": {
			[2]admintest.Run{held, held}, true, "?execution_id=execution+of+k+in+a", 204, [2]idempotency.State{"released", "held"}, nil,
		},
		"of one execution that may be where nobody answers": {
			[2]admintest.Run{held, held}, true, "?execution_id=execution+of+k+in+b", 503, [2]idempotency.State{"held", "held"},
			[]string{" a: the key has changed", " b: " + admintest.ErrAway.Error()},
		},
		"of an execution that is nowhere": {
			[2]admintest.Run{held, complete}, false, "?execution_id=another", 409, [2]idempotency.State{"held", "complete"},
			[]string{" a: the key has changed", "held now", " b: the key has changed", "complete now"},
		},
		"in one state": {[2]admintest.Run{held, complete}, false, "?state=held", 204, [2]idempotency.State{"released", "complete"}, nil},
		"in one state beside a store that is away": {
			[2]admintest.Run{held, held}, true, "?state=held", 503, [2]idempotency.State{"released", "held"}, []string{" b: " + admintest.ErrAway.Error()},
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := operate(t, "a"), operate(t, "b")
			c.in[0].Execution, c.in[1].Execution = "execution of k in a", "execution of k in b"
			key := a.Put(t, c.in[0])
			b.Put(t, c.in[1])
			b.Away.Store(c.away)
			got := wantAsked(t, "POST", "/dedup/keys/"+key.String()+"/release"+c.query, "", c.status)
			for _, word := range c.says {
				if !strings.Contains(got.Detail, word) {
					t.Errorf("%q does not say %q", got.Detail, word)
				}
			}
			if c.status != 204 && (len(got.Outcomes) != 2 || got.Outcomes[0].Done != (c.after[0] == "released") || got.Outcomes[1].Done != (c.after[1] == "released")) {
				t.Errorf("the outcomes are %+v", got.Outcomes)
			}
			if after := [2]idempotency.State{a.State(t, key), b.State(t, key)}; after != c.after {
				t.Errorf("then they are %v, want %v", after, c.after)
			}
		})
	}
}

// A refusal beside a run says when that ends, and how to end it.
func TestActsBesideARun(t *testing.T) {
	o := operate(t, "a")
	key := o.Put(t, admintest.Run{ID: "k"})
	claimed := wantRecord(t, "/dedup/keys/"+key.String()).Claimed
	for _, request := range [][3]string{{"POST", "/release"}, {"POST", "/complete", "{}"}, {"DELETE", ""}} {
		got := wantAsked(t, request[0], "/dedup/keys/"+key.String()+request[1], request[2], 409)
		if want := "at the latest at " + claimed.Add(maxRun).Format(time.RFC3339) + " (timeout). To end it now, restart the service"; !strings.Contains(got.Detail, want) {
			t.Errorf("%q does not say %q", got.Detail, want)
		}
	}
	now := time.Now()
	if got := RunEnds(now.Add(-maxRun), maxRun, now); strings.Contains(got, "timeout") { // that of another process
		t.Errorf("a run beyond the timeout: %q", got)
	}
}

// What is in a second store is shown, too: else nobody could know of it.
func TestShowsTheKeyOfAllStores(t *testing.T) {
	a, b := operate(t, "a"), operate(t, "b")
	key := a.Put(t, admintest.Run{ID: "k", State: idempotency.Held})
	b.Put(t, admintest.Run{ID: "k", State: idempotency.Complete})
	shown := wantRecord(t, "/dedup/keys/"+key.String()+"?body=true")
	if len(shown.Others) != 1 || !strings.HasSuffix(shown.Store, " a") || shown.State != "held" || !strings.HasSuffix(shown.Others[0].Store, " b") ||
		shown.Others[0].State != "complete" || shown.Others[0].Response == nil || len(shown.Others[0].Others) > 0 {
		t.Errorf("it is shown as %+v", shown)
	}
	if shown := wantRecord(t, "/dedup/keys/"+key.String()); shown.Others[0].Response != nil {
		t.Errorf("unasked it is shown with the response %+v", shown.Others[0].Response)
	}
	wantAsked(t, "DELETE", "/dedup/keys/"+key.String(), "", 204)
	if a.State(t, key) != "none" || b.State(t, key) != "none" {
		t.Errorf("deleted it is %s and %s", a.State(t, key), b.State(t, key))
	}
}

// A response that the store has lost is not shown as none.
func TestShowsThatAResponseIsLost(t *testing.T) {
	o := operate(t, "a")
	target := "/dedup/keys/" + o.Put(t, admintest.Run{ID: "k", State: idempotency.Complete}).String()
	o.Lost = true
	wantAsked(t, "GET", target, "", 200)
	if got := wantAsked(t, "GET", target+"?body=true", "", 500); got.Code != "record_unreadable" {
		t.Errorf("its response is shown as %s", got.text)
	}
}

// Nobody knows what is missing while a store is away, but what the others have is known.
func TestLookupWithUnavailableStore(t *testing.T) {
	a, b := operate(t, "a", "default"), operate(t, "b", "default")
	b.Put(t, admintest.Run{ID: "in b", State: idempotency.Held})
	a.Away.Store(true)
	got := wantAsked(t, "POST", "/dedup/lookup", `{"ids":["in b","elsewhere"]}`, 503)
	if !slices.Equal(got.ids(), []string{"in b"}) || got.Missing != nil {
		t.Errorf("it has %s", got.text)
	}
}

func TestQuotedName(t *testing.T) {
	if got := quotedName("redis at :6379, prefix dedup:"); got != `redis at :6379, prefix "dedup:"` {
		t.Errorf("got %s", got)
	}
}
