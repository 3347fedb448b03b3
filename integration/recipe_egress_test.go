package integration

import (
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// startTLS is an upstream that speaks TLS, and a transport that trusts it.
func startTLS(t *testing.T, answer answering) (up *upstream, transport string) {
	t.Helper()
	up = &upstream{answer: answer}
	server := httptest.NewTLSServer(up)
	t.Cleanup(server.Close)
	up.addr = server.Listener.Addr().String()
	file := filepath.Join(shortTempDir(t), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return up, "https://" + up.addr + " {\ntransport http {\ntls_trust_pool file " + file + "\n}\n"
}

func TestRecipeEgress(t *testing.T) {
	const secret = "T0/B0/xyzzy"
	t.Setenv("SLACK_WEBHOOK", secret)
	t.Setenv("STRIPE_KEY", "sk_xyzzy")
	server := redistest.Start(t)
	slack, toSlack := startTLS(t, startsRuns)
	payments, toPayments := startTLS(t, startsRuns)
	r := readRecipe(t, "egress.md").on(t, server.Addr).
		with(t, "on_unknown hold\n", "on_unknown hold\nrelease_if /ok false\n", "https://hooks.slack.com {\n", toSlack, "https://api.stripe.com {\n", toPayments)
	a, b := r.start(t), r.start(t)
	send := func(p *caddy, path, key string, options ...option) reply {
		return p.post(t, path, key, "{}", append(options, host("egress.test"))...)
	}

	// One repeat at each replica, whoever calls.
	first := send(a, "/slack", "m-1", header("Authorization", "Bearer own"))
	wantFresh(t, first, 201, `{"id": "run-1", "state": "queued"}`)
	wantReplay(t, send(b, "/slack", "m-1", header("Authorization", "Bearer other")), first)
	if got := slack.all()[0]; got.URI != "/services/"+secret || got.Host != slack.addr || got.Header.Get("Authorization") != "" {
		t.Errorf("Slack got %s at %s with %v", got.URI, got.Host, got.Header)
	}
	first = send(a, "/payments/v1/charges", "m-1")
	wantFresh(t, first, 201, `{"id": "run-1", "state": "queued"}`)
	wantReplay(t, send(b, "/payments/v1/charges", "m-1"), first)
	if got := payments.all()[0]; got.URI != "/v1/charges" || got.Key != "m-1" || got.Header.Get("Authorization") != "Bearer sk_xyzzy" {
		t.Errorf("the payment provider got %s with key %q and %v", got.URI, got.Key, got.Header)
	}
	wantProblem(t, a.post(t, "/slack", "m-1", `{"other": 1}`), 422, "idempotency_key_reused")
	wantProblem(t, a.post(t, "/slack", "", "{}"), 400, "idempotency_key_missing")

	// What was refused is called again; a lost answer is held, unless the API knows keys.
	for _, fail := range []string{"429", "503", "says so"} {
		send(a, "/slack", "m-2", header("Fail", fail))
	}
	wantAnswer(t, send(b, "/slack", "m-2"), 201, `{"id": "run-4", "state": "queued"}`)
	send(a, "/slack", "m-3", header("Fail", "no answer"))
	wantProblem(t, send(b, "/slack", "m-3"), 409, "outcome_unknown")
	send(a, "/payments/v1/charges", "m-3", header("Fail", "no answer"))
	wantAnswer(t, send(b, "/payments/v1/charges", "m-3"), 201, `{"id": "run-2", "state": "queued"}`)

	if _, err := try(oneShot, a.newPost("/slack", "m-4", "{}", header("Fail", "cut"))); err == nil {
		t.Error("a cut answer is whole")
	}
	if _, records := a.askAdmin(t, "GET", "/dedup/keys?limit=1000", "", ""); strings.Contains(records, "xyzzy") || strings.Count(records, `"path":"/slack"`) != 4 {
		t.Errorf("the records are %s", records)
	}
	for _, p := range []*caddy{a, b} {
		if log := p.log.String(); strings.Contains(log, "xyzzy") {
			t.Errorf("a secret is in the log:\n%s", log)
		}
	}
}
