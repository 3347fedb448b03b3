package integration

import (
	"fmt"
	"net/http"
	"testing"
)

// handshakes are requests by which providers try an endpoint, or are told to stop.
var handshakes = map[string][]sent{
	"slack": bodies(`{"token":"Jhj5dZrVaK7ZwHHjRyZWjbDl","challenge":"3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P","type":"url_verification","event_id":"Ev1"}`),
	"sns": {
		{body: `{"Type":"SubscriptionConfirmation","Token":"2336412f37"}`, options: []option{header("x-amz-sns-message-type", "SubscriptionConfirmation"), header("x-amz-sns-message-id", "165545c9")}},
		{body: `{"Type":"UnsubscribeConfirmation","Token":"2336412f37"}`, options: []option{header("x-amz-sns-message-type", "UnsubscribeConfirmation"), header("x-amz-sns-message-id", "47138184")}},
	},
	"eventgrid": {{
		body:    `[{"id":"2d1781af","topic":"/subscriptions/x","eventType":"Microsoft.EventGrid.SubscriptionValidationEvent","data":{"validationCode":"512d38b6"}}]`,
		options: []option{header("aeg-event-type", "SubscriptionValidation")},
	}},
	"twitch": {{
		body:    `{"challenge":"pogchamp-kappa-360noscope-vohiyo","subscription":{"id":"f1c2a387"}}`,
		options: []option{header("Twitch-Eventsub-Message-Type", "webhook_callback_verification"), header("Twitch-Eventsub-Message-Id", "befa7b53")},
	}},
	"asana":   {{options: []option{header("X-Hook-Secret", "b537207f20cbfa02357cf448134da559e8bd39d61597dcd5631b8012eae53e81")}}},
	"discord": {lined(`{"version":1,"application_id":"1234560123453231555","type":0}`, "X-Signature-Ed25519: a")},
	"zoom":    {lined(`{"event":"endpoint.url_validation","event_ts":1654503849680,"payload":{"plainToken":"qgg8vlvZRS6UYooatFL8Aw"}}`, "x-zm-signature: v0=a")},
	"gusto":   bodies(`{"verification_token":"a","webhook_subscription_uuid":"b"}`),
	"line":    bodies(`{"destination":"U1","events":[]}`),
	"stripe":  {lined(`{"id":"evt_00000000000000","object":"event","type":"charge.succeeded"}`, "Stripe-Signature: t=1,v1=a")},
	"notion":  bodies(`{"verification_token":"secret_tMrlL1qK5vuQAh1b6cZGhFChZTSYJlce98V0pYn7yBl"}`),
}

// A handshake reaches the upstream each time, whatever is missing.
func TestHandshakesPass(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	blocks := make(map[string]string)
	for name := range handshakes {
		blocks["/"+name] = "dedup " + name
		blocks["/strict/"+name] = lines("dedup "+name+" {", "on_missing reject", "}")
	}
	blocks["/several"] = "dedup sns slack twitch eventgrid"
	p := start(t, conf{store: "store memory", site: onPaths(up, blocks)})
	for name, requests := range handshakes {
		wantNoKey(t, p, up, "/"+name, requests)
		wantNoKey(t, p, up, "/strict/"+name, requests)
	}
	for _, name := range []string{"sns", "slack", "twitch", "eventgrid"} {
		wantNoKey(t, p, up, "/several", handshakes[name])
	}
	wantProblem(t, p.send(t, "/strict/slack", sent{body: `{"type":"event_callback"}`}), 400, "idempotency_key_missing")
	// What is no handshake of this provider is a delivery as any.
	wantKeys(t, p, "/slack", []sent{lined(`{"type":"event_callback","event":{"type":"url_verification"},"event_id":"Ev1"}`, "X-Slack-Signature: v0=a")})
	wantKeys(t, p, "/sns", []sent{{body: "{}", options: []option{header("x-amz-sns-message-type", "Notification"), header("x-amz-sns-message-id", "165545c9")}}})
}

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
