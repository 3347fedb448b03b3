package signature

import (
	"crypto/ed25519"
	"strings"
	"time"
)

// The values of [Provider.ID] and [Provider.Source] other than the defaults, yes and primary.
const (
	notID           = "no"
	inPart          = "in part"
	nothingSigned   = "nothing is signed"
	secondary       = "secondary"
	secondaryInPart = "secondary in part"
)

// The default tolerances. Vendors that state one state five minutes or less, except two.
const (
	fiveMinutes = 5 * time.Minute
	tenMinutes  = 10 * time.Minute
)

// Gitea and Forgejo also send GitHub's fields, and all of these senders those of Meta and Intercom.
var (
	codeForges = []string{"X-Gitea-", "X-Forgejo-", "X-Gogs-"}
	codeHosts  = append([]string{"X-GitHub-"}, codeForges...)
)

var ofMeta = challenge{method: "GET", parameter: "hub.challenge"}

const noteForm = "Hooks sent as HTML forms are refused."

// Constructors of rows, and methods that change a row.

func inHex(header string) scheme { return scheme{Scheme: Scheme{Header: header}} }

func inBase64(header string) scheme {
	return scheme{Scheme: Scheme{Header: header, Encoding: "base64"}}
}

func formatted(header, format string) scheme {
	return scheme{Scheme: Scheme{Header: header, Format: format}}
}

func asGitHub(header string) scheme { return formatted(header, "sha256={signature}") }

func equal(header string) scheme {
	return scheme{Scheme: Scheme{Header: header}, static: true}
}

func basicAuth() scheme {
	return scheme{
		Scheme: Scheme{Header: "Authorization", SecretEncoding: secretUser}, static: true,
		how: "Basic authentication with the user and the password of the secret",
	}
}

// standard returns the scheme of Standard Webhooks, whose fields start with webhook- or svix-. It
// does not support version v1a, which signs with a private key.
func standard(fields, secret string) scheme {
	s := formatted(fields+"signature", "v1,{signature} v1,{signature}")
	s.Encoding, s.SecretEncoding, s.id = "base64", secret, fields+"id"
	return s.over(fieldPrefix+s.id+"}.{timestamp}.{body}", fields+"timestamp", "s")
}

// over sets what the scheme signs, and where the timestamp is.
func (s scheme) over(signed, timeHeader, unit string) scheme {
	s.Signed, s.TimeHeader, s.Unit = signed, timeHeader, unit
	return s
}

func (s scheme) sha1() scheme { s.Algorithm = "sha1"; return s }

// taking limits the scheme to some of the secrets.
func (s scheme) taking(takes func(secret string) bool) scheme { s.takes = takes; return s }

func rows(s ...scheme) []scheme { return s }

func isSigningToken(secret string) bool { return strings.HasPrefix(secret, whsec) }

func isPlainToken(secret string) bool { return !isSigningToken(secret) }

// catalogue has every provider that can be verified, sorted by name. Unless a comment names another
// source, the scheme is from the provider's own page, code or SDK.
var catalogue = []Provider{
	{Name: "adyen", ID: inPart, schemes: rows(scheme{
		Scheme: Scheme{Encoding: "base64", SecretEncoding: "hex"}, verify: verifyAdyen, how: "HMAC-SHA256 (base64) in each item, over eight of its members",
	}), Note: "Dates and reasons of an item are not signed, nor is the number of items. A notification of more than 1 MiB is refused. Webhooks of Adyen's platforms, with HmacSignature in the header, are not covered."},
	{Name: "asaas", ID: nothingSigned, schemes: rows(equal("asaas-access-token"))},
	{Name: "asana", schemes: rows(inHex("X-Hook-Signature")), Handshake: unsignedIsRefused + "POST with X-Hook-Secret, which is the secret"},
	// From hookdeck's notes: the provider's page names only static fields.
	{Name: "bigcommerce", Source: secondary, Within: fiveMinutes, schemes: rows(standard("webhook-", "text")), Note: "The secret is the app's client secret."},
	// From hookdeck/webhook-skills; bitbucket.org says that there are signatures.
	{Name: "bitbucket", Source: secondary, ID: notID, schemes: rows(asGitHub("X-Hub-Signature"))},
	{Name: "box", Within: tenMinutes, schemes: rows(scheme{
		Scheme: Scheme{Header: "BOX-SIGNATURE-PRIMARY", Encoding: "base64"}, second: "BOX-SIGNATURE-SECONDARY",
		fixed: []field{{"BOX-SIGNATURE-VERSION", "1"}, {"BOX-SIGNATURE-ALGORITHM", "HmacSHA256"}},
	}.over("{body}{timestamp}", "BOX-DELIVERY-TIMESTAMP", "rfc3339")),
		Note: "With both keys configured, a captured delivery runs once for each of its two signatures. A signature over the body with escaped non-ASCII characters is refused."},
	{Name: "chargebee", ID: nothingSigned, schemes: rows(basicAuth())},
	{Name: "circleci", schemes: rows(formatted("circleci-signature", "v1={signature},v1={signature}")), Handshake: signedHandshake},
	{Name: "clerk", Within: fiveMinutes, schemes: rows(standard("svix-", secretWhsec))},
	{Name: "convoy", ID: notID, Within: fiveMinutes, schemes: rows(scheme{
		Scheme: Scheme{Header: "X-Convoy-Signature", Algorithm: "sha256|sha512", Encoding: "hex|base64"}, read: readConvoy, verify: verifyConvoy,
		how: "HMAC-SHA256 or SHA512 (hex or base64) in X-Convoy-Signature, over {body} or {timestamp},{body}, the body as compact JSON",
	}), Note: "Hooks sent as HTML forms are refused, and bodies of more than 1 MiB that are not compact JSON."},
	{Name: "discord", schemes: rows(scheme{
		Scheme: Scheme{Header: "X-Signature-Ed25519"}, publicKey: ed25519Key, size: ed25519.SignatureSize,
		how: "Ed25519 (hex) in X-Signature-Ed25519, over {timestamp}{body}",
	}.over("{timestamp}{body}", "X-Signature-Timestamp", "s")), Handshake: signedHandshake},
	{Name: "dropbox", schemes: rows(inHex("X-Dropbox-Signature")),
		challenge: challenge{method: "GET", parameter: "challenge"}, Handshake: unsignedPasses + "GET with challenge"},
	// From vgi-forge-forgejo, which says that it follows Forgejo.
	{Name: "forgejo", Source: secondary, ID: notID, schemes: rows(inHex("X-Forgejo-Signature"), inHex("X-Gitea-Signature")), Note: noteForm},
	{Name: "fourthwall", schemes: rows(inBase64("X-Fourthwall-Hmac-SHA256"), inBase64("X-Fourthwall-Hmac-Apps-SHA256"))},
	{Name: "gitea", ID: notID, schemes: rows(inHex("X-Gitea-Signature")), Note: noteForm},
	{Name: "github", ID: notID, foreign: codeForges, schemes: rows(asGitHub("X-Hub-Signature-256")), Handshake: signedHandshake},
	// That a signing token begins with whsec_ is from receivers.
	{Name: "gitlab", ID: "with a signing token", Source: secondaryInPart, Within: fiveMinutes,
		schemes: rows(standard("webhook-", secretWhsec).taking(isSigningToken), equal("X-Gitlab-Token").taking(isPlainToken)),
		Note:    "A secret that begins with whsec_ is a signing token; with any other, nothing is signed."},
	// From receivers.
	{Name: "gusto", Source: secondary, schemes: rows(inHex("X-Gusto-Signature")), Handshake: unsignedIsRefused + "POST with verification_token, which is the secret"},
	{Name: "hugging_face", ID: nothingSigned, schemes: rows(equal("X-Webhook-Secret"), scheme{parameter: "secret", static: true})},
	// From hookdeck's notes and webhookdb; the HEAD is from the provider's page.
	{Name: "intercom", Source: secondary, foreign: codeHosts, schemes: rows(formatted("X-Hub-Signature", "sha1={signature}").sha1()),
		challenge: challenge{method: "HEAD"}, Handshake: unsignedPasses + "HEAD"},
	// From hookdeck/webhook-skills, trigger.dev and n8n.
	{Name: "jira", Source: secondary, ID: notID, schemes: rows(asGitHub("X-Hub-Signature"))},
	{Name: "lemon_squeezy", schemes: rows(inHex("X-Signature"))},
	{Name: "line", schemes: rows(inBase64("X-Line-Signature")), Handshake: signedHandshake},
	{Name: "linear", ID: notID, Within: fiveMinutes, schemes: rows(scheme{Scheme: Scheme{Header: "Linear-Signature"}, pointer: "/webhookTimestamp"}),
		Note: "The timestamp is the body's webhookTimestamp: Linear-Timestamp is not signed."},
	{Name: "meta", foreign: codeHosts, schemes: rows(asGitHub("X-Hub-Signature-256")), challenge: ofMeta, Handshake: unsignedPasses + "GET with hub.challenge"},
	{Name: "notion", schemes: rows(asGitHub("X-Notion-Signature")), Handshake: unsignedIsRefused + "POST with verification_token, which is the secret"},
	// The field is from the provider's page, hash and encoding from a gist.
	{Name: "nylas", Source: secondaryInPart, schemes: rows(inHex("X-Nylas-Signature")),
		challenge: challenge{method: "GET", parameter: "challenge"}, Handshake: unsignedPasses + "GET with challenge",
		Note: "Compressed deliveries have no key, as their JSON is not read: use [a key of what is signed](#a-key-of-what-is-signed)."},
	{Name: "okta", ID: nothingSigned, schemes: rows(equal("Authorization")),
		challenge: challenge{method: "GET", field: "X-Okta-Verification-Challenge"}, Handshake: unsignedPasses + "GET with X-Okta-Verification-Challenge"},
	{Name: "openai", Within: fiveMinutes, schemes: rows(standard("webhook-", secretWhsecOrText))},
	{Name: "outpost", ID: notID, schemes: rows(formatted("X-Outpost-Signature", "v0={signature},{signature}")),
		Note: "The whole secret is used, including whsec_. If the operator has changed what is signed, write `verify hmac`."},
	{Name: "paddle", Within: fiveMinutes, schemes: rows(formatted("Paddle-Signature", "ts={timestamp};h1={signature}").over("{timestamp}:{body}", "", "s"))},
	{Name: "pagerduty", ID: notID, schemes: rows(formatted("X-PagerDuty-Signature", "v1={signature},v1={signature}"))},
	{Name: "pandadoc", ID: notID, schemes: rows(scheme{parameter: "signature"})},
	{Name: "postmark", ID: nothingSigned, schemes: rows(basicAuth())},
	{Name: "prolific", ID: notID, schemes: rows(inBase64("X-Prolific-Request-Signature").over("{timestamp}{body}", "X-Prolific-Request-Timestamp", "s"))},
	{Name: "razorpay", ID: notID, schemes: rows(inHex("X-Razorpay-Signature"))},
	{Name: "replicate", Within: fiveMinutes, schemes: rows(standard("webhook-", secretWhsec))},
	{Name: "resend", Within: fiveMinutes, schemes: rows(standard("svix-", secretWhsec))},
	{Name: "sendgrid", schemes: rows(scheme{
		Scheme: Scheme{Header: "X-Twilio-Email-Event-Webhook-Signature", Encoding: "base64"}, publicKey: ecdsaKey,
		how: "ECDSA with SHA256 on P-256 (base64) in X-Twilio-Email-Event-Webhook-Signature, over {timestamp}{body}",
	}.over("{timestamp}{body}", "X-Twilio-Email-Event-Webhook-Timestamp", "s"))},
	{Name: "sentry", schemes: rows(inHex("Sentry-Hook-Signature"))},
	{Name: "sevalla", ID: nothingSigned, schemes: rows(equal("svl-signature")), Note: "The whole secret is used, including whsec_."},
	{Name: "shopify", ID: notID, schemes: rows(inBase64("Shopify-Hmac-Sha256"), inBase64("X-Shopify-Hmac-Sha256"))},
	{Name: "slack", Within: fiveMinutes, schemes: rows(formatted("X-Slack-Signature", "v0={signature}").over("v0:{timestamp}:{body}", "X-Slack-Request-Timestamp", "s")), Handshake: signedHandshake},
	{Name: "square", schemes: rows(inBase64("x-square-hmacsha256-signature").over("{url}{body}", "", "")),
		Note: "`url` is the registered one, whole. With several, the body must be a JSON object."},
	{Name: "standard_webhooks", Within: fiveMinutes, schemes: rows(standard("webhook-", secretWhsec)), Note: "Signatures with a public key, v1a, are refused."},
	{Name: "stripe", Within: fiveMinutes, schemes: rows(formatted("Stripe-Signature", "t={timestamp},v1={signature}").over("{timestamp}.{body}", "", "s"))},
	{Name: "svix", Within: fiveMinutes, schemes: rows(standard("svix-", secretWhsec)), Note: "Where the fields begin with webhook-, name standard_webhooks."},
	// From pages of SDKs that repeat core.telegram.org.
	{Name: "telegram", Source: secondary, ID: nothingSigned, schemes: rows(equal("X-Telegram-Bot-Api-Secret-Token"))},
	{Name: "twilio", ID: notID, schemes: rows(scheme{
		Scheme: Scheme{Header: "X-Twilio-Signature", Encoding: "base64", Signed: "{url}{body}"}, verify: verifyTwilio,
		how: "HMAC-SHA1 (base64) in X-Twilio-Signature, over the URL and the sorted form, or the URL with the body's hash",
	}.sha1()), Note: "`url` is the origin, with user and password; path and query are the request's. A body that is not a form needs bodySHA256 as the last parameter of the query. " +
		"A form of more than 1,000 pairs or 1 MiB and a POST without a body are refused. " +
		"Anyone with a genuine request can move bytes between the names and values of its form, and between its beginning and the query, which includes a GET."},
	{Name: "twitch", Within: tenMinutes, schemes: rows(scheme{
		Scheme: Scheme{Header: "Twitch-Eventsub-Message-Signature", Format: "sha256={signature}"}, id: "Twitch-Eventsub-Message-Id",
	}.over(fieldPrefix+"Twitch-Eventsub-Message-Id}{timestamp}{body}", "Twitch-Eventsub-Message-Timestamp", "rfc3339")), Handshake: signedHandshake},
	{Name: "typeform", schemes: rows(scheme{Scheme: Scheme{Header: "Typeform-Signature", Format: "sha256={signature}", Encoding: "base64"}})},
	// From hookdeck/webhook-skills.
	{Name: "vercel", Source: secondary, schemes: rows(inHex("x-vercel-signature").sha1())},
	{Name: "whatsapp", foreign: codeHosts, schemes: rows(asGitHub("X-Hub-Signature-256")), challenge: ofMeta, Handshake: unsignedPasses + "GET with hub.challenge"},
	{Name: "woocommerce", ID: notID, schemes: rows(inBase64("X-WC-Webhook-Signature")), Handshake: unsignedIsRefused + "POST with webhook_id"},
	{Name: "zendesk", ID: notID, schemes: rows(inBase64("X-Zendesk-Webhook-Signature").over("{timestamp}{body}", "X-Zendesk-Webhook-Signature-Timestamp", "rfc3339")),
		Note: "Its test requests use another secret, and are refused."},
	{Name: "zoom", schemes: rows(formatted("x-zm-signature", "v0={signature}").over("v0:{timestamp}:{body}", "x-zm-request-timestamp", "s")), Handshake: signedHandshake},
}

const (
	reasonToken  = "its bearer token identifies the sender and does not cover the body, and its keys must be fetched; put a handler for JWTs in front"
	reasonNoSign = "it has no signature"
)

// unverifiable has the reasons why requests of the other providers cannot be verified.
var unverifiable = map[string]string{
	"cloudevents": reasonNoSign,
	"contentful":  "it signs its own form of path, query and chosen fields, which proxies rewrite",
	"eventarc":    reasonToken,
	"eventgrid":   reasonNoSign + ", only a token of Entra or a secret in the query",
	"knative":     reasonToken,
	"mailgun":     "it signs a timestamp and a token, but not the event",
	"paypal":      "its certificate must be fetched, and it signs a CRC-32 of the body, which other bodies share",
	"plaid":       "its keys must be fetched with credentials",
	"pubsub":      reasonToken,
	"sns":         "its certificate must be fetched from an address in the message",
}
