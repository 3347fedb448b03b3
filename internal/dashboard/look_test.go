package dashboard

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

func TestTenThousandKeys(t *testing.T) {
	r := newRig(t)
	for i := range 10_000 {
		p := put{provider: "github", id: fmt.Sprint("delivery-", i), state: idempotency.Complete, status: 200}
		switch {
		case i%1000 == 7:
			p.state, p.status = idempotency.Held, 0
		case i%500 == 3:
			p.state, p.status = idempotency.Released, 500
		}
		r.store.put(t, p)
	}
	a := r.want(http.StatusOK, "")
	asked := r.store.asked.Load()
	if asked > 10_000/walkBatch+1 {
		t.Errorf("the store was asked %d times", asked)
	}
	if rows := len(a.has("deliveries", "tr")) - 1; rows != mostRows {
		t.Errorf("%d rows", rows)
	}
	if len(a.text) > 200<<10 {
		t.Errorf("the page has %d bytes", len(a.text))
	}
	if got := a.words("attention"); !strings.Contains(got, "10 held 20 failing") || !strings.Contains(got, "All 30 that need attention") {
		t.Errorf("needs attention: %s", got)
	}
	if got := a.words("deliveries"); !strings.Contains(got, "1–50 of 10 000") || strings.Contains(got, "There are more keys") {
		t.Errorf("the list says %.200s", got)
	}
	seen := make(map[string]bool)
	for query, pages := "state=attention&page=1", 0; query != ""; pages++ {
		a = r.want(http.StatusOK, query)
		for _, n := range a.has("deliveries", "a") {
			if strings.HasPrefix(textOf(n), "delivery-") {
				seen[textOf(n)] = true
			}
		}
		if query = a.link("Older"); pages > 9 {
			t.Fatal("the list has no end")
		}
	}
	if len(seen) != 30 {
		t.Errorf("the pages have %d that need attention, want 30", len(seen))
	}
	if a = r.want(http.StatusOK, "page=200"); a.link("Older") != "" || !strings.Contains(a.words("deliveries"), "9 951–10 000 of") {
		t.Errorf("the last page says %.200s", a.words("deliveries"))
	}
	a = r.want(http.StatusOK, "q=delivery-7")
	if !strings.Contains(a.words("delivery"), "held") {
		t.Errorf("found is %s", a.words("delivery"))
	}
}

// A look ends, and says so. The rest is a page of its own.
func TestMoreKeysThanOneLookSees(t *testing.T) {
	r := newRig(t)
	r.page.records = 2000
	for i := range r.page.records + 700 {
		r.store.put(t, put{id: fmt.Sprint(i), state: idempotency.Held})
	}
	a := r.want(http.StatusOK, "")
	if got := a.words("deliveries"); !strings.Contains(got, "There are more keys than the 2 000 that were looked at: not all of store one.") {
		t.Fatalf("the page does not say that there are more: %.300s", got)
	}
	if got := a.words("numbers"); !strings.Contains(got, "Held 2 000+") {
		t.Errorf("the numbers are %s", got)
	}
	if got := a.words("deliveries"); !strings.Contains(r.want(http.StatusOK, a.link("Look at the next ones")).words("deliveries"), " of 700") {
		t.Errorf("the rest is %.300s", got)
	}
	if a := r.get("from=zz.zz"); a.Code != http.StatusBadRequest {
		t.Errorf("a place of nowhere: %d", a.Code)
	}
}

// However many look at once, the store is asked as if it were one; and again only after
// some time.
func TestAThousandViewsAreOneLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		key := r.store.put(t, put{id: "one", state: idempotency.Held})
		r.store.slow = make(chan struct{})
		view := func(n int) {
			var views sync.WaitGroup
			for range n {
				views.Go(func() {
					if a := r.get("key=" + key.String()); a.Code != http.StatusOK {
						t.Errorf("got %d", a.Code)
					}
				})
			}
			synctest.Wait()
			select {
			case <-r.store.slow:
			default:
				close(r.store.slow)
			}
			views.Wait()
		}
		view(1000)
		if got := r.store.asked.Load(); got != 2 { // a list, and the record
			t.Errorf("a thousand views asked the store %d times", got)
		}
		time.Sleep(leastRest - time.Millisecond)
		view(10)
		if got := r.store.asked.Load(); got != 3 { // the record holds for a shorter time
			t.Errorf("views soon afterwards have asked %d times", got)
		}
		time.Sleep(leastRest)
		view(10)
		if got := r.store.asked.Load(); got != 5 {
			t.Errorf("views later have asked %d times", got)
		}
	})
}

// What somebody asks does not push others out for ever, nor is it asked without bound.
func TestTooManyQuestionsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.want(http.StatusOK, "") // the list is looked at
		r.store.slow = make(chan struct{})
		var views sync.WaitGroup
		codes := make([]int, 30)
		for i := range codes {
			views.Go(func() { codes[i] = r.get(fmt.Sprintf("q=id-%d", i)).Code })
		}
		synctest.Wait()
		if got := r.store.asked.Load(); got != 1+8 {
			t.Errorf("the store is asked %d questions", got-1)
		}
		close(r.store.slow)
		views.Wait()
		busy := 0
		for _, code := range codes {
			if code == http.StatusServiceUnavailable {
				busy++
			}
		}
		if busy != 30-8 {
			t.Errorf("%d of 30 were told to come back", busy)
		}
		if a := r.want(http.StatusOK, "q=id-99"); !strings.Contains(a.words("deliveries"), "No delivery with this ID") {
			t.Errorf("afterwards: %s", a.words("deliveries"))
		}
	})
}

func TestStoreAway(t *testing.T) {
	r := newRig(t)
	r.count["replayed"] = 4
	key := r.store.put(t, put{id: "one", state: idempotency.Held})
	r.store.away.Store(true)
	a := r.want(http.StatusOK, "")
	if got := a.words("said"); !strings.Contains(got, "store one: the <store> is away. What") {
		t.Errorf("it says %q", got)
	}
	if got := a.words("numbers"); !strings.Contains(got, "Duplicates absorbed 4") || !strings.Contains(got, "Held –") {
		t.Errorf("the numbers are %s", got)
	}
	if got := r.want(http.StatusServiceUnavailable, "key="+key.String()); got.Result().Header.Get("Retry-After") == "" {
		t.Error("no word when to try again")
	}
	r.want(http.StatusServiceUnavailable, "q=one")

	// What another store has is shown, and it is said that it is not all.
	other := r.open("store two")
	other.put(t, put{id: "two", state: idempotency.Held})
	r.page.windows.forget()
	a = r.want(http.StatusOK, "q=two")
	if !strings.Contains(a.words("delivery"), "two") || !strings.Contains(a.words("numbers"), "Held 1+") {
		t.Errorf("shown is %s, %s", a.words("delivery"), a.words("numbers"))
	}
	r.store.away.Store(false)
	r.page.windows.forget()
	if a = r.want(http.StatusOK, ""); a.words("said") != "" || !strings.Contains(a.words("numbers"), "Held 2 ") {
		t.Errorf("it is back, and the page says %q, %s", a.words("said"), a.words("numbers"))
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
		"q=one":                          {200, "one complete", "Found All deliveries"},
		"q=+one+":                        {200, "one complete", "Found All deliveries"},
		"q=" + key.String():              {200, "one complete", "1–4 of 4"},
		"q=two":                          {200, "", "two stripe"},
		"q=execution+of+one%2Fa":         {200, "one complete", "one github"},
		"q=three":                        {200, "", "No delivery with this ID"},
		"q=on":                           {200, "", "No delivery with this ID"},
		"q=broken":                       {200, "unreadable", "unreadable"},
		"key=" + broken.String():         {200, "record cannot be read: it is <damaged>", "1–4 of 4"},
		"key=" + strings.Repeat("0", 64): {404, "no record", "1–4 of 4"},
		"state=complete":                 {200, "", "1–1 of 1"},
		"provider=github":                {200, "", "1–2 of 2"},
		"provider=shopify":               {200, "", "No delivery like that"},
		"state=in_flight&page=7":         {200, "", "1–2 of 2"},
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

// What is newest, and what needs attention, is seen in whatever order the stores list it,
// and each store is looked at.
func TestLookSeesAllStores(t *testing.T) { synctest.Test(t, testLookSeesAllStores) }

func testLookSeesAllStores(t *testing.T) {
	r := newRig(t)
	second := r.open("store two")
	const many = mostNewest + 3000
	for i := range many {
		p := put{provider: "github", id: fmt.Sprint(i), state: idempotency.Complete, status: 200}
		if i < 12 {
			p.state, p.status = idempotency.Held, 0
		}
		r.store.put(t, p)
	}
	second.put(t, put{id: "elsewhere", state: idempotency.Held})
	time.Sleep(2 * time.Millisecond) // records have no finer time
	r.store.put(t, put{id: "the newest"})
	a := r.want(http.StatusOK, "")
	if got := textOf(a.has("deliveries", "tr")[1]); !strings.Contains(got, "the newest") {
		t.Errorf("the list begins with %s", got)
	}
	if got := a.words("numbers"); !strings.Contains(got, "Held 13 ") || !strings.Contains(got, "Runs in flight: 1 in the store") {
		t.Errorf("the numbers are %s", got)
	}
	if got := a.words("deliveries"); !strings.Contains(got, "of 13 002") || !strings.Contains(got, "Only the newest 10 000") || strings.Contains(got, "There are more keys") {
		t.Errorf("the list says %.300s", got)
	}
	for query, want := range map[string]string{
		"state=held":                   "1–13 of 13",
		"state=attention":              "1–13 of 13",
		"state=held&provider=github":   "1–12 of 12",
		"provider=github":              "1–50 of 13 000",
		"provider=github&page=4":       "151–200 of 13 000 ",
		"state=complete&page=20":       "951–1 000 of 12 988 ",
		"state=in_flight":              "1–1 of 1",
		"state=in_flight&provider=git": "No delivery like that",
	} {
		if got := r.want(http.StatusOK, query).words("deliveries"); !strings.Contains(got, want) {
			t.Errorf("?%s lists %.200s, want %s", query, got, want)
		}
	}

	// A store of which there is too much takes nothing from another.
	r.page.records = 2000
	r.page.windows.forget()
	a = r.want(http.StatusOK, "state=held")
	if got := a.words("deliveries"); !strings.Contains(got, "elsewhere") || !strings.Contains(got, "not all of store one.") {
		t.Errorf("the list says %.300s", got)
	}
	rest := r.want(http.StatusOK, a.link("Look at the next ones"))
	if got := rest.words("deliveries"); strings.Contains(got, "elsewhere") || !strings.Contains(got, "not all of store one.") {
		t.Errorf("the next ones are %.300s", got)
	}
}

// A store that hangs keeps a look from no other store, and no look goes on for longer than its time.
func TestLookHasItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		slow := r.open("store two")
		for i := range 3 * walkBatch {
			r.store.put(t, put{id: fmt.Sprint(i), state: idempotency.Held})
			slow.put(t, put{id: fmt.Sprint("slow ", i), state: idempotency.Held})
		}
		slow.takes = walkFor - time.Millisecond
		began := time.Now()
		a := r.want(http.StatusOK, "")
		if took := time.Since(began); took != 2*slow.takes {
			t.Errorf("it took %v", took)
		}
		if got := a.words("numbers"); !strings.Contains(got, "Held 2 500+") {
			t.Errorf("the numbers are %s", got)
		}
		if got := a.words("deliveries"); !strings.Contains(got, "not all of store two.") {
			t.Errorf("the list says %.300s", got)
		}
	})
}

// What a look keeps is bounded, and is the best of what it saw in whatever order that comes.
func TestWhatALookKeepsIsBounded(t *testing.T) {
	w, now := newWindow(nil), time.Now()
	const many = 3 * mostNewest
	for i := range many {
		at := now.Add(time.Duration(i*7919%many) * time.Second)
		w.add(seen{key: idempotency.Key{byte(i >> 8), byte(i)}, state: "released", record: &idempotency.Record{
			Claimed: at, Ended: at, Attempt: 1, Status: 500, Origin: idempotency.Origin{Provider: fmt.Sprint("provider", i%(2*mostProviders))},
		}})
		if len(w.newest.records) >= 2*mostNewest || len(w.oldest[needsMending].records) >= 2*mostConcerns {
			t.Fatal("it keeps too many")
		}
	}
	w.finish()
	if len(w.newest.records) != mostNewest || w.newest.count != many || len(w.origins) != mostProviders {
		t.Errorf("it keeps %d of %d, of %d providers", len(w.newest.records), w.newest.count, len(w.origins))
	}
	for i, s := range w.newest.records {
		if want := now.Add(time.Duration(many-1-i) * time.Second); !s.record.Claimed.Equal(want) {
			t.Fatalf("the record %d is of %v, want %v", i, s.record.Claimed, want)
		}
	}
	for i, s := range w.concerns {
		if want := now.Add(time.Duration(i) * time.Second); !s.since.Equal(want) || len(w.concerns) != mostConcerns {
			t.Fatalf("concern %d of %d is since %v, want %v", i, len(w.concerns), s.since, want)
		}
	}
}
