package delivery_test

import (
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

func TestPassThrough(t *testing.T) {
	for name, c := range map[string]struct{ passes, claimed []sample }{
		"slack": {
			passes:  []sample{{"", `{"token":"t","challenge":"3eZbrw1a","type":"url_verification"}`}},
			claimed: []sample{{"", `{"type":"event_callback","event_id":"a"}`}, {"", `{"event":{"type":"url_verification"}}`}, {"", `type=url_verification`}, {"", ``}},
		},
		"sns": {
			passes:  []sample{{"x-amz-sns-message-type: SubscriptionConfirmation", ""}, {"X-Amz-Sns-Message-Type: UnsubscribeConfirmation", ""}},
			claimed: []sample{{"x-amz-sns-message-type: Notification", ""}, {"", `{"Type":"SubscriptionConfirmation"}`}},
		},
		"eventgrid": {
			passes:  []sample{{"aeg-event-type: SubscriptionValidation", `[{"id":"a","topic":"t","eventType":"Microsoft.EventGrid.SubscriptionValidationEvent"}]`}},
			claimed: []sample{{"aeg-event-type: Notification", `[]`}, {"", ""}},
		},
		"twitch": {
			passes:  []sample{{"Twitch-Eventsub-Message-Type: webhook_callback_verification", "{}"}},
			claimed: []sample{{"Twitch-Eventsub-Message-Type: notification", "{}"}, {"Twitch-Eventsub-Message-Type: revocation", "{}"}},
		},
		"asana": {
			passes:  []sample{{"X-Hook-Secret: b537207f", ""}, {"X-Hook-Signature: a", `{"events":[]}`}},
			claimed: []sample{{"X-Hook-Signature: a", `{"events":[{}]}`}, {"X-Hook-Signature: a", `{"events":{}}`}, {"X-Hook-Signature: a", `{}`}, {"", `{"events":[]}`}},
		},
		"discord": {
			passes:  []sample{{"X-Signature-Ed25519: a", `{"version":1,"application_id":"1","type":0}`}},
			claimed: []sample{{"X-Signature-Ed25519: a", `{"version":1,"application_id":"1","type":1}`}, {"X-Signature-Ed25519: a", `{"version":0}`}, {"", `{"type":0}`}},
		},
		"line": {
			passes:  []sample{{"", `{"destination":"U1","events":[]}`}, {"", `{"events": [ ]}`}},
			claimed: []sample{{"", `{"events":[{"webhookEventId":"a"}]}`}, {"", `{"events":[null]}`}, {"", `{"events":null}`}, {"", `{"events":""}`}, {"", `{}`}, {"", `[]`}, {"", ""}},
		},
		"gusto": {
			passes:  []sample{{"", `{"verification_token":"a","webhook_subscription_uuid":"b"}`}},
			claimed: []sample{{"", `{"uuid":"a"}`}},
		},
		"zoom": {
			passes:  []sample{{"x-zm-signature: v0=a", `{"event":"endpoint.url_validation","event_ts":1,"payload":{"plainToken":"q"}}`}},
			claimed: []sample{{"x-zm-signature: v0=a", `{"event":"meeting.started"}`}, {"", `{"event":"endpoint.url_validation"}`}},
		},
		"stripe": {
			passes:  []sample{{"Stripe-Signature: t=1,v1=a", `{"id":"evt_00000000000000","object":"event","type":"charge.succeeded"}`}},
			claimed: []sample{{"Stripe-Signature: t=1,v1=a", `{"id":"evt_000000000000001"}`}, {"Stripe-Signature: t=1,v1=a", `{"id":"evt_1","data":{"object":{"id":"ch_00000000000000"}}}`}, {"", `{"id":"evt_00000000000000"}`}},
		},
		"notion": {
			passes:  []sample{{"", `{"verification_token":"secret_x"}`}},
			claimed: []sample{{"", `{"id":"a"}`}, {"", `{"id":"a","verification_token":null}`}},
		},
	} {
		p, _ := delivery.ProviderNamed(name)
		for _, s := range c.passes {
			if found, ok := delivery.PassThrough([]delivery.Provider{p}, nil, s.request()); !ok || found != name {
				t.Errorf("%s: %+v does not pass", name, s)
			}
		}
		for _, s := range c.claimed {
			if passesThrough(p, s) {
				t.Errorf("%s: %+v passes", name, s)
			}
		}
	}
	for _, p := range delivery.Providers() {
		if passes := passesThrough(p, everyHandshake) || passesThrough(p, ping); passes != (len(p.Passes) > 0) {
			t.Errorf("provider %s has the rules %v, which a test must try", p.Name, p.Passes)
		}
	}
}

// passesThrough reports whether the provider's requests of this kind pass.
func passesThrough(p delivery.Provider, s sample) bool {
	_, ok := delivery.PassThrough([]delivery.Provider{p}, nil, s.request())
	return ok
}

// everyHandshake carries the handshakes of all providers at once, and ping is what
// Discord sends. For every provider that has rules for such requests, one of the two
// passes through.
var everyHandshake = sample{
	"x-amz-sns-message-type: SubscriptionConfirmation\naeg-event-type: SubscriptionValidation\nTwitch-Eventsub-Message-Type: webhook_callback_verification\nX-Hook-Secret: a\nx-zm-signature: a\nStripe-Signature: t=1,v1=a",
	`{"type":"url_verification","verification_token":"a","event":"endpoint.url_validation","events":[],"id":"evt_00000000000000"}`,
}

var ping = sample{"X-Signature-Ed25519: a", `{"type":0}`}

func TestPassThroughNamesTheProvider(t *testing.T) {
	var providers []delivery.Provider
	for _, name := range []string{"github", "slack", "sns"} {
		p, _ := delivery.ProviderNamed(name)
		providers = append(providers, p)
	}
	if name, ok := delivery.PassThrough(providers, nil, everyHandshake.request()); !ok || name != "slack" {
		t.Errorf("got %q, %v; want the first that has it pass, slack", name, ok)
	}
	large := sample{"x-amz-sns-message-type: SubscriptionConfirmation", ""}.request()
	large.Body = func() ([]byte, error) { return nil, delivery.ErrBodyTooLarge }
	if name, ok := delivery.PassThrough(providers, nil, large); !ok || name != "sns" {
		t.Errorf("with a body that is too large: got %q, %v; want sns, by its header", name, ok)
	}
	if name, ok := delivery.PassThrough(nil, nil, everyHandshake.request()); ok {
		t.Errorf("without providers: got %q", name)
	}
}

// What only looks like a handshake is a delivery of whoever's header field it has: a sender
// whose bodies are the user's own may have any member in them.
func TestHandshakeWithKeyOfAnotherSender(t *testing.T) {
	var providers []delivery.Provider
	for _, name := range []string{"notion", "line", "zoom", "sns", "svix", "github", "stripe"} {
		p, _ := delivery.ProviderNamed(name)
		providers = append(providers, p)
	}
	for name, c := range map[string]struct {
		sample
		passes string
	}{
		"the handshake of notion":               {sample{"", `{"verification_token":"x"}`}, "notion"},
		"the check of line":                     {sample{"X-Line-Signature: a", `{"events":[]}`}, "line"},
		"a delivery of svix, as notion":         {sample{"svix-id: x\nsvix-signature: v1", `{"verification_token":"x","a":1}`}, ""},
		"a delivery of svix, as line":           {sample{"svix-id: x", `{"events":[]}`}, ""},
		"a delivery of github, as line":         {sample{"X-GitHub-Delivery: x", `{"events":[]}`}, ""},
		"the handshake of zoom, which it signs": {sample{"x-zm-signature: a\nX-GitHub-Delivery: x", `{"event":"endpoint.url_validation"}`}, "zoom"},
		"the handshake of sns": {sample{"x-amz-sns-message-type: SubscriptionConfirmation\nx-amz-sns-message-id: 1\nx-amz-sns-topic-arn: t",
			`{"Type":"SubscriptionConfirmation"}`}, "sns"},
	} {
		if found, ok := delivery.PassThrough(providers, nil, c.request()); found != c.passes || ok != (c.passes != "") {
			t.Errorf("%s: got %q, %v; want %q", name, found, ok, c.passes)
		}
	}
}
