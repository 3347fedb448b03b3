package signature

import (
	"fmt"
	"strings"
	"time"
)

// provider is an entry of the catalogue. Where a comment names no other source, the scheme was read
// in the provider's own page, code or SDK.
type provider struct {
	name    string
	schemes []scheme
	within  time.Duration // the default tolerance of a timestamp
	// foreign is what fields of other senders begin with, which send fields of this provider's
	// name too.
	foreign   []string
	challenge challenge
	handshake string
	id        Coverage
	source    Source
	note      string
}

// Most vendors that state a tolerance state five minutes or less.
const (
	fiveMinutes = 5 * time.Minute
	tenMinutes  = 10 * time.Minute
)

// What is said of handshakes, the requests by which a sender sets a webhook up.
const (
	handshakeSigned  = "signed"
	handshakePasses  = "unsigned, and passes: "
	handshakeRefused = "unsigned, and refused: set the webhook up before verify, or under observe: "
)

// GitHub's fields are sent by Gitea and Forgejo too.
var (
	codeForges = []string{"X-Gitea-", "X-Forgejo-", "X-Gogs-"}
	codeHosts  = append([]string{"X-GitHub-"}, codeForges...)
)

func ofBody(field string) scheme { return scheme{Scheme: Scheme{Header: field}} }

func prefixed(field string) scheme {
	return scheme{Scheme: Scheme{Header: field, Format: "sha256={signature}"}}
}

func inBase64(field string) scheme {
	return scheme{Scheme: Scheme{Header: field, Encoding: "base64"}}
}

func equal(field string) scheme { return scheme{Scheme: Scheme{Header: field}, kind: token} }

func basicAuth() scheme {
	return scheme{Scheme: Scheme{Header: "Authorization", SecretEncoding: secretUser}, kind: basic}
}

// standardWebhooks is the scheme of standard-webhooks.com, whose fields begin with webhook- or svix-.
// Its public keys, version v1a, are left out: no sender of the catalogue is known to use them alone.
func standardWebhooks(fields, secret string) scheme {
	return scheme{
		Scheme: Scheme{
			Header: fields + "signature", Format: "v1,{signature} v1,{signature}", Encoding: "base64", SecretEncoding: secret,
			Signed: "{" + fieldPrefix + fields + "id}.{timestamp}.{body}", TimeHeader: fields + "timestamp",
		},
		id: fields + "id",
	}
}

// timed is a scheme over a timestamp in a field, and the body.
func timed(s scheme, field, unit, signed string) scheme {
	s.TimeHeader, s.Unit, s.Signed = field, unit, signed
	return s
}

func isSigningToken(secret string) bool { return strings.HasPrefix(secret, whsec) }

func isPlainToken(secret string) bool { return !isSigningToken(secret) }

func list(s ...scheme) []scheme { return s }

// catalogue has every provider that can be verified, sorted by name.
var catalogue = []provider{
	{name: "adyen", id: CoversPart, schemes: list(scheme{Scheme: Scheme{Encoding: "base64", SecretEncoding: "hex", Signed: defaultSigned}, kind: ofAdyen}),
		note: "Of each item, pspReference, originalReference, merchantAccountCode, merchantReference, amount, eventCode and success are signed, and nothing else. " +
			"Every item has to verify. Webhooks of Adyen's platforms, with HmacSignature in the header, are not covered."},
	{name: "asaas", id: CoversNothing, schemes: list(equal("asaas-access-token"))},
	{name: "asana", schemes: list(ofBody("X-Hook-Signature")),
		handshake: handshakeRefused + "the POST with X-Hook-Secret brings the secret"},
	// The provider's page names only static fields; the scheme is from hookdeck's notes.
	{name: "bigcommerce", within: fiveMinutes, source: Secondary, schemes: list(standardWebhooks("webhook-", "text")),
		note: "The secret is the app's client secret, as text."},
	// From hookdeck/webhook-skills; bitbucket.org says that signatures exist.
	{name: "bitbucket", id: CoversNoID, source: Secondary, schemes: list(prefixed("X-Hub-Signature"))},
	{name: "box", within: tenMinutes, schemes: list(timed(scheme{
		Scheme: Scheme{Header: "BOX-SIGNATURE-PRIMARY", Encoding: "base64"}, second: "BOX-SIGNATURE-SECONDARY",
		fixed: []field{{"BOX-SIGNATURE-VERSION", "1"}, {"BOX-SIGNATURE-ALGORITHM", "HmacSHA256"}},
	}, "BOX-DELIVERY-TIMESTAMP", "rfc3339", "{body}{timestamp}")),
		note: "Box's SDK also tries the body with its non-ASCII characters escaped; that form is left out, and such a body has to arrive as Box sent it."},
	{name: "chargebee", id: CoversNothing, schemes: list(basicAuth())},
	{name: "circleci", schemes: list(scheme{Scheme: Scheme{Header: "circleci-signature", Format: "v1={signature},v1={signature}"}}),
		handshake: handshakeSigned},
	{name: "clerk", within: fiveMinutes, schemes: list(standardWebhooks("svix-", secretWhsec))},
	{name: "convoy", within: fiveMinutes, id: CoversNoID, schemes: list(scheme{Scheme: Scheme{Header: "X-Convoy-Signature"}, kind: ofConvoy}),
		note: "Convoy signs the compact JSON, so that white space between its tokens may change. Hooks that it sends as forms are left out: it signs their JSON."},
	{name: "discord", schemes: list(timed(scheme{Scheme: Scheme{Header: "X-Signature-Ed25519"}, kind: publicKeyEd25519},
		"X-Signature-Timestamp", "s", "{timestamp}{body}")),
		handshake: handshakeSigned},
	{name: "dropbox", schemes: list(ofBody("X-Dropbox-Signature")),
		challenge: challenge{method: "GET", parameter: "challenge"}, handshake: handshakePasses + "GET with challenge"},
	// From vgi-forge-forgejo, which says that it follows Forgejo.
	{name: "forgejo", id: CoversNoID, source: Secondary, schemes: list(ofBody("X-Forgejo-Signature"), ofBody("X-Gitea-Signature")),
		note: "Hooks with the content type of a form are left out: their JSON is signed, not the form."},
	{name: "fourthwall", schemes: list(inBase64("X-Fourthwall-Hmac-SHA256"), inBase64("X-Fourthwall-Hmac-Apps-SHA256"))},
	{name: "gitea", id: CoversNoID, schemes: list(ofBody("X-Gitea-Signature")),
		note: "Hooks with the content type of a form are left out: their JSON is signed, not the form."},
	{name: "github", id: CoversNoID, foreign: codeForges, schemes: list(prefixed("X-Hub-Signature-256")), handshake: handshakeSigned},
	// That the signing token begins with whsec_ is from receivers.
	{name: "gitlab", within: fiveMinutes, source: PartlySecondary, schemes: list(
		scheme{Scheme: standardWebhooks("webhook-", secretWhsec).Scheme, id: "webhook-id", takes: isSigningToken},
		scheme{Scheme: Scheme{Header: "X-Gitlab-Token"}, kind: token, takes: isPlainToken},
	),
		note: "A secret that begins with whsec_ is a signing token; another one is the plain secret token, which signs nothing."},
	// From public receivers.
	{name: "gusto", source: Secondary, schemes: list(ofBody("X-Gusto-Signature")),
		handshake: handshakeRefused + "the POST with verification_token brings the secret"},
	{name: "hugging_face", id: CoversNothing, schemes: list(equal("X-Webhook-Secret"), scheme{parameter: "secret", kind: token})},
	// From hookdeck's notes and webhookdb; the HEAD is from the provider's page.
	{name: "intercom", foreign: codeHosts, source: Secondary,
		schemes:   list(scheme{Scheme: Scheme{Header: "X-Hub-Signature", Format: "sha1={signature}", Algorithm: "sha1"}}),
		challenge: challenge{method: "HEAD"}, handshake: handshakePasses + "HEAD"},
	// From hookdeck/webhook-skills, trigger.dev and n8n.
	{name: "jira", id: CoversNoID, source: Secondary, schemes: list(prefixed("X-Hub-Signature"))},
	{name: "lemon_squeezy", schemes: list(ofBody("X-Signature"))},
	{name: "line", schemes: list(inBase64("X-Line-Signature")), handshake: handshakeSigned},
	// The field Linear-Timestamp is not signed; the body's member is.
	{name: "linear", within: fiveMinutes, id: CoversNoID, schemes: list(scheme{Scheme: Scheme{Header: "Linear-Signature"}, pointer: "/webhookTimestamp"})},
	{name: "meta", foreign: codeHosts, schemes: list(prefixed("X-Hub-Signature-256")),
		challenge: challenge{method: "GET", parameter: "hub.challenge"}, handshake: handshakePasses + "GET with hub.challenge"},
	{name: "notion", schemes: list(prefixed("X-Notion-Signature")),
		handshake: handshakeRefused + "the POST with verification_token brings the secret"},
	// The field is from the provider's page, hash and encoding from a gist.
	{name: "nylas", source: PartlySecondary, schemes: list(ofBody("X-Nylas-Signature")),
		challenge: challenge{method: "GET", parameter: "challenge"}, handshake: handshakePasses + "GET with challenge"},
	{name: "okta", id: CoversNothing, schemes: list(equal("Authorization")),
		challenge: challenge{method: "GET", field: "X-Okta-Verification-Challenge"}, handshake: handshakePasses + "GET with X-Okta-Verification-Challenge"},
	{name: "openai", within: fiveMinutes, schemes: list(standardWebhooks("webhook-", secretWhsecOrText))},
	{name: "outpost", id: CoversNoID, schemes: list(scheme{Scheme: Scheme{Header: "X-Outpost-Signature", Format: "v0={signature},{signature}"}}),
		note: "The default secret begins with whsec_, and all of it is the key. Where an operator has changed the content or the encoding, write verify hmac; where Standard Webhooks are set, name standard_webhooks."},
	{name: "paddle", within: fiveMinutes, schemes: list(scheme{Scheme: Scheme{Header: "Paddle-Signature", Format: "ts={timestamp};h1={signature}", Signed: "{timestamp}:{body}"}})},
	{name: "pagerduty", id: CoversNoID, schemes: list(scheme{Scheme: Scheme{Header: "X-PagerDuty-Signature", Format: "v1={signature},v1={signature}"}})},
	{name: "pandadoc", id: CoversNoID, schemes: list(scheme{parameter: "signature"})},
	{name: "postmark", id: CoversNothing, schemes: list(basicAuth())},
	{name: "prolific", id: CoversNoID, schemes: list(timed(inBase64("X-Prolific-Request-Signature"), "X-Prolific-Request-Timestamp", "s", "{timestamp}{body}"))},
	{name: "razorpay", id: CoversNoID, schemes: list(ofBody("X-Razorpay-Signature"))},
	{name: "replicate", within: fiveMinutes, schemes: list(standardWebhooks("webhook-", secretWhsec))},
	{name: "resend", within: fiveMinutes, schemes: list(standardWebhooks("svix-", secretWhsec))},
	{name: "sendgrid", schemes: list(timed(scheme{Scheme: Scheme{Header: "X-Twilio-Email-Event-Webhook-Signature", Encoding: "base64"}, kind: publicKeyECDSA},
		"X-Twilio-Email-Event-Webhook-Timestamp", "s", "{timestamp}{body}"))},
	{name: "sentry", schemes: list(ofBody("Sentry-Hook-Signature"))},
	{name: "sevalla", id: CoversNothing, schemes: list(equal("svl-signature")), note: "The field has the secret itself, whsec_ included."},
	{name: "shopify", id: CoversNoID, schemes: list(inBase64("Shopify-Hmac-Sha256"), inBase64("X-Shopify-Hmac-Sha256"))},
	{name: "slack", within: fiveMinutes, schemes: list(timed(scheme{Scheme: Scheme{Header: "X-Slack-Signature", Format: "v0={signature}"}},
		"X-Slack-Request-Timestamp", "s", "v0:{timestamp}:{body}")),
		handshake: handshakeSigned},
	{name: "square", schemes: list(scheme{Scheme: Scheme{Header: "x-square-hmacsha256-signature", Encoding: "base64", Signed: "{url}{body}"}}),
		note: "The URL is signed as it is registered. With several, the body has to be a JSON object."},
	{name: "standard_webhooks", within: fiveMinutes, schemes: list(standardWebhooks("webhook-", secretWhsec))},
	{name: "stripe", within: fiveMinutes, schemes: list(scheme{Scheme: Scheme{Header: "Stripe-Signature", Format: "t={timestamp},v1={signature}", Signed: "{timestamp}.{body}"}})},
	{name: "svix", within: fiveMinutes, schemes: list(standardWebhooks("svix-", secretWhsec)),
		note: "Where a sender of Svix uses fields that begin with webhook-, name standard_webhooks."},
	// From pages of SDKs that repeat core.telegram.org.
	{name: "telegram", id: CoversNothing, source: Secondary, schemes: list(equal("X-Telegram-Bot-Api-Secret-Token"))},
	{name: "twilio", id: CoversNoID, schemes: list(scheme{Scheme: Scheme{Header: "X-Twilio-Signature", Algorithm: "sha1", Encoding: "base64", Signed: "{url}{body}"}, kind: ofTwilio}),
		note: "The origin of url is signed, with user and password, and behind it path and query of the request line. A body that is not a form needs bodySHA256 in the query. " +
			"Names and values of a form are signed without a separator, so that whoever has one genuine request can move bytes between them."},
	{name: "twitch", within: tenMinutes, schemes: list(scheme{
		Scheme: Scheme{
			Header: "Twitch-Eventsub-Message-Signature", Format: "sha256={signature}", TimeHeader: "Twitch-Eventsub-Message-Timestamp", Unit: "rfc3339",
			Signed: "{" + fieldPrefix + "Twitch-Eventsub-Message-Id}{timestamp}{body}",
		},
		id: "Twitch-Eventsub-Message-Id",
	}),
		handshake: handshakeSigned},
	{name: "typeform", schemes: list(scheme{Scheme: Scheme{Header: "Typeform-Signature", Format: "sha256={signature}", Encoding: "base64"}})},
	// From hookdeck/webhook-skills.
	{name: "vercel", source: Secondary, schemes: list(scheme{Scheme: Scheme{Header: "x-vercel-signature", Algorithm: "sha1"}})},
	{name: "whatsapp", foreign: codeHosts, schemes: list(prefixed("X-Hub-Signature-256")),
		challenge: challenge{method: "GET", parameter: "hub.challenge"}, handshake: handshakePasses + "GET with hub.challenge"},
	{name: "woocommerce", id: CoversNoID, schemes: list(inBase64("X-WC-Webhook-Signature")),
		handshake: handshakeRefused + "the ping with webhook_id"},
	{name: "zendesk", id: CoversNoID, schemes: list(timed(inBase64("X-Zendesk-Webhook-Signature"), "X-Zendesk-Webhook-Signature-Timestamp", "rfc3339", "{timestamp}{body}")),
		note: "Test requests use a secret of Zendesk's own, and are refused."},
	{name: "zoom", schemes: list(timed(scheme{Scheme: Scheme{Header: "x-zm-signature", Format: "v0={signature}"}},
		"x-zm-request-timestamp", "s", "v0:{timestamp}:{body}")),
		handshake: handshakeSigned},
}

const (
	reasonToken  = "its bearer token says who sends, not what, and its keys have to be fetched; put a handler for JWTs in front"
	reasonNoSign = "it has no signature"
)

// unverifiable are the other providers, and why.
var unverifiable = map[string]string{
	"cloudevents": reasonNoSign,
	"contentful":  "it signs its own form of path, query and chosen fields, which proxies rewrite",
	"eventarc":    reasonToken,
	"eventgrid":   reasonNoSign + ", only a token of Entra or a secret in the query",
	"knative":     reasonToken,
	"mailgun":     "it signs a time and a token, and nothing of the event",
	"paypal":      "its certificate has to be fetched, and it signs a CRC-32 of the body, which another body can have too",
	"plaid":       "its keys have to be fetched with credentials",
	"pubsub":      reasonToken,
	"sns":         "its certificate has to be fetched from an address in the message",
}

// providerNamed returns the provider with this name. Its error says why it cannot be verified.
func providerNamed(name string) (provider, error) {
	for _, p := range catalogue {
		if p.name == name {
			return p, nil
		}
	}
	if reason, known := unverifiable[name]; known {
		return provider{}, fmt.Errorf("requests of %s cannot be verified: %s", name, reason)
	}
	return provider{}, fmt.Errorf("provider %q is unknown", name)
}
