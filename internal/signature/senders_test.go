package signature_test

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"hash"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/signature"
)

// sent is a request that a sender signs.
type sent struct {
	secret string // as the configuration has it
	body   string
	at     time.Time
	id     string
	method string
	target string
	header http.Header
}

// sender signs as a provider does, in code of its own: no row of the catalogue has a part in it.
type sender struct {
	sign   func(r *sent)
	secret string                    // the text that is configured; "" for textSecret
	config func(c *signature.Config) // what else is configured
	body   string                    // "" for textBody
	timed  string                    // the field or the body's member with the timestamp
	unit   string                    // of the timestamp
	signed string                    // the field with the signature; "" if it is in the body or the query
	id     string                    // the field with the signed ID
	inDER  bool                      // the signature may have any size
}

const (
	textSecret = "It's a Secret to Everybody"
	bareBase64 = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	textBody   = `{"id":"evt_1","note":"naïve 日本語 😀"}` + "\r\n"
)

var start = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)

func digest(newHash func() hash.Hash, key string, parts ...string) string {
	mac := hmac.New(newHash, []byte(key))
	for _, part := range parts {
		mac.Write([]byte(part))
	}
	return string(mac.Sum(nil))
}

func inHex(bytes string) string    { return hex.EncodeToString([]byte(bytes)) }
func inBase64(bytes string) string { return base64.StdEncoding.EncodeToString([]byte(bytes)) }

func seconds(t time.Time) string { return strconv.FormatInt(t.Unix(), 10) }

// overBody signs the body alone, with SHA-256.
func overBody(field, prefix string, encode func(string) string) sender {
	return sender{signed: field, sign: func(r *sent) {
		r.header.Set(field, prefix+encode(digest(sha256.New, r.secret, r.body)))
	}}
}

// withTime signs a timestamp in a field of its own and the body, joined by text.
func withTime(field, prefix, timeField, unit, before, between string, encode func(string) string) sender {
	return sender{signed: field, timed: timeField, unit: unit, sign: func(r *sent) {
		stamp := seconds(r.at)
		if unit == "rfc3339" {
			stamp = r.at.Format(time.RFC3339)
		}
		r.header.Set(timeField, stamp)
		r.header.Set(field, prefix+encode(digest(sha256.New, r.secret, before, stamp, between, r.body)))
	}}
}

// inOneField signs a timestamp beside the signature and the body.
func inOneField(field, format, between string) sender {
	return sender{signed: field, timed: field, unit: "s", sign: func(r *sent) {
		stamp := seconds(r.at)
		r.header.Set(field, fmt.Sprintf(format, stamp, inHex(digest(sha256.New, r.secret, stamp, between, r.body))))
	}}
}

func standardWebhooks(fields, secret string, key func(secret string) string) sender {
	return sender{secret: secret, signed: fields + "signature", timed: fields + "timestamp", unit: "s", id: fields + "id", sign: func(r *sent) {
		r.header.Set(fields+"id", r.id)
		r.header.Set(fields+"timestamp", seconds(r.at))
		r.header.Set(fields+"signature", "v1,"+inBase64(digest(sha256.New, key(r.secret), r.id, ".", seconds(r.at), ".", r.body)))
	}}
}

func decoded(secret string) string {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		panic(err)
	}
	return string(key)
}

func asText(secret string) string { return secret }

func static(field string) sender {
	return sender{signed: field, sign: func(r *sent) { r.header.Set(field, r.secret) }}
}

func basicAuth() sender {
	return sender{secret: "admin:p:ss wörd", signed: "Authorization", sign: func(r *sent) {
		r.header.Set("Authorization", "Basic "+inBase64(r.secret))
	}}
}

func withSHA1(field, prefix string) sender {
	return sender{signed: field, sign: func(r *sent) {
		r.header.Set(field, prefix+inHex(digest(sha1.New, r.secret, r.body)))
	}}
}

const squareURL, twilioURL = "https://example.com/webhook", "https://user:pass@example.com:8443"

const adyenItem = `{"NotificationRequestItem":{"additionalData":{"hmacSignature":"%s"},"amount":{"value":1000,"currency":"EUR"},"eventCode":"CAPTURE",` +
	`"merchantAccountCode":"Account","merchantReference":"a:b","pspReference":"7914","success":"%s"}}`

// senders are all providers that can be verified.
var senders = map[string]sender{
	"adyen": {secret: "DFB1EB5485895CFA", sign: func(r *sent) {
		key, _ := hex.DecodeString(r.secret)
		item := func(success string) string {
			return fmt.Sprintf(adyenItem, inBase64(digest(sha256.New, string(key), "7914::Account:a:b:1000:EUR:CAPTURE:", success)), success)
		}
		r.body = `{"live":"false","notificationItems":[` + item("true") + "," + item("false") + "]}"
	}},
	"asaas":       static("asaas-access-token"),
	"asana":       overBody("X-Hook-Signature", "", inHex),
	"bigcommerce": standardWebhooks("webhook-", "a3f1c9d2", asText),
	"bitbucket":   overBody("X-Hub-Signature", "sha256=", inHex),
	"box": {signed: "Box-Signature-Primary", timed: "Box-Delivery-Timestamp", unit: "rfc3339", sign: func(r *sent) {
		stamp := r.at.In(time.FixedZone("", -7*3600)).Format(time.RFC3339)
		r.header.Set("BOX-DELIVERY-TIMESTAMP", stamp)
		r.header.Set("BOX-SIGNATURE-VERSION", "1")
		r.header.Set("BOX-SIGNATURE-ALGORITHM", "HmacSHA256")
		r.header.Set("BOX-SIGNATURE-PRIMARY", inBase64(digest(sha256.New, r.secret, r.body, stamp)))
	}},
	"chargebee":     basicAuth(),
	"circleci":      overBody("circleci-signature", "v1=", inHex),
	"clerk":         standardWebhooks("svix-", "whsec_"+bareBase64, decoded),
	"convoy":        inOneField("X-Convoy-Signature", "t=%s,v1=%s", ","),
	"discord":       ofDiscord(),
	"dropbox":       overBody("X-Dropbox-Signature", "", inHex),
	"forgejo":       overBody("X-Forgejo-Signature", "", inHex),
	"fourthwall":    overBody("X-Fourthwall-Hmac-SHA256", "", inBase64),
	"gitea":         overBody("X-Gitea-Signature", "", inHex),
	"github":        overBody("X-Hub-Signature-256", "sha256=", inHex),
	"gitlab":        standardWebhooks("webhook-", "whsec_"+bareBase64, decoded),
	"gusto":         overBody("X-Gusto-Signature", "", inHex),
	"hugging_face":  static("X-Webhook-Secret"),
	"intercom":      withSHA1("X-Hub-Signature", "sha1="),
	"jira":          overBody("X-Hub-Signature", "sha256=", inHex),
	"lemon_squeezy": overBody("X-Signature", "", inHex),
	"line":          overBody("X-Line-Signature", "", inBase64),
	"linear": {signed: "Linear-Signature", timed: "/webhookTimestamp", unit: "ms", sign: func(r *sent) {
		r.body = fmt.Sprintf(`{"action":"create","note":"日本語","webhookTimestamp":%d}`, r.at.UnixMilli())
		r.header.Set("Linear-Signature", inHex(digest(sha256.New, r.secret, r.body)))
	}},
	"meta":      overBody("X-Hub-Signature-256", "sha256=", inHex),
	"notion":    overBody("X-Notion-Signature", "sha256=", inHex),
	"nylas":     overBody("X-Nylas-Signature", "", inHex),
	"okta":      static("Authorization"),
	"openai":    standardWebhooks("webhook-", "whsec_"+bareBase64, decoded),
	"outpost":   overBody("X-Outpost-Signature", "v0=", inHex),
	"paddle":    inOneField("Paddle-Signature", "ts=%s;h1=%s", ":"),
	"pagerduty": overBody("X-PagerDuty-Signature", "v1=", inHex),
	"pandadoc": {sign: func(r *sent) {
		r.target += "?x=1&signature=" + inHex(digest(sha256.New, r.secret, r.body))
	}},
	"postmark":  basicAuth(),
	"prolific":  withTime("X-Prolific-Request-Signature", "", "X-Prolific-Request-Timestamp", "s", "", "", inBase64),
	"razorpay":  overBody("X-Razorpay-Signature", "", inHex),
	"replicate": standardWebhooks("webhook-", "whsec_"+bareBase64, decoded),
	"resend":    standardWebhooks("svix-", "whsec_"+bareBase64, decoded),
	"sendgrid":  ofSendGrid(),
	"sentry":    overBody("Sentry-Hook-Signature", "", inHex),
	"sevalla":   static("svl-signature"),
	"shopify":   overBody("X-Shopify-Hmac-Sha256", "", inBase64),
	"slack":     withTime("X-Slack-Signature", "v0=", "X-Slack-Request-Timestamp", "s", "v0:", ":", inHex),
	"square": {signed: "X-Square-Hmacsha256-Signature",
		config: func(c *signature.Config) { c.URLs = []string{squareURL + "/other", squareURL} },
		sign: func(r *sent) {
			r.header.Set("x-square-hmacsha256-signature", inBase64(digest(sha256.New, r.secret, squareURL, r.body)))
		}},
	"standard_webhooks": standardWebhooks("webhook-", bareBase64, decoded),
	"stripe":            inOneField("Stripe-Signature", "t=%s,v1=%s", "."),
	"svix":              standardWebhooks("svix-", "whsec_"+bareBase64, decoded),
	"telegram":          static("X-Telegram-Bot-Api-Secret-Token"),
	"twilio": {signed: "X-Twilio-Signature", body: "To=%2B1800&Body=na%C3%AFve+text&A=2&A=1&A=2",
		config: func(c *signature.Config) { c.URLs = []string{twilioURL + "/ignored"} },
		sign: func(r *sent) {
			r.header.Set("Content-Type", "application/x-www-form-urlencoded")
			signed := strings.NewReplacer("%2B", "+", "%C3%AF", "ï", "+", " ").Replace(r.body)
			pairs := strings.Split(signed, "&")
			slices.Sort(pairs)
			form := ""
			for i, pair := range pairs {
				if i == 0 || pair != pairs[i-1] {
					form += strings.Replace(pair, "=", "", 1)
				}
			}
			r.header.Set("X-Twilio-Signature", inBase64(digest(sha1.New, r.secret, twilioURL+r.target, form)))
		}},
	"twitch": {signed: "Twitch-Eventsub-Message-Signature", timed: "Twitch-Eventsub-Message-Timestamp", unit: "rfc3339", id: "Twitch-Eventsub-Message-Id",
		sign: func(r *sent) {
			stamp := r.at.Format("2006-01-02T15:04:05.000000000Z07:00")
			r.header.Set("Twitch-Eventsub-Message-Id", r.id)
			r.header.Set("Twitch-Eventsub-Message-Timestamp", stamp)
			r.header.Set("Twitch-Eventsub-Message-Signature", "sha256="+inHex(digest(sha256.New, r.secret, r.id, stamp, r.body)))
		}},
	"typeform":    overBody("Typeform-Signature", "sha256=", inBase64),
	"vercel":      withSHA1("x-vercel-signature", ""),
	"whatsapp":    overBody("X-Hub-Signature-256", "sha256=", inHex),
	"woocommerce": overBody("X-WC-Webhook-Signature", "", inBase64),
	"zendesk":     withTime("X-Zendesk-Webhook-Signature", "", "X-Zendesk-Webhook-Signature-Timestamp", "rfc3339", "", "", inBase64),
	"zoom":        withTime("x-zm-signature", "v0=", "x-zm-request-timestamp", "s", "v0:", ":", inHex),
}

func ofDiscord() sender {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		panic(err)
	}
	return sender{signed: "X-Signature-Ed25519", timed: "X-Signature-Timestamp", unit: "s",
		config: func(c *signature.Config) { c.Secrets, c.PublicKeys = nil, []string{hex.EncodeToString(public)} },
		sign: func(r *sent) {
			r.header.Set("X-Signature-Timestamp", seconds(r.at))
			r.header.Set("X-Signature-Ed25519", inHex(string(ed25519.Sign(private, []byte(seconds(r.at)+r.body)))))
		}}
}

func ofSendGrid() sender {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	public, err := x509.MarshalPKIXPublicKey(&private.PublicKey)
	if err != nil {
		panic(err)
	}
	const field = "X-Twilio-Email-Event-Webhook-"
	return sender{inDER: true, signed: field + "Signature", timed: field + "Timestamp", unit: "s",
		config: func(c *signature.Config) { c.Secrets, c.PublicKeys = nil, []string{inBase64(string(public))} },
		sign: func(r *sent) {
			sum := sha256.Sum256([]byte(seconds(r.at) + r.body))
			der, err := ecdsa.SignASN1(rand.Reader, private, sum[:])
			if err != nil {
				panic(err)
			}
			r.header.Set(field+"Timestamp", seconds(r.at))
			r.header.Set(field+"Signature", inBase64(string(der)))
		}}
}

var newSHA1, newSHA256 = sha1.New, sha256.New
