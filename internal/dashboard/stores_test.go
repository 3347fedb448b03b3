package dashboard

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/admin/admintest"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// The newest records are listed and the newest alerts are shown, in whatever order the
// stores list them. All are counted, and every store is read.
func TestManyKeysOfTwoStores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		second := r.open("two")
		for i := range 3000 {
			p := admintest.Run{Provider: "github", ID: fmt.Sprint("delivery-", i), State: idempotency.Complete, Status: 200}
			switch {
			case i%250 == 7:
				p.State, p.Status = idempotency.Held, 0
			case i%100 == 3:
				p.State, p.Status = idempotency.Released, 500
			}
			r.store.Put(t, p)
			time.Sleep(time.Millisecond) // records have no finer time
		}
		second.Put(t, admintest.Run{ID: "elsewhere", State: idempotency.Held})
		time.Sleep(time.Millisecond)
		r.store.Put(t, admintest.Run{ID: "the newest"})
		a := r.want(http.StatusOK, "")
		rows := a.has("deliveries", "tr")[1:]
		if len(rows) != maxRows || !strings.Contains(textOf(rows[0]), "the newest") || !strings.Contains(textOf(rows[1]), "elsewhere") || !strings.Contains(textOf(rows[2]), "delivery-2999") {
			t.Errorf("%d rows, the first %s", len(rows), textOf(rows[0]))
		}
		got := a.words("attention")
		for _, want := range []string{"13 held", "elsewhere", "delivery-2007 github", "30 failing", "delivery-2903 github", "delivery-2503 github"} {
			if !strings.Contains(got, want) {
				t.Errorf("%s does not need attention: %s", want, got)
			}
		}
		if strings.Contains(got, "delivery-1757") || strings.Contains(got, "delivery-2403") {
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
			"provider=api":                     "Deliveries 2 ", // those without one
			"status=500":                       "Deliveries 30 ",
			"status=5xx&state=attention":       "Deliveries 30 ",
			"status=404":                       "No delivery like that",
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
		slow := r.open("two")
		for i := range 3 * 500 {
			r.store.Put(t, admintest.Run{ID: fmt.Sprint(i), State: idempotency.Held})
			slow.Put(t, admintest.Run{ID: fmt.Sprint("slow ", i), State: idempotency.Held})
		}
		slow.Delay = scanTimeout - time.Millisecond
		began := time.Now()
		a := r.want(http.StatusOK, "")
		if took := time.Since(began); took != 2*slow.Delay {
			t.Errorf("it took %v", took)
		}
		if got := a.words("attention"); !strings.Contains(got, "2 500 held") {
			t.Errorf("needs attention: %s", got)
		}
		if got := a.words("deliveries"); !strings.Contains(got, "There are more keys than the 2 500 that were read: not all of store two.") {
			t.Errorf("the list says %.300s", got)
		}
		if got := r.want(http.StatusOK, "q=nothing").words("said"); !strings.Contains(got, "Execution IDs and digits of keys were only searched among the keys that were read") {
			t.Errorf("a search says %.300s", got)
		}
	})
}

func TestStoreUnavailable(t *testing.T) {
	r := newRig(t)
	key := r.store.Put(t, admintest.Run{ID: "one", State: idempotency.Held})
	r.store.Away.Store(true)
	a := r.want(http.StatusOK, "")
	if got := a.words("said"); !strings.Contains(got, "The store is not ready. the <store> is away.") || strings.Count(got, "away") != 1 {
		t.Errorf("it says %q", got)
	}
	if got := a.words("attention"); !strings.Contains(got, "No key of those that were read") {
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

	other := r.open("two")
	other.Put(t, admintest.Run{ID: "two", State: idempotency.Held})
	if got := r.want(http.StatusOK, "").words("said"); got != "The store is not ready. store one: the <store> is away." {
		t.Errorf("beside another store it says %q", got)
	}
	if a = r.want(http.StatusServiceUnavailable, "q=two"); !strings.Contains(a.words("delivery"), "two held") || !strings.Contains(a.words("said"), "The search is incomplete") {
		t.Errorf("found is %s: %s", a.words("delivery"), a.words("said"))
	}
	r.store.Away.Store(false)
	if a = r.want(http.StatusOK, ""); a.words("said") != "" || !strings.Contains(a.words("attention"), "2 held") {
		t.Errorf("the store is back, and the page says %q, %s", a.words("said"), a.words("attention"))
	}
}

// A store that refuses writes can be read, and has no key that needs attention.
func TestStoreRefusesWrites(t *testing.T) {
	r := newRig(t)
	key := r.store.Put(t, admintest.Run{ID: "one", State: idempotency.Complete})
	r.store.Full.Store(true)
	if err := r.store.Release(t.Context(), key, idempotency.Precondition{}); err == nil {
		t.Fatal("a full store takes a write")
	}
	a := r.want(http.StatusOK, "")
	if got := a.words("said"); !strings.HasPrefix(got, "The store refuses writes. "+idempotency.ErrFull.Error()+" (since 20") {
		t.Errorf("it says %q", got)
	}
	if got := textOf(a.has("", "title")[0]); !strings.HasPrefix(got, "The store refuses writes · ") {
		t.Errorf("the title is %q", got)
	}
	if got := r.want(http.StatusOK, "q=two").words("said"); !strings.Contains(got, "Nothing found. It never arrived") {
		t.Errorf("of an ID that it has not, it says %q", got)
	}
	r.store.Unused = true // by a configuration, so that no request asks it
	if got := r.want(http.StatusOK, "").words("said"); got != "" {
		t.Errorf("of a store out of use it says %q", got)
	}
}

// What has failed in the last hour stands before what has failed longer ago, the newest first.
func TestFailuresOfTheLastHourFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		for _, run := range []admintest.Run{
			{ID: "held before", State: idempotency.Held}, {ID: "failed before", State: idempotency.Released, Status: 500}, {}, {},
			{ID: "failed", State: idempotency.Released, Status: 500}, {ID: "failed again", State: idempotency.Released, Status: 500},
		} {
			if run.ID == "" {
				time.Sleep(31 * time.Minute)
				continue
			}
			run.Retention = 24 * time.Hour
			r.store.Put(t, run)
			time.Sleep(time.Millisecond)
		}
		for _, limited := range []bool{false, true} {
			r.page.LimitsAttempts = func() bool { return limited }
			got := r.want(http.StatusOK, "").words("attention")
			last := -1
			for _, text := range []string{"2 failing", "failed again ", "failed ", "For more than an hour", "1 held", "held before", "1 failing", "failed before"} {
				at := last + 1 + strings.Index(got[last+1:], text)
				if at <= last {
					t.Fatalf("%q is missing or too early: %s", text, got)
				}
				last = at
			}
			if strings.Contains(got, "no attempt is left") != limited {
				t.Errorf("limited: %v: it says %s", limited, got)
			}
		}
	})
}

func TestSearch(t *testing.T) {
	r := newRig(t)
	key := r.store.Put(t, admintest.Run{Provider: "github", ID: "one", Route: "/a", State: idempotency.Complete, Status: 201})
	r.store.Put(t, admintest.Run{Provider: "stripe", ID: "two", Route: "/a"})
	r.store.Put(t, admintest.Run{Provider: "github", ID: "two", Route: "/b"})
	broken := r.store.Put(t, admintest.Run{ID: "broken"})
	r.store.Damaged[broken] = true
	for query, want := range map[string]struct {
		status       int
		opened, list string
	}{
		"q=one":                          {200, "one complete", "Found 1 All deliveries"},
		"q=+one+":                        {200, "one complete", "Found 1 All deliveries"},
		"q=" + key.String():              {200, "one complete", "Found All deliveries"},
		"q=two":                          {200, "", "two stripe"},
		"q=" + key.String()[16:32]:       {200, "one complete", "one github"},
		"q=execution+of+one%2Fa":         {200, "one complete", "one github"},
		"q=three":                        {200, "", "Found All deliveries No delivery."},
		"q=on":                           {200, "", "Found All deliveries No delivery."},
		"q=+":                            {200, "", "Found All deliveries No delivery."},
		"q=broken":                       {200, "unreadable", "unreadable"},
		"key=" + broken.String():         {200, "record cannot be read: it is <damaged>", "Deliveries 4"},
		"key=" + strings.Repeat("0", 64): {404, "", "Deliveries 4"},
	} {
		a := r.want(want.status, query)
		if !strings.Contains(a.words("delivery"), want.opened) || (want.opened == "") != (a.byID("delivery") == nil) {
			t.Errorf("?%s opens %q, want %q", query, a.words("delivery"), want.opened)
		}
		nothing := strings.HasSuffix(want.list, "No delivery.")
		if got := a.words("said"); strings.HasPrefix(got, "Nothing found. It never arrived") != nothing {
			t.Errorf("?%s: above all it says %q", query, got)
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
		r.store.Put(t, admintest.Run{ID: id, State: idempotency.Held})
		if got := r.want(http.StatusOK, url.Values{"q": {id}}.Encode()).words("delivery"); !strings.Contains(got, "held") {
			t.Errorf("%.80q: found is %q", id, got)
		}
	}
	// A key comes before a delivery ID with the same text.
	key := r.store.Put(t, admintest.Run{ID: "first", State: idempotency.Complete, Status: 200})
	r.store.Put(t, admintest.Run{ID: key.String(), State: idempotency.Held})
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

// Each page of the list begins behind the one before, also that of a search.
func TestPagesOfTheList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		for i := range 2*maxRows + 5 {
			r.store.Put(t, admintest.Run{ID: "many", Route: strconv.Itoa(i), Path: fmt.Sprint("/", i), State: idempotency.Held})
			time.Sleep(time.Millisecond)
		}
		for _, query := range []string{"state=held", "q=many"} {
			next := 2*maxRows + 4
			for _, rows := range []int{maxRows, maxRows, 5} {
				a := r.want(http.StatusOK, query)
				all := a.has("deliveries", "tr")[1:]
				if len(all) != rows {
					t.Fatalf("?%s: %d rows, want %d", query, len(all), rows)
				}
				for _, row := range all {
					if !strings.Contains(textOf(row), fmt.Sprintf("/%d ", next)) {
						t.Fatalf("?%s: the row is %s, want /%d", query, textOf(row), next)
					}
					next--
				}
				query = a.link("Older")
			}
			if query != "" || next != -1 {
				t.Errorf("after the last page comes %q; %d are missing", query, next+1)
			}
		}
		if a := r.want(http.StatusBadRequest, "after=x"); len(a.has("deliveries", "tr")) != maxRows+1 {
			t.Errorf("an unknown page shows %s", a.words("deliveries"))
		}
	})
}

// A row says what was sent where, and why nothing of it is replayed. What was only observed is
// marked, found, and needs nobody.
func TestRows(t *testing.T) {
	r := newRig(t)
	r.store.Put(t, admintest.Run{ID: "uid", Parts: []string{"sms", "7"}, Scope: []string{"/tenant=shop"}, Path: "/notify", State: idempotency.Held, Reason: "EOF"})
	for _, id := range []string{"attention", "deliveries"} {
		if got := r.want(http.StatusOK, "").words(id); !strings.Contains(got, "uid sms, 7, /tenant=shop POST example.com/notify EOF") {
			t.Errorf("%s: %s", id, got)
		}
	}
	opened := r.want(http.StatusOK, "q=uid").words("delivery")
	for _, want := range []string{"Parts sms, 7", "Scope /tenant=shop", "Request POST example.com/notify", "Reason EOF"} {
		if !strings.Contains(opened, want) {
			t.Errorf("the record has no %q: %s", want, opened)
		}
	}
	r.store.Put(t, admintest.Run{ID: "seen", Namespace: idempotency.ObservedNamespace("default"), State: idempotency.Held})
	a := r.want(http.StatusOK, "q=seen")
	if got := a.words("delivery"); !strings.Contains(got, "held observed") {
		t.Errorf("observed is %s", got)
	}
	if got := a.words("attention"); strings.Contains(got, "seen") || !strings.Contains(got, "1 held") {
		t.Errorf("needs attention: %s", got)
	}
}

// The stores are left before the page is written: a client may read it slowly.
func TestStoresAreLeftBeforeWriting(t *testing.T) {
	r := newRig(t)
	key := r.store.Put(t, admintest.Run{ID: "held", State: idempotency.Held})
	for _, target := range []string{"/", "/?key=" + key.String(), "/?q=held", "/?q=none"} {
		wrote := false
		w := &writer{httptest.NewRecorder(), func() {
			wrote = true
			if n := r.all[0].Users(); n != 0 {
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
