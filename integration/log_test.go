package integration

import (
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
)

var (
	hexKey = regexp.MustCompile(`^[0-9a-f]{64}$`)
	uuidV7 = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
)

// shown is a site that shows each placeholder to the client.
func shown(dedup string, up *upstream) string {
	return lines("log",
		"header >X-Outcome {http.dedup.outcome}", "header >X-Key {http.dedup.key}", "header >X-Provider {http.dedup.provider}",
		"header >X-Delivery {http.dedup.delivery_id}", "header >X-Execution {http.dedup.execution_id}", "header >X-Attempt {http.dedup.attempt}", dedup, proxyTo(up))
}

func TestPlaceholdersAndAccessLogAgree(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, inTurn(answersStatus(500), answers201))
	p := start(t, conf{store: "store memory", site: shown(dedupBlock("max_request_body 1KiB", "max_response_body 1KiB"), up)})

	want := func(name string, got reply, outcome, attempt string) {
		t.Helper()
		h := got.Header
		if h.Get("X-Outcome") != outcome || h.Get("X-Attempt") != attempt {
			t.Errorf("%s: outcome %q and attempt %q, want %q and %q", name, h.Get("X-Outcome"), h.Get("X-Attempt"), outcome, attempt)
		}
		if h.Get("X-Execution") != got.executionID() {
			t.Errorf("%s: {http.dedup.execution_id} is %q, the answer says %q", name, h.Get("X-Execution"), got.executionID())
		}
		p.awaitLog(t, "the access log entry of "+name, func(e entry) bool {
			headers, _ := e["resp_headers"].(map[string]any)
			outcomes, _ := headers["X-Outcome"].([]any)
			return len(outcomes) == 1 && outcomes[0] == outcome && e.text("dedup_outcome") == outcome &&
				e.text("dedup_key") == h.Get("X-Key") && e.text("dedup_delivery_id") == "k" && h.Get("X-Delivery") == "k" && e.text("dedup_execution_id") == h.Get("X-Execution") &&
				e.text("dedup_attempt") == attempt
		})
	}
	want("a first run", p.post(t, "/", "k", "body"), "executed", "1")
	fresh := p.post(t, "/", "k", "body")
	want("a second run", fresh, "executed", "2")
	if !hexKey.MatchString(fresh.Header.Get("X-Key")) || !uuidV7.MatchString(fresh.executionID()) {
		t.Errorf("key %q or execution %q is of the wrong form", fresh.Header.Get("X-Key"), fresh.executionID())
	}
	replayed := p.post(t, "/", "k", "body")
	want("a duplicate", replayed, "replayed", "2")
	if replayed.Header.Get("X-Key") != fresh.Header.Get("X-Key") {
		t.Error("a duplicate has another key")
	}
	if got := p.post(t, "/", "k", "another"); got.Header.Get("X-Outcome") != "reused" {
		t.Errorf("outcome %q, want reused", got.Header.Get("X-Outcome"))
	}
	for name, r := range map[string]*http.Request{
		"missing":   p.newPost("/", "", "body"),
		"invalid":   p.newPost("/", `"`, "body"),
		"too_large": p.newPost("/", "large", strings.Repeat("x", 1025)),
	} {
		got, err := try(oneShot, r)
		if err != nil || got.Header.Get("X-Outcome") != name {
			t.Errorf("outcome %q, %v; want %s", got.Header.Get("X-Outcome"), err, name)
		}
	}
	// What is not deduplicated has no outcome.
	p.post(t, "/", "passed", "", method("GET"))
	if passed := p.awaitAccess(t, "passed"); passed.text("dedup_outcome") != "" {
		t.Errorf("a GET is logged with outcome %q", passed.text("dedup_outcome"))
	}
}

func TestProviderIsNamed(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: shown("dedup github", up)})
	got := p.post(t, "/", "", "{}", header("X-GitHub-Delivery", "1"))
	if got.Header.Get("X-Provider") != "github" || got.Header.Get("X-Outcome") != "executed" {
		t.Errorf("provider %q, outcome %q", got.Header.Get("X-Provider"), got.Header.Get("X-Outcome"))
	}
	p.awaitLog(t, "the provider", func(e entry) bool { return e.text("dedup_provider") == "github" })
}

func TestWaiterIsNamed(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	up := startUpstream(t, g.before(answers201))
	p := start(t, conf{store: "store memory", site: shown(dedupBlock(), up)})
	first := p.postLater("/", "k", "")
	up.awaitRuns(t, "k", 1)
	waiter := p.postLater("/", "k", "")
	p.awaitWaiting(t, 1, waiter)
	g.open()
	first.reply(t)
	if got := waiter.reply(t).Header.Get("X-Outcome"); got != "waited" {
		t.Errorf("outcome %q, want waited", got)
	}
}

func TestRefusalsAndReleasesAreLogged(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answersStatus(500))
	p := start(t, conf{store: "store memory", site: lines("header >X-Key {http.dedup.key}",
		"handle /hold {", dedupBlock("on_unknown hold", "release_on off"), "reverse_proxy "+up.addr+" {", "transport http {", "response_header_timeout 200ms", "}", "}", "}",
		"handle {", dedupBlock("on_missing reject"), proxyTo(up), "}")})

	released := p.post(t, "/", "k", "body")
	p.awaitLog(t, "the release", func(e entry) bool {
		return strings.Contains(e.text("msg"), "released") && e.text("execution_id") == released.executionID() &&
			e.text("key") == released.Header.Get("X-Key") && e.text("status") == "500"
	})
	p.post(t, "/", "", "body")
	p.awaitLog(t, "the refusal of a missing key", func(e entry) bool { return e.text("code") == "idempotency_key_missing" })

	first := p.post(t, "/hold", "held", "body")
	reused := p.post(t, "/hold", "held", "another")
	wantProblem(t, reused, 422, "idempotency_key_reused")
	p.awaitLog(t, "the refusal of a reused key", func(e entry) bool {
		return e.text("code") == "idempotency_key_reused" && e.text("key") == first.Header.Get("X-Key") &&
			e.text("execution_id") == first.executionID()
	})
}

// An operator who has a delivery ID from its sender finds all lines about it.
func TestLinesAboutAKeyNameTheDelivery(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		switch r.URL.Path {
		case "/free":
			answersStatus(500)(w, r, n)
		case "/held":
			noAnswer(w, r, n)
		default:
			answers201(w, r, n)
		}
	})
	p := start(t, conf{store: "store memory", site: lines(dedupBlock("on_unknown hold", "force X-Force"), proxyTo(up))})
	p.post(t, "/free", "delivery-free", "body")
	p.post(t, "/kept", "delivery-kept", "body")
	p.post(t, "/kept", "delivery-kept", "another")
	p.post(t, "/kept", "delivery-kept", "body", header("X-Force", "true"))
	p.post(t, "/held", "delivery-held", "body")
	held := wantProblem(t, p.post(t, "/held", "delivery-held", "body"), 409, "outcome_unknown")
	p.operator(t, http.MethodPost, held.Key+"/release", 204)
	p.operator(t, http.MethodDelete, held.Key, 204)
	for id, messages := range map[string][]string{
		"delivery-free": {"released: "},
		"delivery-kept": {"refused a request", "forced: "},
		"delivery-held": {"held: ", "refused a request", "an operator released a key", "an operator forgot a key"},
	} {
		for _, message := range messages {
			p.awaitLog(t, "the line "+message+" of "+id, func(e entry) bool {
				return strings.HasPrefix(e.text("msg"), message) && e.text("delivery_id") == id
			})
		}
	}
}

// A provider or a key that was named wrongly shows in the log, without debug logs and
// without a flood.
func TestMissingKeyIsLogged(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines(
		"handle /api {", "dedup", proxyTo(up), "}",
		"handle /rejected {", dedupBlock("mode webhook", "key header X-Id", "on_missing reject"), proxyTo(up), "}",
		"handle /json {", dedupBlock("key json /id"), proxyTo(up), "}",
		"handle /invalid {", "dedup github", proxyTo(up), "}",
		"handle {", "dedup github gitlab", proxyTo(up), "}")})
	missing := func(e entry) bool { return strings.HasPrefix(e.text("msg"), "missing: ") }
	p.post(t, "/rejected", "", "{}")
	p.post(t, "/invalid", "", "{}", header("X-GitHub-Delivery", strings.Repeat("x", 300)))
	p.post(t, "/json", "", `{"id":`)
	p.post(t, "/api", "", "{}")
	p.post(t, "/hook?token=secret", "", "{}")
	for path, want := range map[string]struct{ provider, lookedFor, reason string }{
		"/hook":    {"github, gitlab", "header X-GitHub-Delivery", "header X-GitHub-Delivery: it is not there"},
		"/api":     {"", "[header Idempotency-Key]", "no idempotency key or delivery ID"},
		"/json":    {"", "[json /id]", "JSON"},
		"/invalid": {"github", "header X-GitHub-Delivery", "the delivery ID is invalid: "},
	} {
		line := p.awaitLog(t, "the missing key of "+path, func(e entry) bool { return missing(e) && e.text("path") == path })
		if line.text("level") != "info" || line.text("provider") != want.provider || !strings.Contains(line.text("looked_for"), want.lookedFor) ||
			!strings.Contains(line.text("reason"), want.reason) || line.text("left_out") != "0" {
			t.Errorf("the line is %v", line)
		}
	}
	if all := p.log.find(missing); len(all) != 4 {
		t.Errorf("%d lines are about missing keys, want 4: %v", len(all), all)
	}
	p.wantLeftOut(t, func(e entry) bool { return missing(e) && e.text("path") == "/hook" })
}

// wantLeftOut sends hooks until a line counts those of which there is none.
func (p *caddy) wantLeftOut(t *testing.T, about func(entry) bool) {
	t.Helper()
	counted := func(e entry) bool { return about(e) && e.text("left_out") != "0" }
	sent := 0
	for deadline := time.Now().Add(patience); len(p.log.find(counted)) == 0; sent++ {
		if time.Now().After(deadline) {
			t.Fatal("no line counts those that are left out")
		}
		p.post(t, "/hook", "", "{}")
	}
	if n := len(p.log.find(about)); n > sent {
		t.Errorf("%d requests have left %d lines", sent+1, n)
	}
}

// Who has to decide on a held key reads in the log what happened to the request.
func TestHeldLineSaysWhatHappened(t *testing.T) {
	t.Parallel()
	ends := map[string]struct {
		answer answering
		says   string
	}{
		"/no-answer":   {noAnswer, "EOF"},
		"/too-slow":    {untilGone, "deadline exceeded"},
		"/cut-body":    {cutBody, "cut off"},
		"/bad-gateway": {answersStatus(502), "answered with 502"},
	}
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) { ends[r.URL.Path].answer(w, r, n) })
	p := start(t, conf{store: "store memory", site: lines(dedupBlock("on_unknown hold", "timeout 2s"), proxyTo(up))})
	for path, end := range ends {
		_, _ = try(oneShot, p.newPost(path+"?token=secret", path, "body", host("shop.test"))) // it may be cut off
		held := p.awaitLog(t, "that the key of "+path+" is held", func(e entry) bool {
			return strings.HasPrefix(e.text("msg"), "held: ") && e.text("delivery_id") == path
		})
		for field, want := range map[string]string{
			"method": "POST", "host": "shop.test", "path": path, "upstream": up.addr, "execution_id": "", "attempt": "1",
		} {
			if got := held.text(field); got == "" || want != "" && got != want {
				t.Errorf("%s: the line's %s is %q, want %q", path, field, got, want)
			}
		}
		if !strings.Contains(held.text("error"), end.says) {
			t.Errorf("%s: the line's error is %q, want one with %q", path, held.text("error"), end.says)
		}
	}
}

// Records, refusals and logs never show a credential.
func TestCredentialsAreNotLogged(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, inTurn(answersStatus(500), answers201))
	p := start(t, conf{store: "store file", global: "debug", site: lines("log", "dedup", proxyTo(up))})
	secret := header("Authorization", "Bearer very-secret-token")
	apiKey := header("X-Api-Key", "another-secret")
	for range 3 {
		p.post(t, "/", "k", "body", secret)
		p.post(t, "/", "k", "body", apiKey)
	}
	p.post(t, "/", "k", "other body", secret)
	p.awaitLog(t, "the refusal", func(e entry) bool { return e.text("code") == "idempotency_key_reused" })
	for _, e := range p.log.find(func(e entry) bool { return strings.Contains(e.text("logger"), "dedup") }) {
		for field := range e {
			if strings.Contains(e.text(field), "very-secret-token") || strings.Contains(e.text(field), "another-secret") {
				t.Errorf("logged: %v", e)
			}
		}
	}
}
