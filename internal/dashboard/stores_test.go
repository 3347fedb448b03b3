package dashboard

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// The newest records are listed and the oldest alerts are shown, in whatever order the
// stores list them. All are counted, and every store is read.
func TestManyKeysOfTwoStores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		second := r.open("store two")
		for i := range 3000 {
			p := put{provider: "github", id: fmt.Sprint("delivery-", i), state: idempotency.Complete, status: 200}
			switch {
			case i%250 == 7:
				p.state, p.status = idempotency.Held, 0
			case i%100 == 3:
				p.state, p.status = idempotency.Released, 500
			}
			r.store.put(t, p)
			time.Sleep(time.Millisecond) // records have no finer time
		}
		second.put(t, put{id: "elsewhere", state: idempotency.Held})
		time.Sleep(time.Millisecond)
		r.store.put(t, put{id: "the newest"})
		a := r.want(http.StatusOK, "")
		rows := a.has("deliveries", "tr")[1:]
		if len(rows) != maxRows || !strings.Contains(textOf(rows[0]), "the newest") || !strings.Contains(textOf(rows[1]), "elsewhere") || !strings.Contains(textOf(rows[2]), "delivery-2999") {
			t.Errorf("%d rows, the first %s", len(rows), textOf(rows[0]))
		}
		got := a.words("attention")
		for _, want := range []string{"13 held", "delivery-7 github", "delivery-1007 github", "30 failing", "delivery-3 github", "delivery-403 github"} {
			if !strings.Contains(got, want) {
				t.Errorf("%s does not need attention: %s", want, got)
			}
		}
		if strings.Contains(got, "delivery-1257") || strings.Contains(got, "delivery-503") {
			t.Errorf("too much needs attention: %s", got)
		}
		if len(a.text) > 200<<10 {
			t.Errorf("the page has %d bytes", len(a.text))
		}
		for query, want := range map[string]string{
			"":                                 "the newest 100 of 3 002",
			"state=held":                       "Deliveries 13 ",
			"state=attention":                  "Deliveries 43 ",
			"state=held&provider=github":       "Deliveries 12 ",
			"provider=github":                  "the newest 100 of 3 000",
			"state=in_flight":                  "Deliveries 1 ",
			"state=in_flight&provider=shopify": "No delivery like that",
		} {
			if got := r.want(http.StatusOK, query).words("deliveries"); !strings.Contains(got, want) || strings.Contains(got, "There are more keys") {
				t.Errorf("?%s lists %.200s, want %s", query, got, want)
			}
		}
	})
}

// A slow store takes no time from another one, and no view reads for longer than its time.
func TestScanTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		slow := r.open("store two")
		for i := range 3 * batch {
			r.store.put(t, put{id: fmt.Sprint(i), state: idempotency.Held})
			slow.put(t, put{id: fmt.Sprint("slow ", i), state: idempotency.Held})
		}
		slow.delay = scanTime - time.Millisecond
		began := time.Now()
		a := r.want(http.StatusOK, "")
		if took := time.Since(began); took != 2*slow.delay {
			t.Errorf("it took %v", took)
		}
		if got := a.words("attention"); !strings.Contains(got, "2 500 held") {
			t.Errorf("needs attention: %s", got)
		}
		if got := a.words("deliveries"); !strings.Contains(got, "There are more keys than the 2 500 that were read: not all of store two.") {
			t.Errorf("the list says %.300s", got)
		}
		if got := r.want(http.StatusOK, "q=nothing").words("deliveries"); !strings.Contains(got, "Execution IDs were only searched among the keys that were read") {
			t.Errorf("a search says %.300s", got)
		}
	})
}

func TestTopKeepsTheFirst(t *testing.T) {
	now := time.Now()
	kept := top{max: 50, compare: newest}
	const many = 1000
	for range 2 { // a store may list a key twice
		for i := range many {
			at := now.Add(time.Duration(i*7919%many) * time.Second)
			kept.add(&entry{key: idempotency.Key{byte(i >> 8), byte(i)}, record: &idempotency.Record{Claimed: at}})
		}
	}
	if len(kept.entries) != kept.max {
		t.Errorf("it keeps %d", len(kept.entries))
	}
	for i, e := range kept.entries {
		if want := now.Add(time.Duration(many-1-i) * time.Second); !e.record.Claimed.Equal(want) {
			t.Fatalf("entry %d is of %v, want %v", i, e.record.Claimed, want)
		}
	}
}

func TestStoreUnavailable(t *testing.T) {
	r := newRig(t)
	key := r.store.put(t, put{id: "one", state: idempotency.Held})
	r.store.unavailable.Store(true)
	a := r.want(http.StatusOK, "")
	if got := a.words("said"); !strings.Contains(got, "store one: the <store> is unavailable. Its keys") {
		t.Errorf("it says %q", got)
	}
	if got := a.words("attention"); !strings.Contains(got, "Nothing among the keys that were read") {
		t.Errorf("needs attention: %s", got)
	}
	for _, query := range []string{"key=" + key.String(), "q=one", "q=" + strings.Repeat("0", 64)} {
		a := r.want(http.StatusServiceUnavailable, query)
		if a.Result().Header.Get("Retry-After") == "" {
			t.Errorf("?%s: no Retry-After", query)
		}
		if got := a.words("main"); strings.Contains(got, "never") {
			t.Errorf("?%s: it says %s", query, got)
		}
	}

	other := r.open("store two")
	other.put(t, put{id: "two", state: idempotency.Held})
	if a = r.want(http.StatusServiceUnavailable, "q=two"); !strings.Contains(a.words("delivery"), "two held") || !strings.Contains(a.words("said"), "The search is incomplete") {
		t.Errorf("found is %s: %s", a.words("delivery"), a.words("said"))
	}
	r.store.unavailable.Store(false)
	if a = r.want(http.StatusOK, ""); a.words("said") != "" || !strings.Contains(a.words("attention"), "2 held") {
		t.Errorf("the store is back, and the page says %q, %s", a.words("said"), a.words("attention"))
	}
}

func TestSearch(t *testing.T) {
	r := newRig(t)
	key := r.store.put(t, put{provider: "github", id: "one", route: "/a", state: idempotency.Complete, status: 201})
	r.store.put(t, put{provider: "stripe", id: "two", route: "/a"})
	r.store.put(t, put{provider: "github", id: "two", route: "/b"})
	broken := r.store.put(t, put{id: "broken"})
	r.store.damaged[broken] = true
	for query, want := range map[string]struct {
		status       int
		opened, list string
	}{
		"q=one":                          {200, "one complete", "Found 1 All deliveries"},
		"q=+one+":                        {200, "one complete", "Found 1 All deliveries"},
		"q=" + key.String():              {200, "one complete", "Found All deliveries"},
		"q=two":                          {200, "", "two stripe"},
		"q=execution+of+one%2Fa":         {200, "one complete", "one github"},
		"q=three":                        {200, "", "No delivery with this ID"},
		"q=on":                           {200, "", "No delivery with this ID"},
		"q=+":                            {200, "", "No delivery with this ID"},
		"q=broken":                       {200, "unreadable", "unreadable"},
		"key=" + broken.String():         {200, "record cannot be read: it is <damaged>", "Deliveries 4"},
		"key=" + strings.Repeat("0", 64): {404, "", "Deliveries 4"},
	} {
		a := r.want(want.status, query)
		if !strings.Contains(a.words("delivery"), want.opened) || (want.opened == "") != (a.byID("delivery") == nil) {
			t.Errorf("?%s opens %q, want %q", query, a.words("delivery"), want.opened)
		}
		if !strings.Contains(a.words("deliveries"), want.list) {
			t.Errorf("?%s lists %q, want %q", query, a.words("deliveries"), want.list)
		}
	}
}

// Whatever bytes a delivery ID has, the page finds it.
func TestSearchFindsEachID(t *testing.T) {
	r := newRig(t)
	for _, id := range []string{
		strings.Repeat("5eed", 16), strings.Repeat("A", 64), strings.Repeat("long ", 800), "\u2028", " ", " leading", "trailing\t", "\u00a0", "inner  space",
	} {
		r.store.put(t, put{id: id, state: idempotency.Held})
		if got := r.want(http.StatusOK, url.Values{"q": {id}}.Encode()).words("delivery"); !strings.Contains(got, "held") {
			t.Errorf("%.80q: found is %q", id, got)
		}
	}
	// A key comes before a delivery ID with the same text.
	key := r.store.put(t, put{id: "first", state: idempotency.Complete, status: 200})
	r.store.put(t, put{id: key.String(), state: idempotency.Held})
	for _, q := range []string{key.String(), " " + key.String() + "\n"} {
		if a := r.want(http.StatusOK, url.Values{"q": {q}}.Encode()); !strings.Contains(a.words("delivery"), "first complete") {
			t.Errorf("%q: found is %q", q, a.words("delivery"))
		}
	}
	if a := r.want(http.StatusNotFound, "q="+strings.Repeat("0", 64)); !strings.Contains(a.words("said"), "No store has a record of this key") {
		t.Errorf("an unknown key: %q", a.words("said"))
	}
	long := newRig(t).want(http.StatusBadRequest, "q="+strings.Repeat("x", maxQuery+1))
	if got := long.words("said"); !strings.Contains(got, "too long") || len(long.text) > 100<<10 {
		t.Errorf("a text that is too long: %q", got)
	}
}

func TestSearchForAnIDOfManyRecords(t *testing.T) {
	r := newRig(t)
	for n := range maxRows + 1 {
		r.store.put(t, put{id: "many", route: strconv.Itoa(n), state: idempotency.Held})
	}
	open := r.enter()
	defer leave(open)
	found, err := find(t.Context(), open, "many")
	if len(found.entries) != maxRows || found.count != maxRows+1 || err != nil {
		t.Errorf("%d of %d records are shown: %v", len(found.entries), found.count, err)
	}
	if !slices.IsSortedFunc(found.entries, newest) {
		t.Error("they are not sorted")
	}
}

// The stores are left before the page is written: a client may read it slowly.
func TestStoresAreLeftBeforeWriting(t *testing.T) {
	r := newRig(t)
	key := r.store.put(t, put{id: "held", state: idempotency.Held})
	for _, target := range []string{"/", "/?key=" + key.String(), "/?q=held", "/?q=none"} {
		wrote := false
		w := &writer{httptest.NewRecorder(), func() {
			wrote = true
			if n := r.all[0].users.Load(); n != 0 {
				t.Errorf("%s: the store has %d users while the page is written", target, n)
			}
		}}
		r.page.ServeHTTP(w, httptest.NewRequest(http.MethodGet, target, nil))
		if !wrote {
			t.Errorf("%s: nothing was written", target)
		}
	}
}

type writer struct {
	*httptest.ResponseRecorder
	writes func()
}

func (w *writer) Write(p []byte) (int, error) {
	w.writes()
	return w.ResponseRecorder.Write(p)
}
