package dashboard

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/admin/admintest"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

func TestActsByForms(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		do, word string
		after    idempotency.State
		status   int
	}{
		{"Release…", "The key is released.", idempotency.Released, 200},
		{"Complete…", "The key is complete.", idempotency.Complete, 200},
		{"Forget…", "The record is gone.", "none", 200},
	} {
		key := r.store.Put(t, admintest.Run{ID: "held " + c.do, State: idempotency.Held})
		found := r.want(http.StatusOK, url.Values{"q": {"held " + c.do}, "state": {"held"}}.Encode())
		asks := r.want(http.StatusOK, found.link(c.do))
		if got, verb := asks.words("confirm-title"), strings.TrimSuffix(c.do, "…"); got != verb+" held "+c.do+" ?" {
			t.Errorf("the question is %q", got)
		}
		if got := r.store.State(t, key); got != idempotency.Held {
			t.Fatalf("a GET has made it %s", got)
		}
		done := r.confirmed(asks, nil)
		location := done.Result().Header.Get("Location")
		if done.Code != http.StatusSeeOther || !strings.HasPrefix(location, "?") {
			t.Fatalf("got %d to %q: %s", done.Code, location, done.text)
		}
		if got := r.store.State(t, key); got != c.after {
			t.Errorf("%s: it is %s, want %s", c.do, got, c.after)
		}
		location, _, _ = strings.Cut(location, "#")
		a := r.want(c.status, strings.TrimPrefix(location, "?"))
		if !strings.Contains(a.words("said"), c.word) {
			t.Errorf("%s: then the page says %q", c.do, a.words("said"))
		}
	}
}

// The page completes a key with a status, and with nothing else that the form may have.
func TestCompletesWithAStatusOnly(t *testing.T) {
	r := newRig(t)
	for status, code := range map[string]int{
		"204": 303, "599": 303, "199": 400, "600": 400, "": 400, "2e2": 400, "ok": 400,
	} {
		key := r.store.Put(t, admintest.Run{ID: "status " + status, State: idempotency.Held})
		asks := r.want(http.StatusOK, "key="+key.String()+"&do=complete")
		if !strings.Contains(asks.words("confirm-title"), "Complete status "+status) {
			t.Errorf("the question is %q", asks.words("confirm-title"))
		}
		a := r.confirmed(asks, func(_ *http.Request, v url.Values) {
			v.Set("status", status)
			v.Set("body", "<script>")
			v.Set("content_type", "text/html")
		})
		if a.Code != code {
			t.Errorf("status %q: got %d, want %d: %s", status, a.Code, code, a.words("main"))
		}
		record, _, err := r.store.Records.Lookup(t.Context(), key)
		if err != nil || (record.State == idempotency.Complete) != (code == 303) {
			t.Fatalf("status %q: it is %+v, %v", status, record, err)
		}
		if code == 400 {
			continue
		}
		response, err := r.store.Records.Response(t.Context(), key, record.Token)
		if err != nil || response == nil || strconv.Itoa(response.Status) != status || len(response.Header)+len(response.Body) > 0 {
			t.Errorf("status %q: the response is %+v, %v", status, response, err)
		}
	}
}

// What another site can make a browser send changes nothing.
func TestForgedRequestsChangeNothing(t *testing.T) {
	r := newRig(t)
	key := r.store.Put(t, admintest.Run{ID: "held", State: idempotency.Held})
	asks := r.want(http.StatusOK, "key="+key.String()+"&do=release")
	for name, change := range map[string]func(*http.Request, url.Values){
		"another site":          func(q *http.Request, _ url.Values) { q.Header.Set("Sec-Fetch-Site", "cross-site") },
		"a sibling of the site": func(q *http.Request, _ url.Values) { q.Header.Set("Sec-Fetch-Site", "same-site") },
		"another origin": func(q *http.Request, _ url.Values) {
			q.Header.Del("Sec-Fetch-Site")
			q.Header.Set("Origin", "https://evil.test")
		},
		"no origin at all": func(q *http.Request, _ url.Values) { q.Header.Del("Sec-Fetch-Site"); q.Header.Set("Origin", "null") },
	} {
		if a := r.confirmed(asks, change); a.Code != http.StatusForbidden {
			t.Errorf("%s: got %d", name, a.Code)
		}
	}
	for name, change := range map[string]func(*http.Request, url.Values){
		"another act": func(_ *http.Request, v url.Values) { v.Set("do", "burn") },
		"no key":      func(_ *http.Request, v url.Values) { v.Del("key") },
		"no state":    func(_ *http.Request, v url.Values) { v.Del("state") },
		"a long form": func(_ *http.Request, v url.Values) { v.Set("more", strings.Repeat("x", maxForm)) },
	} {
		if a := r.confirmed(asks, change); a.Code != http.StatusBadRequest {
			t.Errorf("%s: got %d", name, a.Code)
		}
	}
	for _, target := range []string{"/?key=" + key.String() + "&do=release", "/?do=forget&key=" + key.String()} {
		r.ask(httptest.NewRequest(http.MethodGet, target, nil))
	}
	if r.store.State(t, key) != idempotency.Held {
		t.Errorf("it is %s", r.store.State(t, key))
	}
	if a := r.confirmed(asks, nil); a.Code != http.StatusSeeOther { // the form itself was right
		t.Errorf("got %d", a.Code)
	}
}

func TestRefusedActs(t *testing.T) {
	for name, c := range map[string]struct {
		before func(*rig, idempotency.Key)
		status int
		says   string
	}{
		"a run has begun": {func(r *rig, key idempotency.Key) {
			_ = r.store.Forget(t.Context(), key, idempotency.Precondition{})
			r.store.Put(t, admintest.Run{ID: "k"})
		}, 409, "To end it now, restart the service"},
		"it is gone":               {func(r *rig, key idempotency.Key) { _ = r.store.Forget(t.Context(), key, idempotency.Precondition{}) }, 404, "no store has a record"},
		"the store is unavailable": {func(r *rig, _ idempotency.Key) { r.store.Away.Store(true) }, 503, "the <store> is away"},
	} {
		r := newRig(t)
		key := r.store.Put(t, admintest.Run{ID: "k", State: idempotency.Held})
		asks := r.want(http.StatusOK, "key="+key.String()+"&do=release")
		c.before(r, key)
		if a := r.confirmed(asks, nil); a.Code != c.status || !strings.Contains(a.words("main"), c.says) {
			t.Errorf("%s: got %d %q", name, a.Code, a.words("main"))
		}
	}
	r := newRig(t)
	for state, may := range map[idempotency.State]string{
		idempotency.Complete: "Release… Forget…", idempotency.Released: "Complete… Forget…", "": "", // in flight
	} {
		key := r.store.Put(t, admintest.Run{ID: "now " + string(state), State: state})
		shown := r.want(http.StatusOK, "key="+key.String())
		if strings.Contains(shown.words("delivery"), "at the latest at 20") != (state == "") {
			t.Errorf("in the state %q the page says %s", state, shown.words("delivery"))
		}
		for link, do := range map[string]string{"Release…": "release", "Complete…": "complete", "Forget…": "forget"} {
			asks := r.want(http.StatusOK, "key="+key.String()+"&do="+do).byID("confirm") != nil
			if want := strings.Contains(may, link); asks != want || (shown.link(link) != "") != want {
				t.Errorf("in the state %q: %s may be asked for: want %v", state, link, want)
			}
		}
	}
}

// What an operator has confirmed is done to the record that was shown, and to no other.
func TestConfirmationOfChangedKey(t *testing.T) {
	for _, do := range []string{"release", "complete", "forget"} {
		r := newRig(t)
		key := r.store.Put(t, admintest.Run{ID: "delivery", State: idempotency.Held})
		asks := r.want(http.StatusOK, "key="+key.String()+"&do=release")
		again := r.want(http.StatusOK, "key="+key.String()+"&do="+do)
		for name, change := range map[string]func(*http.Request, url.Values){
			"a state that was not shown":      func(_ *http.Request, v url.Values) { v.Set("state", "complete") },
			"an execution that was not shown": func(_ *http.Request, v url.Values) { v.Set("execution", "another") },
		} {
			if a := r.confirmed(asks, change); a.Code != http.StatusConflict {
				t.Errorf("%s: got %d", name, a.Code)
			}
		}
		// Another operator releases it, its sender sends it again, and it completes.
		if a := r.confirmed(asks, nil); a.Code != http.StatusSeeOther {
			t.Fatalf("got %d: %s", a.Code, a.words("main"))
		}
		r.store.Put(t, admintest.Run{ID: "delivery", State: idempotency.Complete, Status: 201})
		a := r.confirmed(again, nil)
		if got := a.words("main"); a.Code != http.StatusConflict || !strings.Contains(got, "the key has changed since you looked: it is complete now") {
			t.Errorf("%s: got %d %q", do, a.Code, got)
		}
		if got := r.store.State(t, key); got != idempotency.Complete {
			t.Errorf("%s: it is %s", do, got)
		}
		if a.link("The delivery as it is now") != "key="+key.String() {
			t.Errorf("%s: no link to what it is now: %s", do, a.text)
		}
	}
}

// An act is done in all stores in which the key is as it was shown, as by the admin API.
func TestActsInAllStores(t *testing.T) {
	r := newRig(t)
	other := r.open("two")
	key := r.store.Put(t, admintest.Run{ID: "k", State: idempotency.Held, Execution: "same"})
	other.Put(t, admintest.Run{ID: "k", State: idempotency.Held, Execution: "same"})
	if a := r.confirmed(r.want(http.StatusOK, "key="+key.String()+"&do=release"), nil); a.Code != http.StatusSeeOther {
		t.Errorf("got %d %q", a.Code, a.words("main"))
	}
	if one, two := r.store.State(t, key), other.State(t, key); one != idempotency.Released || two != idempotency.Released {
		t.Errorf("then they are %s and %s", one, two)
	}
}
