package dashboard

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Whatever bytes a delivery ID has, the page finds it.
func TestSearchFindsEachID(t *testing.T) {
	r := newRig(t)
	digits := strings.Repeat("5eed", 16)
	for _, id := range []string{
		digits, strings.Repeat("A", 64), strings.Repeat("long ", 800), "\u2028", " ", " leading", "trailing\t", "\u00a0", "inner  space",
	} {
		r.store.put(t, put{id: id, state: idempotency.Held})
		a := r.want(http.StatusOK, url.Values{"q": {id}}.Encode())
		if got := a.words("delivery"); !strings.Contains(got, "held") {
			t.Errorf("%.80q: found is %q", id, got)
		}
	}
	// A key comes first, whatever has it for its ID.
	key := r.store.put(t, put{id: "first", state: idempotency.Complete, status: 200})
	r.store.put(t, put{id: key.String(), state: idempotency.Held})
	for _, q := range []string{key.String(), " " + key.String() + "\n"} {
		if a := r.want(http.StatusOK, url.Values{"q": {q}}.Encode()); !strings.Contains(a.words("delivery"), "first complete") {
			t.Errorf("%q: found is %q", q, a.words("delivery"))
		}
	}
	// The white space that was copied along is no part of the ID, unless there is such an ID.
	r.store.put(t, put{id: "copied", state: idempotency.Held})
	if a := r.want(http.StatusOK, "q=%20copied%0a"); !strings.Contains(a.words("delivery"), "copied held") {
		t.Errorf("found is %q", a.words("delivery"))
	}
	if a := r.want(http.StatusNotFound, "q="+strings.Repeat("0", 64)); !strings.Contains(a.words("said"), "No store has a record of this key") {
		t.Errorf("a key that nobody has: %q", a.words("said"))
	}
	// On a page of its own: the list on this one has the long IDs, if the stores were looked at
	// again since.
	long := newRig(t).want(http.StatusBadRequest, "q="+strings.Repeat("x", mostQuery+1))
	if got := long.words("said"); !strings.Contains(got, "has 4097 bytes") || len(long.text) > 100<<10 {
		t.Errorf("a text that is too long: %q", got)
	}
}

// An execution is found wherever its record is, and the page does not say that there is none
// where it has not looked.
// Of more records than are shown, too, the newest comes first.
func TestSearchForAnIDOfManyRecords(t *testing.T) {
	r := newRig(t)
	for n := range mostFound + 1 {
		r.store.put(t, put{id: "many", route: strconv.Itoa(n), state: idempotency.Held})
	}
	open := r.enter()
	defer open[0].Leave()
	f := findID(t.Context(), open, "many")
	if len(f.records) != mostFound || !f.more {
		t.Errorf("%d of %d records are shown, and more is %v", len(f.records), mostFound+1, f.more)
	}
	if !slices.IsSortedFunc(f.records, func(a, b seen) int { return b.record.Claimed.Compare(a.record.Claimed) }) {
		t.Error("they are in no order")
	}
}

func TestSearchForAnExecution(t *testing.T) {
	r := newRig(t)
	second := r.open("store two")
	for i := range mostNewest + 600 {
		r.store.put(t, put{id: fmt.Sprint(i), state: idempotency.Complete, status: 200})
	}
	second.put(t, put{id: "elsewhere", state: idempotency.Complete, status: 200})
	for _, id := range []string{"0", "elsewhere"} {
		a := r.want(http.StatusOK, url.Values{"q": {"execution of " + id}}.Encode())
		if !strings.Contains(a.words("delivery"), id+" complete") {
			t.Errorf("the execution of %s: %q, %q", id, a.words("delivery"), a.words("deliveries"))
		}
	}
	if got := r.want(http.StatusOK, "q=nothing").words("deliveries"); !strings.Contains(got, "It never came here") {
		t.Errorf("where all was looked at it says %q", got)
	}
	r.page.records = 1000
	got := r.want(http.StatusOK, "q=nobody").words("deliveries")
	if !strings.Contains(got, "not among the 1 001 keys that were looked at") && !strings.Contains(got, "not among the 501 keys that were looked at") || strings.Contains(got, "never came") {
		t.Errorf("where not all was looked at it says %q", got)
	}
}

// With a store away nobody knows whether it came.
func TestSearchWithAStoreAway(t *testing.T) {
	r := newRig(t)
	r.open("store two").away.Store(true)
	a := r.want(http.StatusServiceUnavailable, "q=nothing")
	if !strings.Contains(a.words("said"), "Not found where it could be looked for") || strings.Contains(a.words("main"), "never came") {
		t.Errorf("it says %q", a.words("main"))
	}
	if a = r.want(http.StatusServiceUnavailable, "q="+strings.Repeat("0", 64)); strings.Contains(a.words("main"), "No store has a record") {
		t.Errorf("of a key it says %q", a.words("main"))
	}
}
