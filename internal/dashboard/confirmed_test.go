package dashboard

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// What somebody has confirmed is done to the record that was shown, and to no other.
func TestConfirmationIsOfWhatWasShown(t *testing.T) {
	for _, do := range []string{"free", "forget"} {
		r := newRig(t)
		key := r.store.put(t, put{id: "delivery", state: idempotency.Held})
		asks := r.want(http.StatusOK, "key="+key.String()+"&do="+do)
		again := r.want(http.StatusOK, "key="+key.String()+"&do="+do)
		for name, change := range map[string]func(*http.Request, url.Values){
			"a state that was not shown":       func(_ *http.Request, v url.Values) { v.Set("state", "complete") },
			"any state":                        func(_ *http.Request, v url.Values) { v.Del("state") },
			"an execution that was not shown":  func(_ *http.Request, v url.Values) { v.Set("execution", "another") },
			"any execution":                    func(_ *http.Request, v url.Values) { v.Del("execution") },
			"what was shown, in another order": func(_ *http.Request, v url.Values) { v.Set("state", v.Get("execution")); v.Set("execution", "held") },
			"what was shown, in other fields": func(_ *http.Request, v url.Values) {
				v.Set("state", "held "+v.Get("execution"))
				v.Set("execution", "")
			},
			"the key and the state as one field": func(_ *http.Request, v url.Values) { v.Set("key", key.String()+" held"); v.Set("state", "") },
		} {
			if a := r.confirmed(asks, change); a.Code != http.StatusForbidden && a.Code != http.StatusBadRequest {
				t.Errorf("%s: got %d", name, a.Code)
			}
		}
		// Another operator frees it, its sender sends it again, and it completes.
		if a := r.confirmed(asks, nil); do == "free" && a.Code != http.StatusSeeOther {
			t.Fatalf("got %d: %s", a.Code, a.words("main"))
		}
		r.store.put(t, put{id: "delivery", state: idempotency.Complete, status: 201})
		a := r.confirmed(again, nil)
		if got := a.words("main"); a.Code != http.StatusConflict || !strings.Contains(got, "The key has changed since: it was held, and is complete now") {
			t.Errorf("%s: got %d %q", do, a.Code, got)
		}
		if got := r.stateOf(key); got != idempotency.Complete {
			t.Errorf("%s: it is %s", do, got)
		}
		if a.link("The delivery as it is now") != "key="+key.String() {
			t.Errorf("%s: no link to what it is now: %s", do, a.text)
		}
	}
}

// The script compares what an open form asks about with what the key is now.
func TestPageSaysWhatAnOpenFormIsAbout(t *testing.T) {
	r := newRig(t)
	key := r.store.put(t, put{id: "delivery", state: idempotency.Held})
	query := "key=" + key.String()
	is := func(query string) string {
		return attribute(r.want(http.StatusOK, query).byID("delivery"), "data-seen")
	}
	asked := is(query + "&do=free")
	if asked == "" || is(query+"&part=live") != asked {
		t.Errorf("a form is about %q, and the key is %q", asked, is(query+"&part=live"))
	}
	if err := r.all[0].Free(t.Context(), key, idempotency.Seen{}); err != nil {
		t.Fatal(err)
	}
	r.page.ones.forget()
	if is(query+"&part=live") == asked {
		t.Error("the key has changed, and the page does not say so")
	}
}

// Two stores may have the same key, as after a move to another one. Each of the records is
// shown, and what is done is done to the one that was shown.
func TestSameKeyInTwoStores(t *testing.T) {
	for _, q := range []string{"q=delivery", "state=held"} {
		r := newRig(t)
		second := r.open("store two")
		key := r.store.put(t, put{id: "delivery", state: idempotency.Held})
		second.put(t, put{id: "delivery", state: idempotency.Held})
		var links []string
		found := r.want(http.StatusOK, q)
		for _, n := range found.has("deliveries", "a") {
			if textOf(n) == "delivery" {
				link, _, _ := strings.Cut(strings.TrimPrefix(attribute(n, "href"), "?"), "#")
				links = append(links, link)
			}
		}
		if len(links) != 2 || links[0] == links[1] {
			t.Fatalf("the list has the links %v", links)
		}
		var stores []string
		for _, link := range links {
			a := r.want(http.StatusOK, link)
			chosen := 0
			for _, n := range a.has("deliveries", "tr") {
				if attribute(n, "class") == "chosen" {
					chosen++
				}
			}
			_, store, _ := strings.Cut(a.words("delivery"), " Store ")
			stores = append(stores, store)
			if chosen != 1 {
				t.Errorf("%d are chosen", chosen)
			}
			form := r.want(http.StatusOK, a.link("Forget…"))
			done := r.confirmed(form, nil)
			if done.Code != http.StatusSeeOther {
				t.Fatalf("got %d: %s", done.Code, done.words("main"))
			}
			gone := r.stateOf(key) == "none"
			if first := store == "store one"; first && !gone {
				t.Error("the record in the first store is still there")
			} else if !first && gone != (len(stores) == 2) {
				t.Error("the record of another store is gone")
			}
		}
		if stores[0] == stores[1] {
			t.Errorf("the links lead to %v", stores)
		}
		if a := r.get("key=" + key.String()); a.Code != http.StatusNotFound {
			t.Errorf("both are forgotten, and the key answers %d", a.Code)
		}
	}
	// A store that is not open here is not asked for; the key may be elsewhere.
	r := newRig(t)
	key := r.store.put(t, put{id: "delivery", state: idempotency.Held})
	a := r.want(http.StatusOK, "key="+key.String()+"&in=0123456789ab&do=free")
	if b := r.confirmed(a, func(_ *http.Request, v url.Values) { v.Set("in", "0123456789ab") }); b.Code != http.StatusForbidden {
		t.Errorf("a store that was not shown: %d", b.Code)
	}
	if b := r.confirmed(a, nil); b.Code != http.StatusSeeOther {
		t.Errorf("got %d", b.Code)
	}
}
