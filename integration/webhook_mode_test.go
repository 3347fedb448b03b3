package integration

import (
	"fmt"
	"net/http"
	"testing"
)

// Every answer that a sender takes for a failure frees the delivery.
func TestWebhookIsRunAgainAfterAFailure(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store string) {
		failures := []int{301, 308, 400, 401, 404, 409, 410, 422, 429, 500, 503}
		up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
			if n.N <= len(failures) {
				answersStatus(failures[n.N-1])(w, r, n)
				return
			}
			answersStatus(204)(w, r, n)
		})
		p := start(t, conf{store: store, site: lines("dedup github", proxyTo(up))})
		for n, status := range failures {
			wantFresh(t, p.post(t, "/", "", "{}", header("X-GitHub-Delivery", "d")), status, fmt.Sprintf("run %d of d", n+1))
			wantAttempt(t, up, "d", n+1, fmt.Sprint(n+1))
		}
		done := p.post(t, "/", "", "{}", header("X-GitHub-Delivery", "d"))
		wantFresh(t, done, 204, "")
		// The body is no part of a delivery.
		wantReplay(t, p.post(t, "/", "", "other", header("X-GitHub-Delivery", "d")), done)
		up.wantRuns(t, "d", len(failures)+1)
	})
}

func TestWebhookInFlightIsRefusedForLater(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	up := startUpstream(t, g.before(answers201))
	p := start(t, conf{store: "store memory", site: lines("dedup stripe {", "wait off", "}", proxyTo(up))})
	signed := header("Stripe-Signature", "t=1,v1=a")
	first := p.postLater("/", "", `{"id":"evt_1"}`, signed)
	up.awaitRuns(t, "", 1)
	refused := p.post(t, "/", "", `{"id":"evt_1"}`, signed)
	wantProblem(t, refused, 503, "request_in_flight")
	wantRetryAfter(t, refused)
	g.open()
	done := first.reply(t)
	wantReplay(t, p.post(t, "/", "", `{"id":"evt_1"}`, signed), done)
}

// A fingerprint is for those who ask for one.
func TestWebhookWithAFingerprint(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines("dedup github {", "fingerprint json", "}", proxyTo(up))})
	delivery := header("X-GitHub-Delivery", "d")
	first := p.post(t, "/", "", `{"a":1}`, delivery)
	wantReplay(t, p.post(t, "/", "", `{ "a": 1 }`, delivery), first)
	wantProblem(t, p.post(t, "/", "", `{"a":2}`, delivery), 422, "idempotency_key_reused")
}

// Providers can be served to clients of an API, whose rules then are an API's.
func TestProviderInAPIMode(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answersStatus(404))
	p := start(t, conf{store: "store memory", site: lines("dedup github {", "mode api", "}", proxyTo(up))})
	delivery := header("X-GitHub-Delivery", "d")
	first := p.post(t, "/", "", "{}", delivery)
	wantReplay(t, p.post(t, "/", "", "{}", delivery), first)
	wantProblem(t, p.post(t, "/", "", "other", delivery), 422, "idempotency_key_reused")
	wantProblem(t, p.post(t, "/", "", "{}", header("X-GitHub-Delivery", `"`)), 400, "idempotency_key_invalid")
	// Another caller is another scope.
	wantFresh(t, p.post(t, "/", "", "{}", delivery, header("Authorization", "x")), 404, "run 2 of d")
}
