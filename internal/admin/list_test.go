package admin

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/admin/admintest"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

func TestListByFilters(t *testing.T) {
	o := operate(t, "one", "default")
	for _, c := range []admintest.Run{
		{Provider: "github", ID: "running"},
		{Provider: "github", ID: "gone", Lease: -time.Hour},
		{Provider: "github", ID: "done", State: idempotency.Complete},
		{Provider: "stripe", ID: "done", State: idempotency.Complete, Status: 422, Route: "/other"},
		{ID: "failed", Path: "/orders", State: idempotency.Released, Status: 404},
		{ID: "unknown", State: idempotency.Held},
	} {
		o.Put(t, c)
	}
	o.Damaged[o.Put(t, admintest.Run{Provider: "github", ID: "broken"})] = true
	for query, want := range map[string][]string{
		"":                                  {"", "done", "done", "failed", "gone", "running", "unknown"},
		"state=in_flight":                   {"running"},
		"state=lapsed":                      {"gone"},
		"state=complete":                    {"done", "done"},
		"state=released&state=held":         {"failed", "unknown"},
		"state=unreadable":                  {""},
		"provider=github":                   {"done", "gone", "running"},
		"provider=github&state=complete":    {"done"},
		"provider=shopify":                  {},
		"provider=api":                      {"failed", "unknown"},
		"provider=custom&state=held":        {"unknown"},
		"order=store&state=held":            {"unknown"},
		"order=store&delivery_id=done":      {"done", "done"},
		"delivery_id=done":                  {"done", "done"},
		"delivery_id=done&provider=stripe":  {"done"},
		"delivery_id=done&state=held":       {},
		"delivery_id=don":                   {},
		"delivery_id=broken":                {"broken"},
		"delivery_id=broken&provider=slack": {"broken"}, // nobody knows
		"execution_id=execution+of+failed":  {"failed"},
		"execution_id=execution":            {},
		"path=/orders":                      {"failed"},
		"path=/order":                       {},
		"provider=&state=&path=&cursor=":    {"", "done", "done", "failed", "gone", "running", "unknown"},
		"status=422":                        {"done"},
		"status=4xx":                        {"done", "failed"},
		"status=4xx&state=released":         {"failed"},
		"status=2xx&order=store":            {"done"},
		"status=500&state=unreadable":       {},
		"older_than=1h":                     {},
		"newer_than=1h&state=held":          {"unknown"},
		"newer_than=1d&older_than=1h":       {},
	} {
		if got := wantAsked(t, "GET", "/dedup/keys?"+query, "", 200); !slices.Equal(got.ids(), want) || got.Next != "" {
			t.Errorf("%q lists %q with next %q, want %q", query, got.ids(), got.Next, want)
		}
	}
	broken := wantAsked(t, "GET", "/dedup/keys?delivery_id=broken", "", 200).Keys[0]
	if broken.State != "unreadable" || !strings.Contains(broken.Unreadable, "it is <damaged>") {
		t.Errorf("a record that cannot be read is shown as %+v", broken)
	}
	if again := askAdmin(t, "GET", "/dedup/keys/"+broken.Key, ""); again.status != 200 || !strings.Contains(again.text, "it is <damaged>") {
		t.Errorf("asked for by its key it is %d %s", again.status, again.text)
	}
}

func TestFilterByAge(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		filter keyFilter
		age    time.Duration
		want   bool
	}{
		{keyFilter{olderThan: time.Hour}, time.Hour, false},
		{keyFilter{olderThan: time.Hour}, time.Hour + 1, true},
		{keyFilter{newerThan: time.Hour}, time.Hour - 1, true},
		{keyFilter{newerThan: time.Hour}, time.Hour, false},
		{keyFilter{olderThan: time.Minute, newerThan: time.Hour}, 30 * time.Minute, true},
		{keyFilter{olderThan: time.Minute, newerThan: time.Hour}, 2 * time.Hour, false},
	} {
		found := &Found{State: "held", Listed: idempotency.Listed{Record: &idempotency.Record{Claimed: now.Add(-c.age)}, Now: now}}
		if got := c.filter.wants(found); got != c.want {
			t.Errorf("%+v takes a record of %s: %v", c.filter, c.age, got)
		}
	}
}

// walk follows the pages of a list to its end.
func walk(t *testing.T, limit int, query string) (all []string) {
	t.Helper()
	cursor := ""
	for range 10_000 {
		target := fmt.Sprintf("/dedup/keys?limit=%d%s", limit, query)
		if cursor != "" {
			target += "&cursor=" + url.QueryEscape(cursor)
		}
		page := wantAsked(t, "GET", target, "", 200)
		if len(page.Keys) > limit {
			t.Fatalf("%s: a page of %d keys", target, len(page.Keys))
		}
		for _, one := range page.Keys {
			all = append(all, one.Key)
		}
		if cursor = page.Next; cursor == "" {
			return all
		}
	}
	t.Fatal("the list has no end")
	return nil
}

func TestListPagesOverAllStores(t *testing.T) {
	a, b := operate(t, "a", "default"), operate(t, "b", "default")
	want := make(map[string]bool)
	for i := range 120 {
		o := a
		if i%3 == 0 {
			o = b
		}
		c := admintest.Run{ID: "same", Route: fmt.Sprint(i)}
		if i%2 == 0 {
			c.State = idempotency.Held
		}
		want[o.Put(t, c).String()] = c.State == idempotency.Held
	}
	if page := wantAsked(t, "GET", "/dedup/keys", "", 200); len(page.Keys) != 100 || page.Next == "" {
		t.Errorf("without a limit a page has %d keys, and %q is next; want 100, and a next one", len(page.Keys), page.Next)
	}
	if page := wantAsked(t, "GET", "/dedup/keys?order=store&state=held&limit=1000", "", 200); page.Seen != 120 {
		t.Errorf("in the order of the stores a page says that %d records were read, want 120", page.Seen)
	}
	for _, limit := range []int{1, 7, 40, 120, 1000} {
		for query, half := range map[string]bool{
			"": false, "&delivery_id=same": false, "&state=held": true, "&order=store": false, "&order=store&state=held": true,
		} {
			all := walk(t, limit, query)
			seen := make(map[string]bool)
			for _, key := range all {
				if held, known := want[key]; seen[key] || !known || half && !held {
					t.Fatalf("limit=%d%s: %s is wrong, or twice", limit, query, key)
				}
				seen[key] = true
			}
			if n := len(want); half && len(seen) != n/2 || !half && len(seen) != n {
				t.Errorf("limit=%d%s: %d of %d keys", limit, query, len(seen), n)
			}
		}
	}
}

// The newest of the whole store come first, and what cannot be read before them. Pages go on
// from there.
func TestNewestOfTheWholeStoreFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := operate(t, "a", "default"), operate(t, "b", "default")
		var want []string
		for i := range 205 {
			o := a
			if i%3 == 0 {
				o = b
			}
			want = append(want, o.Put(t, admintest.Run{ID: fmt.Sprint(i)}).String())
			time.Sleep(time.Millisecond) // records have no finer time
		}
		a.Damaged[a.Put(t, admintest.Run{ID: "broken"})] = true
		a.Put(t, admintest.Run{ID: "twice"})
		b.Put(t, admintest.Run{ID: "twice"}) // the same key, claimed at the same time
		first := wantAsked(t, "GET", "/dedup/keys?limit=3", "", 200)
		if first.Keys[0].State != "unreadable" || first.Keys[1].DeliveryID != "twice" || first.Keys[2].DeliveryID != "twice" {
			t.Fatalf("the list begins with %s", first.text)
		}
		slices.Reverse(want)
		for _, limit := range []int{1, 100, 1000} {
			if got := walk(t, limit, "")[3:]; !slices.Equal(got, want) {
				t.Errorf("limit=%d: the order is %q, want %q", limit, got, want)
			}
		}
	})
}

// repeats is a store that lists each key twice, as SCAN may.
type repeats struct{ Store }

func (r repeats) List(ctx context.Context, cursor string, limit int) ([]idempotency.Listed, string, error) {
	page, next, err := r.Store.List(ctx, cursor, limit)
	return append(page, page...), next, err
}

func TestKeyListedTwice(t *testing.T) {
	o := operate(t, "a")
	for i := range 5 {
		o.Put(t, admintest.Run{ID: fmt.Sprint(i)})
	}
	for _, limit := range []int{2, 100} {
		s := Search{Max: limit, Timeout: time.Minute, Wants: func(*Found) bool { return true }}
		s.Run(t.Context(), []Store{repeats{o}})
		keys := make(map[idempotency.Key]bool)
		for _, f := range s.Result.Found {
			keys[f.Key] = true
		}
		if want := min(limit, 5); len(s.Result.Found) != want || len(keys) != want {
			t.Errorf("of 5 keys, each listed twice, it has %d, %d of them different, want %d", len(s.Result.Found), len(keys), want)
		}
	}
}

// A walk stops when its time is over, and says that it has not seen all.
func TestListTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := operate(t, "a", "default"), operate(t, "b", "default")
		for i := range 3 * walkBatch {
			a.Put(t, admintest.Run{ID: fmt.Sprint(i)})
		}
		b.Put(t, admintest.Run{ID: "elsewhere", State: idempotency.Held})
		a.Delay = WalkTimeout - time.Millisecond
		began := time.Now()
		got := wantAsked(t, "GET", "/dedup/keys?state=held", "", 200)
		if took := time.Since(began); took != 2*a.Delay {
			t.Errorf("it took %v", took)
		}
		if !slices.Equal(got.ids(), []string{"elsewhere"}) || !got.Incomplete || got.Seen != 2*walkBatch+1 {
			t.Errorf("listed %s", got.text)
		}
		a.Delay = FindTimeout + time.Millisecond
		if got := wantAsked(t, "POST", "/dedup/lookup", `{"ids":["elsewhere"]}`, 200); !slices.Equal(got.ids(), []string{"elsewhere"}) {
			t.Errorf("looked up %s", got.text)
		}
		a.Delay = 0
		if got := wantAsked(t, "GET", "/dedup/keys?state=held", "", 200); got.Incomplete || got.Seen != 0 {
			t.Errorf("listed %s", got.text)
		}
	})
}

// In the order of a store, a list of which few records are wanted says where to go on when its
// time is over.
func TestListInStoreOrderTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := operate(t, "a", "default")
		for i := range walkBatch + 10 {
			o.Put(t, admintest.Run{ID: fmt.Sprint(i)})
		}
		o.Put(t, admintest.Run{ID: "wanted", State: idempotency.Held})
		o.Delay = listTimeout
		pages, found := 0, 0
		for cursor := ""; pages == 0 || cursor != ""; pages++ {
			page := wantAsked(t, "GET", "/dedup/keys?state=held&order=store&cursor="+cursor, "", 200)
			found += len(page.Keys)
			cursor = page.Next
		}
		if found != 1 || pages != 2 {
			t.Errorf("%d records in %d pages, want 1 in 2", found, pages)
		}
	})
}

// Keys that were claimed under observe are found by their ID, and marked.
func TestObservedKeys(t *testing.T) {
	o := operate(t, "a", "other", "default")
	o.Put(t, admintest.Run{ID: "7", Route: "enforced"})
	o.Put(t, admintest.Run{Namespace: idempotency.ObservedNamespace("default"), ID: "7", Route: "observed"})
	o.Put(t, admintest.Run{Namespace: idempotency.ObservedNamespace("default"), ID: "7", Parts: []string{"sms"}})
	for method, target := range map[string]string{"GET": "/dedup/keys?delivery_id=7", "POST": "/dedup/lookup"} {
		got := wantAsked(t, method, target, `{"ids":["7"]}`, 200)
		observed := 0
		for _, r := range got.Keys {
			if r.Observed {
				observed++
			}
			if one := wantAsked(t, "GET", "/dedup/keys/"+r.Key, "", 200); strings.Contains(one.text, `"observed":true`) != r.Observed {
				t.Errorf("by its key it is %s", one.text)
			}
		}
		if len(got.Keys) != 3 || observed != 2 {
			t.Errorf("%s %s: %s", method, target, got.text)
		}
	}
	if got := wantAsked(t, "POST", "/dedup/lookup", `{"ids":["7:sms"]}`, 200); len(got.Keys) != 1 || !got.Keys[0].Observed {
		t.Errorf("by its parts it is %s", got.text)
	}
}

// The whole text of an ID counts first. Only if no record has it is it split at colons.
func TestWholeIDBeforeItsParts(t *testing.T) {
	o := operate(t, "a", "default")
	o.Put(t, admintest.Run{ID: "uid", Parts: []string{"sms"}})
	for _, request := range [][3]string{
		{"GET", "/dedup/keys?delivery_id=uid:sms"}, {"POST", "/dedup/lookup", `{"ids":["uid:sms"]}`},
	} {
		if got := wantAsked(t, request[0], request[1], request[2], 200); !slices.Equal(got.ids(), []string{"uid"}) {
			t.Errorf("%s %s: found %s", request[0], request[1], got.text)
		}
	}
	o.Put(t, admintest.Run{ID: "uid:sms", State: idempotency.Held})
	for _, request := range [][3]string{
		{"GET", "/dedup/keys?delivery_id=uid:sms"}, {"POST", "/dedup/lookup", `{"ids":["uid:sms"]}`},
	} {
		if got := wantAsked(t, request[0], request[1], request[2], 200); !slices.Equal(got.ids(), []string{"uid:sms"}) {
			t.Errorf("%s %s: found %s", request[0], request[1], got.text)
		}
	}
	if got := wantAsked(t, "GET", "/dedup/keys?delivery_id=uid:sms&state=in_flight", "", 200); len(got.Keys) != 0 {
		t.Errorf("the state decides what an ID is: %s", got.text)
	}
}

// A record says why its latest run left nothing to replay.
func TestReasonOfARecord(t *testing.T) {
	o := operate(t, "a", "default")
	reasonOf := func(id string) string {
		return wantAsked(t, "GET", "/dedup/keys?delivery_id="+id, "", 200).Keys[0].Reason
	}
	key := o.Put(t, admintest.Run{ID: "failed", State: idempotency.Released, Reason: "EOF"})
	o.Put(t, admintest.Run{ID: "gone", Lease: -time.Hour})
	o.Put(t, admintest.Run{ID: "running"})
	for id, want := range map[string]string{"failed": "EOF", "gone": "the lease was not renewed", "running": ""} {
		if got := reasonOf(id); got != want {
			t.Errorf("%s: %q, want %q", id, got, want)
		}
	}
	wantAsked(t, "POST", "/dedup/keys/"+key.String()+"/release", "", 204)
	if got := reasonOf("failed"); got != "released by 192.0.2.1" {
		t.Errorf("released: %q", got)
	}
}

// A delivery ID is found in the namespaces of all configurations that run.
func TestFindInAllNamespaces(t *testing.T) {
	o := operate(t, "a", "old", "new")
	for _, namespace := range []string{"old", "new", "of others"} {
		o.Put(t, admintest.Run{Namespace: namespace, ID: "7"})
	}
	if got := wantAsked(t, "GET", "/dedup/keys?delivery_id=7", "", 200); len(got.Keys) != 2 {
		t.Errorf("found %+v, want those of two namespaces", got.Keys)
	}
	if got := wantAsked(t, "POST", "/dedup/lookup", `{"ids":["7"]}`, 200); len(got.Keys) != 2 {
		t.Errorf("looked up %+v, want those of two namespaces", got.Keys)
	}
}

func TestListWithUnavailableStore(t *testing.T) {
	a, b := operate(t, "a", "default"), operate(t, "b", "default")
	a.Put(t, admintest.Run{ID: "in a"})
	key := b.Put(t, admintest.Run{ID: "in b", State: idempotency.Held})
	a.Away.Store(true)
	if got := wantAsked(t, "GET", "/dedup/keys", "", 200); !slices.Equal(got.ids(), []string{"in b"}) ||
		len(got.Unavailable) != 1 || !strings.HasSuffix(got.Unavailable[0].Store, " a") || got.Unavailable[0].Error != admintest.ErrAway.Error() {
		t.Errorf("listed %s", got.text)
	}
	if got := wantAsked(t, "GET", "/dedup/keys?order=store", "", 200); !slices.Equal(got.ids(), []string{"in b"}) || len(got.Unavailable) != 1 || got.Next != "" {
		t.Errorf("in the order of the stores it is %s", got.text)
	}
	wantAsked(t, "GET", "/dedup/keys/"+key.String(), "", 200)
	for _, request := range [][3]string{
		{"GET", "/dedup/keys?delivery_id=in+a"},
		{"GET", "/dedup/keys?order=store&state=complete"},
		{"GET", "/dedup/keys?state=complete"},
		{"POST", "/dedup/lookup", `{"ids":["in b"]}`}, // what is missing, nobody knows
		{"GET", "/dedup/keys/" + strings.Repeat("0", 64)},
		{"DELETE", "/dedup/keys/" + strings.Repeat("0", 64)},
		{"GET", "/dedup/ready"},
	} {
		got := wantAsked(t, request[0], request[1], request[2], 503)
		if got.kind != "application/problem+json" || got.Code != "store_unavailable" || got.Status != 503 ||
			!strings.Contains(got.Detail, "a: "+admintest.ErrAway.Error()) {
			t.Errorf("%s %s: %s %s", request[0], request[1], got.kind, got.text)
		}
	}
	if got := askAdmin(t, "GET", "/dedup/ready", ""); len(got.Stores) != 2 || got.Stores[0].Ready || !got.Stores[1].Ready {
		t.Errorf("of the stores it says %+v", got.Stores)
	}
	a.Away.Store(false)
	if got := wantAsked(t, "GET", "/dedup/ready", "", 200); len(got.Stores) != 2 || !got.Stores[0].Ready {
		t.Errorf("of the stores it says %+v", got.Stores)
	}
}

// A store that can be read and has refused a write is ready, with the reason; not beside one that cannot
// be asked.
func TestReadyWithRefusedWrites(t *testing.T) {
	a, b := operate(t, "a", "default"), operate(t, "b", "default")
	key := a.Put(t, admintest.Run{ID: "held", State: idempotency.Held})
	a.Full.Store(true)
	want := func(status int, writes string) {
		t.Helper()
		got := wantAsked(t, "GET", "/dedup/ready", "", status)
		if !strings.HasPrefix(got.Stores[0].Writes, writes) || (got.Stores[0].Writes == "") != (writes == "") || got.Stores[1].Writes != "" ||
			strings.Contains(got.text, `"writes"`) != (writes != "") {
			t.Errorf("got %s, want writes %q", got.text, writes)
		}
	}
	want(200, "")
	if got := wantAsked(t, "POST", "/dedup/keys/"+key.String()+"/release", "", 503); !strings.Contains(got.text, "A store refuses writes") {
		t.Errorf("the release is refused with %s", got.text)
	}
	want(200, idempotency.ErrFull.Error()+" (since 20")
	b.Away.Store(true)
	want(503, idempotency.ErrFull.Error()+" (since 20")
	a.Away.Store(true)
	want(503, "")
}

// A store is away that no configuration uses any more, and that is only open because it was
// away when a run ended. That keeps nobody from the others.
func TestUnusedStoreUnavailable(t *testing.T) {
	a, b := operate(t, "a", "default"), operate(t, "b", "default")
	a.Put(t, admintest.Run{ID: "in a"})
	b.Put(t, admintest.Run{ID: "in b", State: idempotency.Held})
	a.Away.Store(true)
	open[0].Unused = true
	if got := wantAsked(t, "GET", "/dedup/ready", "", 200); len(got.Stores) != 1 || !strings.HasSuffix(got.Stores[0].Store, " b") ||
		len(got.Unused) != 1 || !strings.HasSuffix(got.Unused[0], " a") {
		t.Errorf("of the stores it says %+v, unused %q", got.Stores, got.Unused)
	}
	for _, request := range []struct {
		method, target, body string
		found                []string
	}{
		{"GET", "/dedup/keys", "", []string{"in b"}},
		{"GET", "/dedup/keys?state=complete", "", nil},
		{"POST", "/dedup/lookup", `{"ids":["in b","in a"]}`, []string{"in b"}},
	} {
		got := wantAsked(t, request.method, request.target, request.body, 200)
		if !slices.Equal(got.ids(), request.found) || len(got.Unavailable) != 1 || !strings.HasSuffix(got.Unavailable[0].Store, " a") {
			t.Errorf("%s %s: %s", request.method, request.target, got.text)
		}
	}
	a.Away.Store(false)
	if got := wantAsked(t, "POST", "/dedup/lookup", `{"ids":["in a"]}`, 200); !slices.Equal(got.ids(), []string{"in a"}) || got.Unavailable != nil {
		t.Errorf("with the store it has %s", got.text)
	}
}

// Where no store is open, nobody knows which keys there are.
func TestNoStoreIsOpen(t *testing.T) {
	for _, request := range [][3]string{
		{"GET", "/dedup/ready"},
		{"GET", "/dedup/keys"},
		{"POST", "/dedup/lookup", `{"ids":["1"]}`},
		{"GET", "/dedup/keys/" + strings.Repeat("0", 64)},
		{"DELETE", "/dedup/keys/" + strings.Repeat("0", 64)},
	} {
		if got := wantAsked(t, request[0], request[1], request[2], 503); !strings.Contains(got.Detail, "no store is open") {
			t.Errorf("%s %s: it says %s", request[0], request[1], got.text)
		}
	}
}

// A lookup with bodies has those that are small and JSON.
func TestLookupWithBodies(t *testing.T) {
	o := operate(t, "a", "default")
	o.Put(t, admintest.Run{ID: "running"})
	o.Put(t, admintest.Run{ID: "text", State: idempotency.Complete})
	o.Put(t, admintest.Run{ID: "json", State: idempotency.Complete, Status: 201, Header: map[string][]string{"Content-Type": {"application/json"}}, Body: `{"id": 1}`})
	for query, want := range map[string]string{"": "", "?body=false": "", "?body=true": `json={"id": 1}`} {
		got := ""
		for _, r := range wantAsked(t, "POST", "/dedup/lookup"+query, `{"ids":["running","text","json"]}`, 200).Keys {
			if r.Response != nil {
				got += r.DeliveryID + "=" + r.Response.Body
			}
		}
		if got != want {
			t.Errorf("%q shows the bodies %q, want %q", query, got, want)
		}
	}
}

func TestLookupOfManyIDs(t *testing.T) {
	o := operate(t, "a", "default")
	o.Put(t, admintest.Run{Provider: "github", ID: "1", State: idempotency.Complete})
	o.Put(t, admintest.Run{Provider: "stripe", ID: "1", Route: "/other"})
	o.Put(t, admintest.Run{Provider: "stripe", ID: "2"})
	o.Damaged[o.Put(t, admintest.Run{Provider: "github", ID: "3"})] = true
	o.Put(t, admintest.Run{ID: "uid", Parts: []string{"mail"}})
	o.Put(t, admintest.Run{ID: "uid", Parts: []string{"sms"}})
	for body, want := range map[string][2][]string{
		`{"ids":["1","4","2","1","4"]}`:            {{"1", "1", "2"}, {"4"}},
		`{"ids":["2","1"],"provider":"github"}`:    {{"1"}, {"2"}},
		`{"ids":["3"],"provider":"github"}`:        {{"3"}, {}},
		`{"ids":["<b>","\u0007"],"provider":null}`: {{}, {"<b>", "\a"}},
		`{"ids":["uid:sms","uid:fax"]}`:            {{"uid"}, {"uid:fax"}},
		`{"ids":["uid","uid:sms","uid:fax"]}`:      {{"uid", "uid"}, {"uid:fax"}},
		`{"ids":["\ud83d\ude00","\ufffd"]}`:        {{}, {"\U0001f600", "\ufffd"}},
	} {
		got := wantAsked(t, "POST", "/dedup/lookup", body, 200)
		if !slices.Equal(got.ids(), want[0]) || !slices.Equal(got.Missing, want[1]) {
			t.Errorf("%s: found %q, missing %q; want %q", body, got.ids(), got.Missing, want)
		}
	}
}
