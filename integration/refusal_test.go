package integration

import (
	"strings"
	"testing"
)

func TestRefusalSaysWhatItIs(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines(
		"handle /docs {", dedupBlock("docs https://shop.test/idempotency", "on_missing reject"), proxyTo(up), "}",
		"handle {", dedupBlock("on_missing reject"), proxyTo(up), "}")})

	first := p.post(t, "/", "k", "body")
	said := wantProblem(t, p.post(t, "/", "k", "another"), 422, "idempotency_key_reused")
	if said.ExecutionID != first.executionID() || said.Type != "" {
		t.Errorf("got %+v, want execution %s and no type", said, first.executionID())
	}
	got := p.post(t, "/", "", "body")
	if said = wantProblem(t, got, 400, "idempotency_key_missing"); said.ExecutionID != "" {
		t.Errorf("a refusal without a key names an execution: %+v", said)
	}
	if got.Header.Get("Link") != "" {
		t.Errorf("Link is %q, want none", got.Header.Get("Link"))
	}

	got = p.post(t, "/docs", "", "body")
	said = wantProblem(t, got, 400, "idempotency_key_missing")
	if said.Type != "https://shop.test/idempotency" {
		t.Errorf("type is %q", said.Type)
	}
	if link := got.Header.Get("Link"); link != `<https://shop.test/idempotency>; rel="describedby"` {
		t.Errorf("Link is %q", link)
	}
}

// Who is refused can name the key to an operator.
func TestRefusalNamesTheKey(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines("header >X-Key {http.dedup.key}",
		dedupBlock("max_request_body 1KiB", "on_missing reject"), proxyTo(up))})
	wantKey := func(got reply, code string) {
		t.Helper()
		said := wantProblem(t, got, got.Status, code)
		if said.Key == "" || said.Key != got.Header.Get("X-Key") {
			t.Errorf("%s: the problem names the key %q, the placeholder %q", code, said.Key, got.Header.Get("X-Key"))
		}
	}
	p.post(t, "/", "k", "body")
	wantKey(p.post(t, "/", "k", "another"), "idempotency_key_reused")
	wantKey(p.post(t, "/", "large", strings.Repeat("x", 1025)), "request_too_large")
	if said := wantProblem(t, p.post(t, "/", "", "body"), 400, "idempotency_key_missing"); said.Key != "" {
		t.Errorf("a request without a key is told the key %q", said.Key)
	}
}

// Error routes belong to the server: a site without any must not lose its
// answers to those of another site on its port.
func TestRefusalsOfTwoSitesOnOnePort(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", sites: lines(
		"http://own.test:PORT {", dedupBlock("on_missing reject"), proxyTo(up),
		"handle_errors {", `respond "sorry: {err.status_code} {err.message}"`, "}", "}",
		"http://some.test:PORT {", dedupBlock("on_missing reject"), proxyTo(up),
		"handle_errors 404 {", `respond "not here"`, "}", "}",
		"http://none.test:PORT {", dedupBlock("on_missing reject"), proxyTo(up), "}")})

	got := p.post(t, "/", "", "", host("own.test"))
	if got.Status != 400 || !strings.HasPrefix(got.Body, "sorry: 400 ") {
		t.Errorf("own.test answered %d %q, want the user's own words", got.Status, got.Body)
	}
	if len(got.Body) <= len("sorry: 400 ") {
		t.Error("{err.message} is empty")
	}
	wantProblem(t, p.post(t, "/", "", "", host("some.test")), 400, "idempotency_key_missing")
	wantProblem(t, p.post(t, "/", "", "", host("none.test")), 400, "idempotency_key_missing")
	for _, name := range []string{"own.test", "some.test", "none.test"} {
		wantFresh(t, p.post(t, "/", "k-"+name, "", host(name)), 201, "run 1 of k-"+name)
	}
}

// The user's own error page keeps what clients need.
func TestErrorRouteKeepsRetryAfter(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	up := startUpstream(t, g.before(answers201))
	p := start(t, conf{store: "store memory", site: lines(dedupBlock("wait off"), proxyTo(up),
		"handle_errors {", `respond "try {err.status_code} again"`, "}")})
	first := p.postLater("/", "k", "")
	up.awaitRuns(t, "k", 1)
	got := p.post(t, "/", "k", "")
	wantAnswer(t, got, 409, "try 409 again")
	wantRetryAfter(t, got)
	g.open()
	wantFresh(t, first.reply(t), 201, "run 1 of k")
}
