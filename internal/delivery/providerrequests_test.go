package delivery_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

// sample is a request as a provider sends it. Headers are lines of name and value.
type sample struct{ header, body string }

func (s sample) request() delivery.Request {
	request := withBody(s.body)
	request.Header = http.Header{}
	for line := range strings.Lines(s.header) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		request.Header.Add(name, value)
	}
	return request
}

// providerSample has four requests of one provider: a delivery; its retry, with
// everything in it that changes from one attempt to the next; a delivery of another
// event; and a request without an ID.
type providerSample struct{ first, retry, other, missing sample }

// byHeader returns the requests of a provider whose delivery ID is in a header field.
func byHeader(name, first, other, volatile, body string) providerSample {
	return signedByHeader("", name, first, other, volatile, body)
}

// signedByHeader returns such requests, all of which have further lines in the header.
func signedByHeader(lines, name, first, other, volatile, body string) providerSample {
	return providerSample{
		first:   sample{lines + name + ": " + first + "\n" + volatile + ": 1", body},
		retry:   sample{lines + name + ": " + first + "\n" + volatile + ": 2", body},
		other:   sample{lines + name + ": " + other + "\n" + volatile + ": 1", body},
		missing: sample{lines + volatile + ": 1", body},
	}
}

// byBody returns the requests of a provider whose delivery ID is in the body.
func byBody(header, first, retry, other, missing string) providerSample {
	return providerSample{sample{header, first}, sample{header, retry}, sample{header, other}, sample{header, missing}}
}

const someUUID, otherUUID = "72d3162e-cc78-11e3-81ab-4c9367dc0958", "b7f6d1a4-0f3c-4c7e-9a55-1f2e3d4c5b6a"

const (
	messages = `{"object":"whatsapp_business_account","entry":[{"id":"1022","changes":[{"field":"messages","value":{"messaging_product":"whatsapp","messages":[{"from":"15550001","id":"wamid.A","timestamp":"1749416383","type":"text","text":{"body":"hi"}}]}}]}]}`
	read     = `{"object":"whatsapp_business_account","entry":[{"id":"1022","changes":[{"field":"messages","value":{"statuses":[{"id":"wamid.A","status":"read","timestamp":"1749416390"}]}}]}]}`
	account  = `{"object":"whatsapp_business_account","entry":[{"id":"1022","changes":[{"field":"account_update","value":{"event":"VERIFIED_ACCOUNT"}}]}]}`
	adyen    = `{"live":"false","notificationItems":[{"NotificationRequestItem":{"additionalData":{"hmacSignature":"a="},"amount":{"value":1130,"currency":"EUR"},"eventCode":"AUTHORISATION","eventDate":"2026-01-02T03:04:05+01:00","merchantReference":"r1","pspReference":"7914073381342284","success":"true"}}]}`
	cloud    = "ce-specversion: 1.0\nce-type: com.example.created\nContent-Type: application/json\n"
)

// cloudEvents are the requests of a provider that sends CloudEvents.
func cloudEvents() providerSample {
	return providerSample{
		first:   sample{cloud + "ce-source: /shop/1\nce-id: A234", `{"n":1}`},
		retry:   sample{cloud + "ce-source: /shop/1\nce-id: A234\ntraceparent: 00-1", `{"n":1}`},
		other:   sample{cloud + "ce-source: /shop/2\nce-id: A234", `{"n":1}`},
		missing: sample{cloud + "ce-id: A234", `{"n":1}`},
	}
}

var providerSamples = map[string]providerSample{
	"adyen": byBody("", adyen, strings.Replace(adyen, `"live":"false",`, `"live": "false", `, 1), strings.Replace(adyen, "AUTHORISATION", "CAPTURE", 1), strings.Replace(adyen, "pspReference", "psp", 1)),
	"asana": byBody("X-Hook-Signature: aa",
		`{"events":[{"user":{"gid":"1"},"created_at":"2026-01-02T03:04:05Z","action":"changed","resource":{"gid":"7"}}]}`,
		`{"events": [{"action":"changed","user":{"gid":"1"},"created_at":"2026-01-02T03:04:05Z","resource":{"gid":"7"}}]}`,
		`{"events":[{"user":{"gid":"1"},"created_at":"2026-01-02T03:04:06Z","action":"changed","resource":{"gid":"7"}}]}`, ``),
	"bigcommerce": byBody("", `{"scope":"store/order/updated","store_id":"1025646","data":{"type":"order","id":250},"hash":"dd70c0976e06b67aaf671e73f49dcb79230ebf9d","created_at":1561479335,"producer":"stores/x"}`,
		`{"hash":"dd70c0976e06b67aaf671e73f49dcb79230ebf9d","scope":"store/order/updated","data":{"type":"order","id":250},"created_at":1561479335,"producer":"stores/x"}`,
		`{"scope":"store/order/updated","data":{"type":"order","id":250},"hash":"dd70c0976e06b67aaf671e73f49dcb79230ebf9d","created_at":1561479395,"producer":"stores/x"}`, `{"scope":"store/order/created","producer":"stores/x"}`),
	"bitbucket": signedByHeader("X-Hook-UUID: 7\nX-Event-Key: repo:push\n", "X-Request-UUID", someUUID, otherUUID, "X-Attempt-Number", `{"push":{"changes":[]}}`),
	"box": {
		sample{"BOX-DELIVERY-ID: f96bb54b\nBOX-DELIVERY-TIMESTAMP: 2026-01-02T03:04:05-07:00", `{"type":"webhook_event","id":"eb0c4e06-751f","trigger":"FILE.UPLOADED","source":{"id":"9"}}`},
		sample{"BOX-DELIVERY-ID: 11111111\nBOX-DELIVERY-TIMESTAMP: 2026-01-02T03:09:05-07:00", `{"type":"webhook_event","id":"eb0c4e06-751f","trigger":"FILE.UPLOADED","source":{"id":"9"}}`},
		sample{"BOX-DELIVERY-ID: f96bb54b", `{"type":"webhook_event","id":"0b0c4e06-751f","trigger":"FILE.UPLOADED"}`},
		sample{"BOX-DELIVERY-ID: f96bb54b", `{"type":"webhook_event","trigger":"FILE.UPLOADED"}`},
	},
	"circleci": byBody("Circleci-Event-Type: job-completed", `{"type":"job-completed","id":"`+someUUID+`","happened_at":"2026-01-02T03:04:05Z","job":{"id":"8b91"}}`,
		`{"id":"`+someUUID+`","type":"job-completed","job":{"id":"8b91"}}`, `{"type":"job-completed","id":"`+otherUUID+`","job":{"id":"8b91"}}`, `{"type":"job-completed","job":{"id":"8b91"}}`),
	"clerk":       byHeader("svix-id", "msg_2Lh9KRb", "msg_2Lh9KRc", "svix-timestamp", `{"type":"user.created","data":{"id":"user_1"}}`),
	"cloudevents": cloudEvents(),
	"convoy":      byHeader("X-Convoy-EventDelivery-ID", "01HZX1", "01HZX2", "X-Convoy-Signature", `{"id":"x"}`),
	"discord": byBody("X-Signature-Timestamp: 1\nX-Signature-Ed25519: a", `{"version":1,"application_id":"1234560123453231555","type":1,"event":{"type":"APPLICATION_AUTHORIZED","timestamp":"2026-10-18T14:42:53.064834","data":{"user":{"id":"1"}}}}`,
		`{"version":1,"application_id":"1234560123453231555","type":1,"event":{"type":"APPLICATION_AUTHORIZED","timestamp":"2026-10-18T14:42:53.064834","data":{"user":{"id":"1"}}}}`,
		`{"version":1,"application_id":"1234560123453231555","type":1,"event":{"type":"APPLICATION_AUTHORIZED","timestamp":"2026-10-18T14:42:54.064834","data":{"user":{"id":"1"}}}}`, ``),
	"dropbox": byBody("X-Dropbox-Signature: aa", `{"list_folder":{"accounts":["dbid:AAH4f99"]},"delta":{"users":[12345678]}}`,
		`{"list_folder":{"accounts":["dbid:AAH4f99"]},"delta":{"users":[12345678]}}`, `{"list_folder":{"accounts":["dbid:AAH4f98"]},"delta":{"users":[12345679]}}`, ``),
	"eventarc": cloudEvents(),
	"eventgrid": byBody("aeg-event-type: Notification", `[{"id":"`+someUUID+`","topic":"/subscriptions/s/x","eventType":"Blob","subject":"/a","eventTime":"2026-01-02T03:04:05Z","data":{},"dataVersion":"1"}]`,
		`[{"topic":"/subscriptions/s/x","id":"`+someUUID+`","eventType":"Blob"}]`, `[{"id":"`+someUUID+`","topic":"/subscriptions/s/y","eventType":"Blob"}]`, `[{"id":"`+someUUID+`"}]`),
	"forgejo": byHeader("X-Gitea-Delivery", someUUID, otherUUID, "X-Forgejo-Signature", `{"ref":"refs/heads/main"}`),
	"gitea":   byHeader("X-Gitea-Delivery", someUUID, otherUUID, "X-Gitea-Signature", `{"ref":"refs/heads/main"}`),
	"github": {
		sample{"X-GitHub-Delivery: " + someUUID + "\nX-GitHub-Hook-ID: 292430182\nX-GitHub-Event: ping", `{"zen":"Design for failure."}`},
		sample{"X-GitHub-Delivery: " + someUUID + "\nX-GitHub-Hook-ID: 292430182\nX-GitHub-Event: ping\nX-Hub-Signature-256: sha256=1", `{"zen":"Design for failure."}`},
		sample{"X-GitHub-Delivery: " + someUUID + "\nX-GitHub-Hook-ID: 292430183\nX-GitHub-Event: ping", `{"zen":"Design for failure."}`},
		sample{"X-GitHub-Hook-ID: 292430182\nX-GitHub-Event: ping", `{"zen":"Design for failure."}`},
	},
	"gitlab":       signedByHeader("X-Gitlab-Event: Push Hook\n", "Idempotency-Key", someUUID, otherUUID, "webhook-timestamp", `{"object_kind":"push"}`),
	"hugging_face": byHeader("Webhook-Id", someUUID, otherUUID, "X-Webhook-Secret", `{"event":{"action":"update","scope":"repo.content"},"webhook":{"id":"6390e855e30d9209411de93b","version":3}}`),
	"intercom": byBody("X-Hub-Signature: sha1=1", `{"type":"notification_event","topic":"user.created","id":"notif_05d4fa90","delivery_attempts":1,"first_sent_at":1392731331,"data":{"item":{"id":"u1"}}}`,
		`{"type":"notification_event","topic":"user.created","id":"notif_05d4fa90","delivery_attempts":2,"first_sent_at":1392731331,"data":{"item":{"id":"u1"}}}`,
		`{"type":"notification_event","id":"notif_05d4fa91","delivery_attempts":1,"data":{"item":{"id":"u1"}}}`, `{"type":"notification_event","topic":"ping","id":null}`),
	"jira":    byHeader("X-Atlassian-Webhook-Identifier", someUUID, otherUUID, "X-Atlassian-Webhook-Retry", `{"webhookEvent":"jira:issue_created","timestamp":1}`),
	"knative": cloudEvents(),
	"lemon_squeezy": byBody("X-Signature: a\nX-Event-Name: order_created", `{"meta":{"event_name":"order_created"},"data":{"type":"orders","id":"1","attributes":{"updated_at":"2026-01-02T03:04:05.000000Z"}}}`,
		`{"meta":{"event_name":"order_created"},"data":{"id":"1","type":"orders","attributes":{"updated_at":"2026-01-02T03:04:05.000000Z"}}}`,
		`{"meta":{"event_name":"order_created"},"data":{"type":"orders","id":"2","attributes":{"updated_at":"2026-01-02T03:04:05.000000Z"}}}`, ``),
	"linear": byHeader("Linear-Delivery", someUUID, otherUUID, "Linear-Signature", `{"action":"create","type":"Comment","webhookTimestamp":1}`),
	"mailgun": byBody("", `{"signature":{"timestamp":"1529006854","token":"a8ce0edb","signature":"d2271d12"},"event-data":{"event":"opened","timestamp":1529006854.329574,"id":"DACSsAdVSeGpLid7TN03WA"}}`,
		`{"signature":{"timestamp":"1529007854","token":"b9df1fec","signature":"e3382e23"},"event-data":{"event":"opened","timestamp":1529006854.329574,"id":"DACSsAdVSeGpLid7TN03WA"}}`,
		`{"signature":{"token":"a8ce0edb"},"event-data":{"event":"opened","timestamp":1529093254.329574,"id":"DACSsAdVSeGpLid7TN03WA"}}`, `{"signature":{"token":"a8ce0edb"},"event-data":{"event":"opened"}}`),
	"meta": byBody("X-Hub-Signature-256: sha256=1", `{"object":"page","entry":[{"id":"1","time":1,"messaging":[{"sender":{"id":"2"},"timestamp":7,"message":{"mid":"m_1","text":"hi"}}]}]}`,
		`{"object":"page","entry":[{"id":"1","time":2,"messaging":[{"sender":{"id":"2"},"timestamp":7,"message":{"mid":"m_1","text":"hi"}}]}]}`, messages,
		`{"object":"page","entry":[{"id":"1","time":1,"messaging":[{"sender":{"id":"2"},"read":{"watermark":1}}]}]}`),
	"notion": byBody("X-Notion-Signature: sha256=1", `{"id":"`+someUUID+`","timestamp":"2026-01-02T03:04:05.000Z","type":"page.created","attempt_number":1,"entity":{"id":"p"}}`,
		`{"id":"`+someUUID+`","timestamp":"2026-01-02T03:04:05.000Z","type":"page.created","attempt_number":2,"entity":{"id":"p"}}`,
		`{"id":"`+otherUUID+`","type":"page.created","attempt_number":1,"entity":{"id":"p"}}`, `{"type":"page.created"}`),
	"okta": byBody("", `{"eventType":"com.okta.event_hook","eventTime":"2026-01-02T03:04:05Z","data":{"events":[{"uuid":"a","eventType":"user.lifecycle.create"},{"uuid":"b"}]}}`,
		`{"eventType":"com.okta.event_hook","eventTime":"2026-01-02T03:05:05Z","data":{"events":[{"uuid":"a","eventType":"user.lifecycle.create"},{"uuid":"b"}]}}`,
		`{"eventType":"com.okta.event_hook","data":{"events":[{"uuid":"b"},{"uuid":"a"}]}}`, `{"eventType":"com.okta.event_hook","data":{"events":[{"uuid":"a"},{}]}}`),
	"openai":    byHeader("webhook-id", "wh_685342e6c53c8190", "wh_685342e6c53c8191", "webhook-timestamp", `{"object":"event","id":"evt_1","type":"response.completed"}`),
	"outpost":   byHeader("X-Outpost-Event-Id", "evt_1", "evt_2", "X-Outpost-Timestamp", `{"order":1}`),
	"paddle":    byBody("Paddle-Signature: ts=1;h1=a", `{"event_id":"evt_01hv8x29kz0t586xy6zn1a62ny","event_type":"address.created","notification_id":"ntf_1","data":{"id":"add_1"}}`, `{"event_id":"evt_01hv8x29kz0t586xy6zn1a62ny","event_type":"address.created","notification_id":"ntf_2","data":{"id":"add_1"}}`, `{"event_id":"evt_02","notification_id":"ntf_1"}`, `{"notification_id":"ntf_1"}`),
	"pagerduty": byHeader("X-Webhook-Id", someUUID, otherUUID, "X-PagerDuty-Signature", `{"event":{"id":"01BWDXV1C4J4BFJV1XVR4ZQ3B6"}}`),
	"paypal":    byBody("PAYPAL-TRANSMISSION-ID: 1", `{"id":"WH-2WR32451HC0233532-67976317FL4543714","event_type":"PAYMENT.SALE.COMPLETED","resource":{"id":"80021663"}}`, `{"id":"WH-2WR32451HC0233532-67976317FL4543714","resource":{"id":"80021663"}}`, `{"id":"WH-3","resource":{"id":"80021663"}}`, `{"resource":{"id":"80021663"}}`),
	"plaid": byBody("Plaid-Verification: eyJ", `{"webhook_type":"TRANSACTIONS","webhook_code":"SYNC_UPDATES_AVAILABLE","item_id":"wz666MBjYWTp2PDzzggYhM6oWWmBb","environment":"production"}`,
		`{"webhook_type":"TRANSACTIONS","webhook_code":"SYNC_UPDATES_AVAILABLE","item_id":"wz666MBjYWTp2PDzzggYhM6oWWmBb","environment":"production"}`,
		`{"webhook_type":"TRANSACTIONS","webhook_code":"SYNC_UPDATES_AVAILABLE","item_id":"xz666MBjYWTp2PDzzggYhM6oWWmBb","environment":"production"}`, ``),
	"postmark": {
		sample{"X-PM-Webhook-Trace-Id: " + someUUID + "\nX-PM-Retries-Remaining: 6", `{"RecordType":"Open","MessageID":"883953f4","Recipient":"a@example.com"}`},
		sample{"X-PM-Webhook-Trace-Id: " + someUUID + "\nX-PM-Retries-Remaining: 5", `{"MessageID":"883953f4","RecordType":"Open","Recipient":"a@example.com"}`},
		sample{"X-PM-Webhook-Trace-Id: " + otherUUID + "\nX-PM-Retries-Remaining: 6", `{"RecordType":"Open","MessageID":"883953f4","Recipient":"a@example.com"}`},
		sample{"X-PM-Retries-Remaining: 6", `{"From":"a@example.com","MessageID":"22c74902"}`},
	},
	"pubsub": byBody("", `{"message":{"data":"SGVsbG8=","messageId":"2070443601311540","publishTime":"2026-01-02T03:04:05Z"},"subscription":"projects/p/subscriptions/s"}`,
		`{"deliveryAttempt":2,"message":{"data":"SGVsbG8=","messageId":"2070443601311540"},"subscription":"projects/p/subscriptions/s"}`,
		`{"message":{"data":"SGVsbG8=","messageId":"2070443601311540"},"subscription":"projects/p/subscriptions/t"}`, `{"message":{"messageId":"2070443601311540"}}`),
	"razorpay":  byHeader("X-Razorpay-Event-Id", "EvtA1", "EvtA2", "X-Razorpay-Signature", `{"event":"payment.captured","created_at":1}`),
	"replicate": byHeader("webhook-id", "msg_a", "msg_b", "webhook-timestamp", `{"id":"ufawqhfynnddngldkgtslldrkq","status":"succeeded"}`),
	"resend":    byHeader("svix-id", "msg_a", "msg_b", "svix-timestamp", `{"type":"email.sent","data":{"email_id":"e"}}`),
	"sendgrid": byBody("", `[{"email":"a@example.com","event":"processed","sg_event_id":"ZGVsaXZlcmVk","sg_message_id":"14c5"},{"event":"open","sg_event_id":"b3Blbg=="}]`,
		`[{"email":"a@example.com","event":"processed","sg_event_id":"ZGVsaXZlcmVk","sg_message_id":"14c5"},{"event":"open","sg_event_id":"b3Blbg=="}]`,
		`[{"email":"a@example.com","event":"processed","sg_event_id":"ZGVsaXZlcmVk","sg_message_id":"14c5"}]`, `[{"event":"processed","sg_event_id":"ZGVsaXZlcmVk"},{"event":"open"}]`),
	"sentry": {
		sample{"Request-ID: a\nSentry-Hook-Timestamp: 1\nSentry-Hook-Resource: issue", `{"action":"resolved","installation":{"uuid":"7"},"data":{"issue":{"id":"1","count":"1"}}}`},
		sample{"Request-ID: b\nSentry-Hook-Timestamp: 2\nSentry-Hook-Resource: issue", `{"action":"resolved","installation":{"uuid":"7"},"data":{"issue":{"id":"1","count":"1"}}}`},
		sample{"Request-ID: a\nSentry-Hook-Timestamp: 1\nSentry-Hook-Resource: issue", `{"action":"unresolved","installation":{"uuid":"7"},"data":{"issue":{"id":"1","count":"1"}}}`},
		sample{"Request-ID: a\nSentry-Hook-Timestamp: 1", `{"action":"resolved","installation":{"uuid":"7"}}`},
	},
	"shopify": {
		sample{"X-Shopify-Event-Id: 98880550\nX-Shopify-Webhook-Id: b54557e4\nX-Shopify-Topic: orders/create\nX-Shopify-Shop-Domain: a.myshopify.com", `{"id":820982911946154508}`},
		sample{"X-Shopify-Event-Id: 98880550\nX-Shopify-Webhook-Id: b54557e4\nX-Shopify-Topic: orders/create\nX-Shopify-Shop-Domain: a.myshopify.com\nX-Shopify-Triggered-At: 2", `{"id":820982911946154508}`},
		sample{"X-Shopify-Event-Id: 98880550\nX-Shopify-Webhook-Id: b54557e5\nX-Shopify-Topic: orders/create\nX-Shopify-Shop-Domain: a.myshopify.com", `{"id":820982911946154508}`},
		sample{"X-Shopify-Topic: orders/create\nX-Shopify-Shop-Domain: a.myshopify.com", `{"id":820982911946154508}`},
	},
	"slack": byBody("X-Slack-Signature: v0=1", `{"token":"t","team_id":"T1","event":{"type":"app_mention","ts":"1.0"},"type":"event_callback","event_id":"Ev9UQ52YNA","event_time":1234567890}`,
		`{"token":"t","team_id":"T1","event":{"type":"app_mention","ts":"1.0"},"type":"event_callback","event_id":"Ev9UQ52YNA","event_time":1234567890}`,
		`{"token":"t","event":{"type":"app_mention","ts":"1.0"},"type":"event_callback","event_id":"Ev9UQ52YNB"}`, `{"type":"app_rate_limited","team_id":"T1"}`),
	"sns":               byHeader("x-amz-sns-message-id", someUUID, otherUUID, "x-amz-sns-rawdelivery", `{"Type":"Notification","MessageId":"`+someUUID+`"}`),
	"square":            byBody("x-square-hmacsha256-signature: a\nsquare-retry-number: 1", `{"merchant_id":"M","type":"payment.created","event_id":"`+someUUID+`","created_at":"2026-01-02T03:04:05Z"}`, `{"merchant_id":"M","type":"payment.created","event_id":"`+someUUID+`"}`, `{"merchant_id":"M","event_id":"`+otherUUID+`"}`, `{"merchant_id":"M"}`),
	"standard_webhooks": byHeader("webhook-id", "msg_a", "msg_b", "webhook-timestamp", `{"type":"contact.created"}`),
	"stripe":            byBody("Stripe-Signature: t=1,v1=a", `{"id":"evt_1MqqbKLt4dXK03v5qaIbiNCC","object":"event","created":1680064028,"type":"customer.created","pending_webhooks":2}`, `{"id":"evt_1MqqbKLt4dXK03v5qaIbiNCC","object":"event","created":1680064028,"type":"customer.created","pending_webhooks":1}`, `{"id":"evt_2","object":"event"}`, `{"object":"event"}`),
	"svix":              byHeader("svix-id", "msg_a", "msg_b", "svix-timestamp", `{"test":2432232314}`),
	"telegram":          byBody("X-Telegram-Bot-Api-Secret-Token: s", `{"update_id":10000,"message":{"message_id":1365,"date":1441645532,"text":"/start"}}`, `{"update_id":10000,"message":{"message_id":1365}}`, `{"update_id":10001,"message":{"message_id":1365}}`, `{"message":{"message_id":1365}}`),
	"twilio":            byHeader("I-Twilio-Idempotency-Token", someUUID, otherUUID, "X-Twilio-Signature", `MessageSid=SM1&MessageStatus=sent`),
	"twitch":            byHeader("Twitch-Eventsub-Message-Id", "befa7b53", "befa7b54", "Twitch-Eventsub-Message-Timestamp", `{"subscription":{"id":"f1c2a387"},"event":{"user_id":"1337"}}`),
	"typeform":          byBody("Typeform-Signature: sha256=1", `{"event_id":"LtWXD3crgy","event_type":"form_response","form_response":{"token":"a"}}`, `{"event_id":"LtWXD3crgy","event_type":"form_response","form_response":{"token":"a"}}`, `{"event_id":"LtWXD3crgz","event_type":"form_response"}`, `{"event_type":"form_response"}`),
	"vercel":            byBody("x-vercel-signature: a", `{"id":"uev_1","type":"deployment.created","createdAt":1700000000000,"payload":{"deployment":{"id":"dpl_1"}}}`, `{"id":"uev_1","type":"deployment.created","payload":{"deployment":{"id":"dpl_1"}}}`, `{"id":"uev_2","payload":{"deployment":{"id":"dpl_1"}}}`, `{"payload":{"deployment":{"id":"dpl_1"}}}`),
	"whatsapp":          byBody("X-Hub-Signature-256: sha256=1", messages, strings.Replace(messages, `"id":"1022"`, `"id":"1022","time":2`, 1), read, account),
	"woocommerce": {
		sample{"X-WC-Webhook-Delivery-ID: 5f4d", `{"id":727,"status":"processing"}`},
		sample{"X-WC-Webhook-Delivery-ID: 5f4d\nX-WC-Webhook-Signature: a", `{"id":727,"status":"processing"}`},
		sample{"X-WC-Webhook-Delivery-ID: 5f4d", `{"id":728,"status":"processing"}`},
		sample{"X-WC-Webhook-Signature: a", `{"id":727,"status":"processing"}`},
	},
	"asaas":      byBody("", `{"id":"evt_05b7&368604920","event":"PAYMENT_CREATED","payment":{"id":"pay_1"}}`, `{"event":"PAYMENT_CREATED","id":"evt_05b7&368604920"}`, `{"id":"evt_05b8&368604920","event":"PAYMENT_CREATED","payment":{"id":"pay_1"}}`, `{"payment":{"id":"pay_1"}}`),
	"chargebee":  byBody("", `{"id":"ev_16BHbh","occurred_at":1702578601,"event_type":"invoice_updated","webhook_status":"scheduled"}`, `{"id":"ev_16BHbh","occurred_at":1702578601,"event_type":"invoice_updated","webhook_status":"re_scheduled"}`, `{"id":"ev_16BHbi","event_type":"invoice_updated"}`, `{"event_type":"invoice_updated"}`),
	"contentful": signedByHeader("X-Contentful-Topic: ContentManagement.Entry.publish\n", "X-Contentful-Idempotency-Key", "a1b2", "a1b3", "X-Contentful-Signature", `{"sys":{"id":"e1"}}`),
	"fourthwall": byBody("X-Fourthwall-Hmac-SHA256: a", `{"testMode":false,"id":"weve_a","webhookId":"wcon_1","type":"ORDER_PLACED"}`, `{"webhookId":"wcon_1","id":"weve_a","type":"ORDER_PLACED"}`, `{"id":"weve_b","webhookId":"wcon_1"}`, `{"webhookId":"wcon_1"}`),
	"gusto":      byBody("X-Gusto-Signature: a", `{"event_type":"company.updated","resource_uuid":"7779b433","timestamp":1707506458,"uuid":"03ffbf0c"}`, `{"uuid":"03ffbf0c","event_type":"company.updated"}`, `{"uuid":"03ffbf0d","resource_uuid":"7779b433"}`, `{"verification_token":"a","webhook_subscription_uuid":"b"}`),
	"line":       byBody("X-Line-Signature: a", `{"destination":"U1","events":[{"type":"message","webhookEventId":"01FZ74A0","deliveryContext":{"isRedelivery":false}}]}`, `{"destination":"U1","events":[{"type":"message","webhookEventId":"01FZ74A0","deliveryContext":{"isRedelivery":true}}]}`, `{"destination":"U1","events":[{"webhookEventId":"01FZ74A1"}]}`, `{"destination":"U1","events":[]}`),
	"nylas":      byBody("X-Nylas-Signature: a", `{"specversion":"1.0","type":"message.created","source":"/google/emails/realtime","id":"5da3ec1e","webhook_delivery_attempt":1}`, `{"specversion":"1.0","type":"message.created","source":"/google/emails/realtime","id":"5da3ec1e","webhook_delivery_attempt":2}`, `{"source":"/google/emails/realtime","id":"5da3ec1f"}`, `{"source":"/google/emails/realtime"}`),
	"pandadoc":   byHeader("X-PandaDoc-Webhook-Event-Id", someUUID, otherUUID, "X-PandaDoc-Signature", `[{"event":"document_state_changed"}]`),
	"prolific":   signedByHeader("X-Prolific-Request-Signature: a\n", "X-Event-ID", someUUID, otherUUID, "X-Prolific-Request-Timestamp", `{"event_type":"study.status.change"}`),
	"sevalla":    byBody("svl-signature: whsec_1", `{"webhook_id":"d5f8","event_id":"a1b2","event_delivery_id":"f1e2","type":"APP_DEPLOY"}`, `{"webhook_id":"d5f8","event_id":"a1b2","event_delivery_id":"f1e3","type":"APP_DEPLOY"}`, `{"webhook_id":"d5f8","event_id":"a1b3","event_delivery_id":"f1e2"}`, `{"webhook_id":"d5f8","event_delivery_id":"f1e2"}`),
	"zoom":       byBody("x-zm-signature: v0=a", `{"event":"meeting.started","event_ts":1739923528546,"payload":{"object":{"id":"1"}}}`, `{"event_ts":1739923528546,"event":"meeting.started","payload":{"object":{"id":"1"}}}`, `{"event":"meeting.started","event_ts":1739923528547,"payload":{"object":{"id":"1"}}}`, ``),
	"zendesk":    byHeader("X-Zendesk-Webhook-Invocation-Id", someUUID, otherUUID, "X-Zendesk-Webhook-Signature-Timestamp", `{"id":"x"}`),
}

func TestEachProvidersRequests(t *testing.T) {
	prefixes := map[string]string{}
	for _, p := range delivery.Providers() {
		t.Run(p.Name, func(t *testing.T) {
			s, ok := providerSamples[p.Name]
			if !ok {
				t.Fatal("no request is shaped like this provider's")
			}
			ask := func(s sample) delivery.Found {
				t.Helper()
				if passesThrough(p, s) {
					t.Fatalf("%+v passes through", s)
				}
				found, err := delivery.Find(p.Sources, s.request(), maxLength)
				if err != nil {
					t.Fatalf("%+v: %v", s, err)
				}
				if found.Provider != p.Name || found.Prefix != p.Name {
					t.Errorf("%+v: found %+v", s, found)
				}
				return found
			}
			first := ask(s.first)
			if retry := ask(s.retry); keyOf(retry) != keyOf(first) {
				t.Errorf("the retry has %+v and the first delivery %+v", retry, first)
			}
			if other := ask(s.other); keyOf(other) == keyOf(first) {
				t.Errorf("another event has the same key: %+v", other)
			}
			if found, err := delivery.Find(p.Sources, s.missing.request(), maxLength); !errors.Is(err, delivery.ErrMissing) {
				t.Errorf("without an ID: found %+v, %v; want ErrMissing", found, err)
			}
			if name, ok := prefixes[keyOf(first).String()]; ok {
				t.Errorf("it shares a key with %s", name)
			}
			prefixes[keyOf(first).String()] = p.Name
		})
	}
	for name := range providerSamples {
		if _, ok := delivery.ProviderNamed(name); !ok {
			t.Errorf("%q is no provider", name)
		}
	}
}

// A site's own JSON, whatever members it has, is no delivery of a provider: only of those that
// are marked, which send no field of their own. And a field with which more than one sender
// names a delivery is not the provider's without a further sign.
func TestSiteJSONIsNotADelivery(t *testing.T) {
	for _, p := range delivery.Providers() {
		marked := p.Matcher() != ""
		if s := (sample{"Content-Type: application/json", providerSamples[p.Name].first.body}); claims(t, p, s) != marked {
			t.Errorf("provider %s: it claims its body without its fields: %v; it is marked: %v", p.Name, !marked, marked)
		}
		for _, field := range []string{
			"Content-Type", "Idempotency-Key", "webhook-id", "X-Webhook-Id", "X-Request-UUID", "X-Request-Id", "Request-ID", "X-Event-ID", "X-Hook-UUID-Of-Another",
		} {
			for _, body := range []string{
				`{"id":"42"}`, `{"id":42,"type":"order","source":"web"}`, `{"event_id":"42","type":"x"}`, `{"uuid":"42"}`, `{"update_id":42}`, `{"hash":"42"}`,
				`{"events":[{"id":"42"}]}`, `{"data":{"id":"42"}}`, `{"message":{"id":"42"}}`, `[{"id":"42"}]`, `42`, ``, `{"webhook":"42"}`,
			} {
				if s := (sample{field + ": application/json", body}); claims(t, p, s) {
					t.Errorf("provider %s claims %+v", p.Name, s)
				}
			}
		}
	}
}

// claims reports whether the provider claims the request.
func claims(t *testing.T, p delivery.Provider, s sample) bool {
	t.Helper()
	_, err := delivery.Find(p.Sources, s.request(), maxLength)
	if err != nil && !errors.Is(err, delivery.ErrMissing) {
		t.Errorf("provider %s: %+v: %v", p.Name, s, err)
	}
	return err == nil
}

// Two providers can share a handler if none claims a delivery of the other: those that are known
// by a header field are tried before those that are known by members alone.
func TestProvidersOfOneHandler(t *testing.T) {
	for _, p := range delivery.Providers() {
		for _, q := range delivery.Providers() {
			if p.Name == q.Name {
				continue
			}
			err := delivery.CheckDistinct([]string{"github", p.Name, q.Name})
			of := providerSamples[p.Name]
			taken := (claims(t, q, of.first) || claims(t, q, of.other)) && (q.Matcher() == "" || p.Matcher() != "")
			if (err != nil) != taken {
				t.Errorf("%s takes a delivery of %s: %v; a handler of both: %v", q.Name, p.Name, taken, err)
			}
			if err != nil && !strings.Contains(err.Error(), "the requests of "+p.Name+" and "+q.Name+" look the same") {
				t.Errorf("%s and %s: got %v", p.Name, q.Name, err)
			}
		}
	}
}
