package admin

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

func TestListByFilters(t *testing.T) {
	o := operate(t, "one", "default")
	for _, c := range []claimed{
		{provider: "github", id: "running"},
		{provider: "github", id: "gone", lease: -time.Hour},
		{provider: "github", id: "done", state: idempotency.Complete},
		{provider: "stripe", id: "done", state: idempotency.Complete, route: "/other"},
		{id: "failed", path: "/orders", state: idempotency.Released},
		{id: "unknown", state: idempotency.Held},
	} {
		o.put(t, c)
	}
	o.damaged[o.put(t, claimed{provider: "github", id: "broken"})] = true
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
		"older_than=1h":                     {},
		"newer_than=1h&state=held":          {"unknown"},
		"newer_than=1d&older_than=1h":       {},
	} {
		if got := wantAsked(t, "GET", "/dedup/keys?"+query, "", 200); !slices.Equal(got.ids(), want) || got.Next != "" {
			t.Errorf("%q lists %q with next %q, want %q", query, got.ids(), got.Next, want)
		}
	}
	broken := wantAsked(t, "GET", "/dedup/keys?delivery_id=broken", "", 200).Keys[0]
	if broken.State != "unreadable" || !strings.Contains(broken.Unreadable, "it is damaged") {
		t.Errorf("a record that cannot be read is shown as %+v", broken)
	}
	if again := askAdmin(t, "GET", "/dedup/keys/"+broken.Key, ""); again.status != 200 || !strings.Contains(again.text, "it is damaged") {
		t.Errorf("asked for by its key it is %d %s", again.status, again.text)
	}
}

// Keys of two delivery IDs can begin alike, by chance: then the ID itself decides.
func TestFilterByTheIDItself(t *testing.T) {
	filter := keyFilter{deliveryID: "1"}
	for id, want := range map[string]bool{"1": true, "2": false} {
		if got := filter.wants(Record{State: "held", DeliveryID: id}, time.Now()); got != want {
			t.Errorf("looking for 1 it takes %s: %v", id, got)
		}
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
		if got := c.filter.wants(Record{State: "held", Claimed: now.Add(-c.age)}, now); got != c.want {
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
		c := claimed{id: "same", route: fmt.Sprint(i)}
		if i%2 == 0 {
			c.state = idempotency.Held
		}
		want[o.put(t, c).String()] = c.state == idempotency.Held
	}
	if page := wantAsked(t, "GET", "/dedup/keys", "", 200); len(page.Keys) != 100 || page.Next == "" {
		t.Errorf("without a limit a page has %d keys, and %q is next; want 100, and a next one", len(page.Keys), page.Next)
	}
	for _, limit := range []int{1, 7, 40, 120, 1000} {
		for query, half := range map[string]bool{"": false, "&delivery_id=same": false, "&state=held": true} {
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

// A list of which few records are wanted stops when its time is over, and says where to
// go on.
func TestListThatIsOutOfTimeSaysWhereToGoOn(t *testing.T) {
	o := operate(t, "a", "default")
	for i := range listBatch + 10 {
		o.put(t, claimed{id: fmt.Sprint(i)})
	}
	o.put(t, claimed{id: "wanted", state: idempotency.Held})
	entered := enterAll()
	defer leaveAll(entered)
	var found []Record
	from, pages := listCursor{}, 0
	for more := true; more; pages++ {
		l := listing{keyFilter: keyFilter{states: []string{"held"}}, limit: 10} // its time is over
		page, err := l.page(t.Context(), entered, from)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, page.Keys...)
		if more = page.Next != ""; more {
			if from, err = parseListCursor(page.Next); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(found) != 1 || pages != 2 {
		t.Errorf("%d records in %d pages, want 1 in 2", len(found), pages)
	}
}

// A delivery ID is found in the namespaces of all configurations that run.
func TestFindInAllNamespaces(t *testing.T) {
	o := operate(t, "a", "old", "new")
	for _, namespace := range []string{"old", "new", "of others"} {
		o.put(t, claimed{namespace: namespace, id: "7"})
	}
	if got := wantAsked(t, "GET", "/dedup/keys?delivery_id=7", "", 200); len(got.Keys) != 2 {
		t.Errorf("found %+v, want those of two namespaces", got.Keys)
	}
	if got := wantAsked(t, "POST", "/dedup/lookup", `{"ids":["7"]}`, 200); len(got.Keys) != 2 {
		t.Errorf("looked up %+v, want those of two namespaces", got.Keys)
	}
}

func TestListWhileAStoreIsAway(t *testing.T) {
	a, b := operate(t, "a", "default"), operate(t, "b", "default")
	a.put(t, claimed{id: "in a"})
	key := b.put(t, claimed{id: "in b", state: idempotency.Held})
	a.away.Store(true)
	if got := wantAsked(t, "GET", "/dedup/keys", "", 200); !slices.Equal(got.ids(), []string{"in b"}) ||
		len(got.Unasked) != 1 || !strings.HasSuffix(got.Unasked[0].Store, " a") || got.Unasked[0].Error != errAway.Error() {
		t.Errorf("listed %s", got.text)
	}
	wantAsked(t, "GET", "/dedup/keys/"+key.String(), "", 200)
	for _, request := range [][3]string{
		{"GET", "/dedup/keys?delivery_id=in+a"},
		{"GET", "/dedup/keys?state=complete"},
		{"POST", "/dedup/lookup", `{"ids":["in b"]}`}, // what is missing, nobody knows
		{"GET", "/dedup/keys/" + strings.Repeat("0", 64)},
		{"DELETE", "/dedup/keys/" + strings.Repeat("0", 64)},
		{"GET", "/dedup/ready"},
	} {
		got := wantAsked(t, request[0], request[1], request[2], 503)
		if got.kind != "application/problem+json" || got.Code != "store_unavailable" || got.Status != 503 ||
			!strings.Contains(got.Detail, "a: "+errAway.Error()) {
			t.Errorf("%s %s: %s %s", request[0], request[1], got.kind, got.text)
		}
	}
	if got := askAdmin(t, "GET", "/dedup/ready", ""); len(got.Stores) != 2 || got.Stores[0].Ready || !got.Stores[1].Ready {
		t.Errorf("of the stores it says %+v", got.Stores)
	}
	a.away.Store(false)
	if got := wantAsked(t, "GET", "/dedup/ready", "", 200); len(got.Stores) != 2 || !got.Stores[0].Ready {
		t.Errorf("of the stores it says %+v", got.Stores)
	}
}

// A store is away that no configuration uses any more, and that is only open because it was
// away when a run ended. That keeps nobody from the others.
func TestStoreOutOfUseIsAway(t *testing.T) {
	a, b := operate(t, "a", "default"), operate(t, "b", "default")
	a.put(t, claimed{id: "in a"})
	b.put(t, claimed{id: "in b", state: idempotency.Held})
	a.away.Store(true)
	open[0].unused = true
	if got := wantAsked(t, "GET", "/dedup/ready", "", 200); len(got.Stores) != 1 || !strings.HasSuffix(got.Stores[0].Store, " b") {
		t.Errorf("of the stores it says %+v", got.Stores)
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
		if !slices.Equal(got.ids(), request.found) || len(got.Unasked) != 1 || !strings.HasSuffix(got.Unasked[0].Store, " a") {
			t.Errorf("%s %s: %s", request.method, request.target, got.text)
		}
	}
	a.away.Store(false)
	if got := wantAsked(t, "POST", "/dedup/lookup", `{"ids":["in a"]}`, 200); !slices.Equal(got.ids(), []string{"in a"}) || got.Unasked != nil {
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
	o.put(t, claimed{id: "running"})
	o.put(t, claimed{id: "text", state: idempotency.Complete})
	o.put(t, claimed{id: "json", state: idempotency.Complete, json: `{"id": 1}`})
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
	o.put(t, claimed{provider: "github", id: "1", state: idempotency.Complete})
	o.put(t, claimed{provider: "stripe", id: "1", route: "/other"})
	o.put(t, claimed{provider: "stripe", id: "2"})
	o.damaged[o.put(t, claimed{provider: "github", id: "3"})] = true
	o.put(t, claimed{id: "uid", part: "mail"})
	o.put(t, claimed{id: "uid", part: "sms"})
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

// A page has the newest claim first, and at its end what has no time of its own.
func TestPageHasTheNewestFirst(t *testing.T) {
	at := time.Now()
	l := listing{found: []Record{{Key: "unreadable"}, {Key: "old", Claimed: at.Add(-time.Hour)}, {Key: "new", Claimed: at}}}
	var keys []string
	for _, r := range l.upTo(nil).Keys {
		keys = append(keys, r.Key)
	}
	if want := []string{"new", "old", "unreadable"}; !slices.Equal(keys, want) {
		t.Errorf("the page has %q, want %q", keys, want)
	}
}
