package integration

import (
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// lined is a request with these header lines, "Name: value".
func lined(body string, headerLines ...string) sent {
	s := sent{body: body}
	for _, line := range headerLines {
		name, value, _ := strings.Cut(line, ": ")
		s.options = append(s.options, header(name, value))
	}
	return s
}

// deliveriesOf are requests as providers send them: an event with its retry, in
// which all has changed that may; another event; one without an ID.
var deliveriesOf = map[string]struct{ event, retry, other, missing sent }{
	// Known by a header field.
	"github": {
		lined(`{"zen":"Design for failure."}`, "X-GitHub-Delivery: 72d3162e-cc78-11e3-81ab-4c9367dc0958", "X-GitHub-Hook-ID: 292430182", "X-GitHub-Event: ping"),
		lined(`{"zen":"Design for failure."}`, "X-GitHub-Delivery: 72d3162e-cc78-11e3-81ab-4c9367dc0958", "X-GitHub-Hook-ID: 292430182", "X-Hub-Signature-256: sha256=d5"),
		lined(`{"zen":"Design for failure."}`, "X-GitHub-Delivery: 72d3162e-cc78-11e3-81ab-4c9367dc0958", "X-GitHub-Hook-ID: 292430183", "X-GitHub-Event: ping"),
		lined(`{"zen":"Design for failure."}`, "X-GitHub-Hook-ID: 292430182"),
	},
	"gitlab": {
		lined(`{"object_kind":"push"}`, "Idempotency-Key: f5e5f430-f57b-4e6e-9fac-d9128cd7232f", "webhook-id: f5e5f430-f57b-4e6e-9fac-d9128cd7232f", "X-Gitlab-Event: Push Hook"),
		lined(`{"object_kind":"push"}`, "Idempotency-Key: f5e5f430-f57b-4e6e-9fac-d9128cd7232f", "X-Gitlab-Event: Push Hook"),
		lined(`{"object_kind":"push"}`, "Idempotency-Key: 13792a34-cac6-4fda-95a8-c58e00a3954e", "X-Gitlab-Event: Push Hook"),
		lined(`{"object_kind":"push"}`, "X-Gitlab-Event: Push Hook"),
	},
	"standard_webhooks": {
		lined(`{"type":"invoice.paid"}`, "webhook-id: msg_2KWPBgLlAfxdpx2AI54pPJ85f4W", "webhook-timestamp: 1674087231"),
		lined(`{"type":"invoice.paid"}`, "webhook-id: msg_2KWPBgLlAfxdpx2AI54pPJ85f4W", "webhook-timestamp: 1674087299", "webhook-signature: v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN"),
		lined(`{"type":"invoice.paid"}`, "webhook-id: msg_2KWPBgLlAfxdpx2AI54pPJ85f4X", "webhook-timestamp: 1674087231"),
		lined(`{"type":"invoice.paid"}`, "webhook-timestamp: 1674087231"),
	},
	"shopify": {
		lined(`{"id":820982911946154508}`, "X-Shopify-Event-Id: 98880550", "X-Shopify-Webhook-Id: b54557e4", "X-Shopify-Topic: orders/create", "X-Shopify-Shop-Domain: a.myshopify.com"),
		lined(`{"id":820982911946154508}`, "X-Shopify-Event-Id: 98880550", "X-Shopify-Webhook-Id: b54557e4", "X-Shopify-Topic: orders/create", "X-Shopify-Shop-Domain: a.myshopify.com", "X-Shopify-Triggered-At: 2"),
		lined(`{"id":820982911946154508}`, "X-Shopify-Event-Id: 98880550", "X-Shopify-Webhook-Id: b54557e4", "X-Shopify-Topic: orders/paid", "X-Shopify-Shop-Domain: a.myshopify.com"),
		lined(`{"id":820982911946154508}`, "X-Shopify-Topic: orders/create", "X-Shopify-Shop-Domain: a.myshopify.com"),
	},
	"sns": {
		lined(`{"Type":"Notification","MessageId":"165545c9"}`, "x-amz-sns-message-type: Notification", "x-amz-sns-message-id: 165545c9-2a5c-472c-8df2-7ff2be2b3b1b"),
		lined(`{"Type":"Notification","MessageId":"165545c9"}`, "x-amz-sns-message-type: Notification", "x-amz-sns-message-id: 165545c9-2a5c-472c-8df2-7ff2be2b3b1b", "x-amz-sns-rawdelivery: true"),
		lined(`{"Type":"Notification","MessageId":"165545c9"}`, "x-amz-sns-message-type: Notification", "x-amz-sns-message-id: 0b0c25c9-2a5c-472c-8df2-7ff2be2b3b1b"),
		lined(`{"Type":"Notification","MessageId":"165545c9"}`, "x-amz-sns-message-type: Notification"),
	},
	"twilio": {
		lined("MessageSid=SM1&MessageStatus=sent", "I-Twilio-Idempotency-Token: 5a4c1d4e", "Content-Type: application/x-www-form-urlencoded"),
		lined("MessageSid=SM1&MessageStatus=sent", "I-Twilio-Idempotency-Token: 5a4c1d4e", "X-Twilio-Signature: a"),
		lined("MessageSid=SM1&MessageStatus=delivered", "I-Twilio-Idempotency-Token: 6a4c1d4e"),
		lined("MessageSid=SM1&MessageStatus=sent"),
	},
	// Known by a member of the body.
	"stripe": {
		lined(`{"id":"evt_1NG8Du2eZvKYlo2C","object":"event","type":"charge.succeeded","data":{"object":{"id":"ch_1"}}}`, "Stripe-Signature: t=1,v1=a"),
		lined(`{"id":"evt_1NG8Du2eZvKYlo2C","object":"event","pending_webhooks":0,"type":"charge.succeeded"}`, "Stripe-Signature: t=2,v1=b"),
		lined(`{"id":"evt_1NG8Du2eZvKYlo2D","object":"event","type":"charge.succeeded","data":{"object":{"id":"ch_1"}}}`, "Stripe-Signature: t=3,v1=c"),
		lined(`{"id":"evt_1NG8Du2eZvKYlo2C","object":"event","type":"charge.succeeded","data":{"object":{"id":"ch_1"}}}`),
	},
	"slack": {
		lined(`{"type":"event_callback","event_id":"Ev08MFMKH6","event":{"type":"app_mention"}}`, "X-Slack-Signature: v0=a"),
		lined(`{"type":"event_callback","event_id":"Ev08MFMKH6","event":{"type":"app_mention"}}`, "X-Slack-Retry-Num: 1", "X-Slack-Retry-Reason: http_timeout", "X-Slack-Signature: v0=a"),
		lined(`{"type":"event_callback","event_id":"Ev08MFMKH7","event":{"type":"app_mention"}}`, "X-Slack-Signature: v0=a"),
		lined(`{"type":"event_callback","event":{"type":"app_mention"}}`, "X-Slack-Signature: v0=a"),
	},
	"telegram": {
		lined(`{"update_id":10000,"message":{"message_id":1365,"text":"/start"}}`, "X-Telegram-Bot-Api-Secret-Token: s"),
		lined(`{"message":{"text":"/start","message_id":1365},"update_id":10000}`, "X-Telegram-Bot-Api-Secret-Token: s"),
		lined(`{"update_id":10001,"message":{"message_id":1365,"text":"/start"}}`, "X-Telegram-Bot-Api-Secret-Token: s"),
		lined(`{"message":{"message_id":1365,"text":"/start"}}`, "X-Telegram-Bot-Api-Secret-Token: s"),
	},
	"box": {
		lined(`{"type":"webhook_event","id":"eb0c4e06-751f","trigger":"FILE.UPLOADED"}`, "BOX-DELIVERY-ID: f96bb54b"),
		lined(`{"type":"webhook_event","id":"eb0c4e06-751f","trigger":"FILE.UPLOADED"}`, "BOX-DELIVERY-ID: 11111111"),
		lined(`{"type":"webhook_event","id":"0b0c4e06-751f","trigger":"FILE.UPLOADED"}`, "BOX-DELIVERY-ID: f96bb54b"),
		lined(`{"type":"webhook_event","trigger":"FILE.UPLOADED"}`, "BOX-DELIVERY-ID: f96bb54b"),
	},
	"mailgun": {
		lined(`{"signature":{"token":"a8ce"},"event-data":{"id":"CPgfbmQMTCKtHW6uIWtuVe","timestamp":1521472262.908181,"event":"delivered"}}`),
		lined(`{"signature":{"token":"b9df"},"event-data":{"id":"CPgfbmQMTCKtHW6uIWtuVe","timestamp":1521472262.908181,"event":"delivered"}}`),
		lined(`{"signature":{"token":"a8ce"},"event-data":{"id":"DPgfbmQMTCKtHW6uIWtuVe","timestamp":1521472262.908181,"event":"delivered"}}`),
		lined(`{"signature":{"token":"a8ce"},"event-data":{"event":"delivered"}}`),
	},
	// Known by several values, or by those of several events.
	"cloudevents": {
		lined(`{"n":1}`, "ce-specversion: 1.0", "ce-source: /shop/1", "ce-id: A234"),
		lined(`{"n":1}`, "ce-specversion: 1.0", "ce-source: /shop/1", "ce-id: A234", "traceparent: 00-1"),
		lined(`{"n":1}`, "ce-specversion: 1.0", "ce-source: /shop/2", "ce-id: A234"),
		lined(`{"n":1}`, "ce-specversion: 1.0", "ce-id: A234"),
	},
	"pubsub": {
		lined(`{"message":{"data":"eA==","messageId":"2070443601311540"},"subscription":"projects/p/subscriptions/s"}`),
		lined(`{"subscription":"projects/p/subscriptions/s","deliveryAttempt":2,"message":{"messageId":"2070443601311540","data":"eA=="}}`),
		lined(`{"message":{"data":"eA==","messageId":"2070443601311540"},"subscription":"projects/p/subscriptions/other"}`),
		lined(`{"message":{"data":"eA==","messageId":"2070443601311540"}}`),
	},
	"sendgrid": {
		lined(`[{"email":"a@b.test","event":"open","sg_event_id":"e1"},{"event":"click","sg_event_id":"e2"}]`),
		lined(`[{"sg_event_id":"e1","email":"a@b.test"},{"sg_event_id":"e2","event":"click"}]`, "X-Twilio-Email-Event-Webhook-Timestamp: 2"),
		lined(`[{"sg_event_id":"e2"},{"sg_event_id":"e1"}]`),
		lined(`[{"sg_event_id":"e1"},{"event":"click"}]`),
	},
	"eventgrid": {
		lined(`[{"id":"2d1781af","topic":"/subscriptions/x","eventType":"Blob","data":{}}]`, "aeg-event-type: Notification"),
		lined(`[{"topic":"/subscriptions/x","id":"2d1781af"}]`, "aeg-event-type: Notification", "aeg-delivery-count: 1"),
		lined(`[{"id":"2d1781af","topic":"/subscriptions/y","eventType":"Blob","data":{}}]`, "aeg-event-type: Notification"),
		lined(`[{"id":"2d1781af","eventType":"Blob"}]`, "aeg-event-type: Notification"),
	},
	"okta": {
		lined(`{"eventType":"com.okta.event_hook","eventTime":"1","data":{"events":[{"uuid":"b5a188b9"},{"uuid":"c6b299c0"}]}}`),
		lined(`{"eventTime":"2","data":{"events":[{"uuid":"b5a188b9","severity":"INFO"},{"uuid":"c6b299c0"}]}}`),
		lined(`{"data":{"events":[{"uuid":"b5a188b9"}]}}`),
		lined(`{"data":{"events":[]}}`),
	},
	"woocommerce": {
		lined(`{"id":1,"status":"processing"}`, "X-WC-Webhook-Delivery-ID: 5fe8b7", "X-WC-Webhook-Topic: order.updated"),
		lined(`{"status":"processing","id":1}`, "X-WC-Webhook-Delivery-ID: 5fe8b7"),
		lined(`{"id":1,"status":"completed"}`, "X-WC-Webhook-Delivery-ID: 5fe8b7"),
		lined(`{"id":1,"status":"processing"}`),
	},
	"adyen": {
		lined(adyenItem),
		lined(strings.Replace(adyenItem, `"amount":`, `"amount": `, 1)),
		lined(strings.Replace(adyenItem, "2026-01-02", "2026-01-03", 1)),
		lined(strings.Replace(adyenItem, "pspReference", "merchantReference", 1)),
	},
	"whatsapp": {
		lined(groupStatus, "X-Hub-Signature-256: sha256=1"),
		lined(groupStatus, "X-Hub-Signature-256: sha256=2"),
		lined(strings.Replace(groupStatus, "15550001", "15550002", 1), "X-Hub-Signature-256: sha256=3"),
		lined(`{"object":"whatsapp_business_account","entry":[{"id":"1022","changes":[{"field":"account_update","value":{"event":"VERIFIED_ACCOUNT"}}]}]}`),
	},
	"eventarc": {
		lined(cloudEvent, structuredMode),
		lined(cloudEvent, structuredMode, "traceparent: 00-1"),
		lined(cloudEvents, batchedMode),
		lined(cloudEvent, "Content-Type: application/json"),
	},
	"line": {
		lined(`{"destination":"U1","events":[{"type":"message","webhookEventId":"01FZ74A0","deliveryContext":{"isRedelivery":false}}]}`, "X-Line-Signature: a"),
		lined(`{"destination":"U1","events":[{"type":"message","webhookEventId":"01FZ74A0","deliveryContext":{"isRedelivery":true}}]}`, "X-Line-Signature: b"),
		lined(`{"destination":"U1","events":[{"type":"message","webhookEventId":"01FZ74A1"}]}`, "X-Line-Signature: c"),
		lined(`{"destination":"U1","events":[]}`),
	},
	// Known by the whole body.
	"sentry": {
		lined(`{"action":"resolved","data":{"issue":{"id":"1"}}}`, "Sentry-Hook-Resource: issue", "Request-ID: a", "Sentry-Hook-Timestamp: 1"),
		lined(`{"action":"resolved","data":{"issue":{"id":"1"}}}`, "Sentry-Hook-Resource: issue", "Request-ID: b", "Sentry-Hook-Timestamp: 2"),
		lined(`{"action":"resolved","data":{"issue":{"id":"2"}}}`, "Sentry-Hook-Resource: issue", "Request-ID: a", "Sentry-Hook-Timestamp: 1"),
		lined(`{"action":"resolved","data":{"issue":{"id":"1"}}}`, "Request-ID: a", "Sentry-Hook-Timestamp: 1"),
	},
	"postmark": {
		lined(`{"RecordType":"Open","MessageID":"00000000"}`, "X-PM-Webhook-Trace-Id: 5a4c1d4e", "X-PM-Retries-Remaining: 6"),
		lined(`{"MessageID":"00000000","RecordType":"Open"}`, "X-PM-Webhook-Trace-Id: 5a4c1d4e", "X-PM-Retries-Remaining: 5"),
		lined(`{"RecordType":"Open","MessageID":"00000000"}`, "X-PM-Webhook-Trace-Id: 6a4c1d4e", "X-PM-Retries-Remaining: 6"),
		lined(`{"From":"a@example.com","MessageID":"22c74902"}`),
	},
	"lemon_squeezy": {
		lined(`{"meta":{"event_name":"order_created"},"data":{"type":"orders","id":"1"}}`, "X-Signature: a", "X-Event-Name: order_created"),
		lined(`{"meta":{"event_name":"order_created"},"data":{"id":"1","type":"orders"}}`, "X-Signature: a", "X-Event-Name: order_created"),
		lined(`{"meta":{"event_name":"order_created"},"data":{"type":"orders","id":"2"}}`, "X-Signature: b", "X-Event-Name: order_created"),
		lined(`{"meta":{"event_name":"order_created"},"data":{"type":"orders","id":"1"}}`, "X-Signature: a"),
	},
}

// catalogueNames are those that the command prints.
func catalogueNames(t *testing.T) []string {
	t.Helper()
	out, code := command(t, shortTempDir(t), "providers")
	if code != 0 {
		t.Fatalf("providers ended with %d: %s", code, out)
	}
	var names []string
	table, _, _ := strings.Cut(out, "\n\n")
	for line := range strings.Lines(table) {
		if name := strings.Fields(line)[0]; name != "NAME" {
			names = append(names, name)
		}
	}
	if len(names) < 40 {
		t.Fatalf("the catalogue has %d names: %v", len(names), names)
	}
	return names
}

// Every name of the catalogue is served, and keeps a path of its own.
func TestEveryProvider(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	blocks := make(map[string]string)
	names := catalogueNames(t)
	known := make(map[string]bool)
	for _, name := range names {
		known[name] = true
		blocks["/p/"+name] = "dedup " + name
	}
	p := start(t, conf{store: "store memory", site: lines("header >X-Provider {http.dedup.provider}", onPaths(up, blocks))})
	for _, name := range names {
		// No delivery of any provider: nothing is claimed.
		wantNoKey(t, p, up, "/p/"+name, bodies(""))
	}
	for name, c := range deliveriesOf {
		if !known[name] {
			t.Errorf("%s is not in the catalogue", name)
			continue
		}
		path := "/p/" + name
		wantKeys(t, p, path, []sent{c.event, c.retry}, []sent{c.other})
		wantNoKey(t, p, up, path, []sent{c.missing})
		if got := p.send(t, path, c.event).Header.Get("X-Provider"); got != name {
			t.Errorf("a delivery of %s is said to be of %q", name, got)
		}
	}
}

// Several providers share a path and a handler, and not their keys.
func TestProvidersTogether(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	names := []string{"github", "standard_webhooks", "shopify", "sns", "stripe", "slack", "telegram", "sendgrid"}
	p := start(t, conf{store: "store memory", site: lines(keyHeader, "dedup "+strings.Join(names, " "), proxyTo(up))})
	var groups [][]sent
	for _, name := range names {
		groups = append(groups, []sent{deliveriesOf[name].event, deliveriesOf[name].retry}, []sent{deliveriesOf[name].other})
	}
	wantKeys(t, p, "/", groups...)
	// One ID of two providers is two keys.
	keys := make(map[string]bool)
	for _, s := range []sent{
		lined("{}", "X-GitHub-Delivery: 1"), lined("{}", "webhook-id: 1", "webhook-timestamp: 1"), lined("{}", "x-amz-sns-message-id: 1"),
		lined("{}", "X-Shopify-Event-Id: 1", "X-Shopify-Webhook-Id: 1"), lined(`{"id":"1"}`, "Stripe-Signature: t=1"), lined(`{"event_id":"1"}`, "X-Slack-Signature: v0=a"),
		lined(`{"update_id":"1"}`, "X-Telegram-Bot-Api-Secret-Token: s"), lined(`{"update_id":1}`, "X-Telegram-Bot-Api-Secret-Token: s"),
	} {
		keys[p.send(t, "/same", s).Header.Get("X-Key")] = true
	}
	if len(keys) != 8 || keys[""] {
		t.Errorf("8 providers' equal IDs make %d keys", len(keys))
	}
}

// On a whole site a provider claims its own deliveries, and leaves the site's own API alone: two
// customers' payments that a JSON member makes look alike both run. Deliveries of senders whose
// IDs are in the same member stay theirs.
func TestSitesOwnAPIBesideProviders(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines(keyHeader, "header >X-Provider {http.dedup.provider}", "dedup stripe paypal slack square", proxyTo(up))})
	for _, body := range []string{`{"id":"42"}`, `{"id":"42","amount":10,"event_id":"42"}`, `{"event_id":"42","type":"order"}`} {
		own := lined(body, "Authorization: Bearer of-a-customer")
		wantNoKey(t, p, up, "/payments", []sent{own})
	}
	wantKeys(t, p, "/", []sent{deliveriesOf["stripe"].event, deliveriesOf["stripe"].retry}, []sent{lined(`{"id":"1"}`, "Stripe-Signature: t=1")},
		[]sent{lined(`{"id":"1"}`, "PAYPAL-TRANSMISSION-ID: 1")}, []sent{lined(`{"event_id":"1"}`, "X-Slack-Signature: v0=a")}, []sent{lined(`{"event_id":"1"}`, "x-square-hmacsha256-signature: a")})
	for line, name := range map[string]string{"Stripe-Signature: t=1": "stripe", "PAYPAL-TRANSMISSION-ID: 1": "paypal"} {
		if got := p.send(t, "/", lined(`{"id":"1"}`, line)).Header.Get("X-Provider"); got != name {
			t.Errorf("a delivery with %s is said to be of %q", line, got)
		}
	}
}

// A provider's retention is longer where the provider retries for longer.
func TestRetentionOfProviders(t *testing.T) {
	t.Parallel()
	out, _ := command(t, shortTempDir(t), "providers")
	for name, want := range map[string]string{"adyen": "30d", "whatsapp": "8d", "github": "7d", "sentry": "20m", "dropbox": "10m"} {
		found := false
		for line := range strings.Lines(out) {
			fields := strings.Fields(line)
			found = found || len(fields) > 4 && fields[0] == name && fields[4] == want
		}
		if !found {
			t.Errorf("providers does not print that %s is kept for %s:\n%s", name, want, out)
		}
	}
	server := redistest.Start(t)
	up := startUpstream(t, answers201)
	p := start(t, conf{store: storeAt(server.Addr), site: onPaths(up, map[string]string{"/adyen": "dedup adyen", "/own": lines("dedup adyen {", "retention 1s", "lease 1500ms", "}")})})
	body := `{"live":"false","notificationItems":[{"NotificationRequestItem":{"eventCode":"AUTHORISATION","pspReference":"7914073381342284","success":"true"}}]}`
	kept := p.post(t, "/adyen", "", body)
	wantLives(t, redisClient(t, server), 1, 29*day, 30*day)
	first := p.post(t, "/own", "", body)
	eventually(t, "the user's own retention wins", func() bool {
		got := p.post(t, "/own", "", body)
		return got.executionID() != first.executionID() && !got.replayed()
	})
	wantReplay(t, p.post(t, "/adyen", "", body), kept)
}
