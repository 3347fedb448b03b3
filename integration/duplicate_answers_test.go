package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// original answers by the request's path: the status, the Location, the type and
// the body that the test put there.
type original struct {
	status                      int
	location, contentType, body string
}

func (o original) answer(w http.ResponseWriter, _ *http.Request, _ run) {
	if o.location != "" {
		w.Header().Set("Location", o.location)
	}
	if o.contentType != "" {
		w.Header().Set("Content-Type", o.contentType)
	}
	w.Header().Set("X-Upstream", "yes")
	w.WriteHeader(o.status)
	fmt.Fprint(w, o.body)
}

func TestDuplicateConflict(t *testing.T) {
	t.Parallel()
	jsonOf := func(n int) string { return `"` + strings.Repeat("x", n-2) + `"` }
	const media = "application/json"
	cases := map[string]struct {
		first   original
		carried string // "" for none
	}{
		"small":          {original{201, "/runs/1", media, `{"run_id": 123456789012345678901}`}, `{"run_id":123456789012345678901}`},
		"with a charset": {original{200, "", "Application/JSON; charset=utf-8", `[1]`}, `[1]`},
		"a kind of json": {original{200, "", "application/vnd.run+json", `[1]`}, `[1]`},
		"a failure":      {original{404, "", "application/problem+json", `{"title":"no"}`}, `{"title":"no"}`},
		"of 4 KiB":       {original{200, "", media, jsonOf(4096)}, jsonOf(4096)},
		"larger":         {original{200, "", media, jsonOf(4097)}, ""},
		"not kept":       {original{200, "/runs/2", media, jsonOf(9000)}, ""},
		"of another":     {original{200, "", "text/plain", `{"run_id":1}`}, ""},
		"of no type":     {original{204, "/runs/3", "", ""}, ""},
		"no json at all": {original{200, "", media, `{"run_id":`}, ""},
	}
	for _, mode := range []string{"api", "webhook"} {
		eachStore(t, func(t *testing.T, store string) {
			up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) { cases[n.Key].first.answer(w, r, n) })
			p := start(t, conf{store: store, site: shown(dedupBlock("mode "+mode, "release_on off", "on_duplicate conflict", "max_response_body 8KiB"), up)})
			for name, c := range cases {
				first := p.post(t, "/", name, "body")
				wantFresh(t, first, c.first.status, c.first.body)
				got := p.post(t, "/", name, "body")
				wantConflict(t, got, first)
				if got.Header.Get("X-Outcome") != "conflict" || got.Header.Get("X-Upstream") != "" || got.Header.Get("Location") != "" {
					t.Errorf("%s: the conflict has %v", name, got.Header)
				}
				if location := got.member(t, "original_location"); c.first.location == "" && location != "<nil>" || c.first.location != "" && location != c.first.location {
					t.Errorf("%s: the conflict names the location %s, want %q", name, location, c.first.location)
				}
				if c.carried == "" && got.member(t, "original_response") != "<nil>" || !strings.Contains(got.Body, c.carried) {
					t.Errorf("%s: the conflict is %s; want it to carry %q", name, shorten(got.Body), shorten(c.carried))
				}
				up.wantRuns(t, name, 1)
			}
			if mode == "api" {
				wantProblem(t, p.post(t, "/", "small", "other"), 422, "idempotency_key_reused")
			}
		})
	}
}

func TestDuplicateAcknowledge(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store string) {
		first := original{201, "/runs/1", "application/json", `{"run_id": 1}`}
		up := startUpstream(t, first.answer)
		p := start(t, conf{store: store, site: shown(dedupBlock("on_duplicate acknowledge", "max_response_body 10B"), up)})
		ran := p.post(t, "/", "k", "body")
		wantFresh(t, ran, 201, first.body)
		got := p.post(t, "/", "k", "body")
		wantReplay(t, got, reply{Status: 200, Header: ran.Header})
		for _, field := range []string{"Location", "Content-Type", "X-Upstream"} {
			if v, ok := got.Header[field]; ok {
				t.Errorf("the acknowledgement has the first answer's %s %q", field, v)
			}
		}
		if got.Header.Get("X-Outcome") != "acknowledged" || got.Header.Get("Content-Length") != "0" {
			t.Errorf("the acknowledgement has %v", got.Header)
		}
		wantProblem(t, p.post(t, "/", "k", "other"), 422, "idempotency_key_reused")
		up.wantRuns(t, "k", 1)
	})
}

func TestDuplicateSeeOther(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store string) {
		located := original{202, "/runs/1?x=ü", "text/plain", "accepted"}
		up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
			if n.Key == "located" {
				located.answer(w, r, n)
				return
			}
			answers201(w, r, n)
		})
		p := start(t, conf{store: store, site: lines(dedupBlock("on_duplicate see_other"), proxyTo(up))})
		first := p.post(t, "/", "located", "body")
		wantFresh(t, first, 202, "accepted")
		got := p.post(t, "/", "located", "body")
		wantReplay(t, got, reply{Status: 303, Header: first.Header})
		if got.Header.Get("Location") != first.Header.Get("Location") || got.Header.Get("X-Upstream") != "" {
			t.Errorf("the duplicate got %v", got.Header)
		}
		first = p.post(t, "/", "unlocated", "body")
		wantReplay(t, p.post(t, "/", "unlocated", "body"), first)
	})
}

// Only a complete request has duplicates of these kinds: who waits for a run gets
// its answer, and a released one runs again.
func TestDuplicateAnswersAreForCompleteRequests(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"conflict", "acknowledge", "see_other"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			g := newGate(t)
			located := original{201, "/runs/1", "text/plain", "created"}
			up := startUpstream(t, inTurn(g.before(answersStatus(500)), located.answer))
			c := conf{store: redisStore(t), site: lines(dedupBlock("on_duplicate "+how), proxyTo(up))}
			a, b := start(t, c), start(t, c)
			options := []option{host("shop.test")}

			failing := a.postLater("/", "k", "body", options...)
			up.awaitRuns(t, "k", 1)
			waiters := append(a.postMany(3, "/", "k", "body", options...), b.postMany(3, "/", "k", "body", options...)...)
			a.awaitWaiting(t, 3, waiters...)
			b.awaitWaiting(t, 3, waiters...)
			g.open()
			failed := failing.reply(t)
			for _, got := range replies(t, waiters) {
				wantReplay(t, got, failed)
			}
			second := b.post(t, "/", "k", "body", options...)
			wantFresh(t, second, 201, "created")
			if got := a.post(t, "/", "k", "body", options...); got.Status == 201 || got.executionID() != second.executionID() && how != "conflict" {
				t.Errorf("the duplicate got %d %q", got.Status, got.Body)
			}
			up.wantRuns(t, "k", 2)
		})
	}
}

// Who waited for a run that succeeds is no duplicate of a complete request either.
func TestWaiterGetsTheRunsAnswerWhateverDuplicatesGet(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"conflict", "acknowledge", "see_other"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			g := newGate(t)
			up := startUpstream(t, g.before(original{201, "/runs/1", "text/plain", "created"}.answer))
			c := conf{store: redisStore(t), site: lines(dedupBlock("on_duplicate "+how), proxyTo(up))}
			a, b := start(t, c), start(t, c)
			first := a.postLater("/", "k", "body", host("shop.test"))
			up.awaitRuns(t, "k", 1)
			here, there := a.postLater("/", "k", "body", host("shop.test")), b.postLater("/", "k", "body", host("shop.test"))
			a.awaitWaiting(t, 1, here)
			b.awaitWaiting(t, 1, there)
			g.open()
			ran := first.reply(t)
			wantReplay(t, here.reply(t), ran)
			wantReplay(t, there.reply(t), ran)
			up.wantRuns(t, "k", 1)
		})
	}
}
