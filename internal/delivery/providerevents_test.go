package delivery_test

import (
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

// twoEvents are two events of one provider that are equal in all but what may differ between two
// of its events.
type twoEvents struct {
	differIn string
	a, b     sample
}

// changed makes the second event of the first by replacing one text, in the body and in each line
// of the header.
func changed(differIn, from, to, body string, headerLines ...string) twoEvents {
	var other []string
	for _, line := range headerLines {
		other = append(other, strings.Replace(line, from, to, 1))
	}
	return twoEvents{differIn, sample{strings.Join(headerLines, "\n"), body}, sample{strings.Join(other, "\n"), strings.Replace(body, from, to, 1)}}
}

// lineOnEach adds a line to the header of each event.
func lineOnEach(line string, pairs []twoEvents) []twoEvents {
	all := make([]twoEvents, len(pairs))
	for i, pair := range pairs {
		pair.a.header, pair.b.header = line+"\n"+pair.a.header, line+"\n"+pair.b.header
		all[i] = pair
	}
	return all
}

// eventsOf has the providers whose events can differ in more than one value, each of which must be
// in the key: a part that is left out swallows an event.
var eventsOf = map[string][]twoEvents{
	"adyen": {
		changed("the event", "AUTHORISATION", "CAPTURE", adyenItem),
		changed("the payment", "7914073381342284", "7914073381342285", adyenItem),
		changed("the outcome", `"success":"true"`, `"success":"false"`, adyenItem),
		changed("the date of a correction", "2026-01-02T03:04:05", "2026-01-02T03:09:05", adyenItem),
		changed("the reason in a correction", `"reason":""`, `"reason":"refused"`, adyenItem),
		changed("a corrected additional datum", `"reason":""`, `"reason":"","additionalData":{"expiryDate":"3/2030"}`, adyenItem),
		changed("the merchant's reference", `"reason":""`, `"reason":"","merchantReference":"order-2"`, adyenItem),
		changed("the amount in a correction", `"value":1130`, `"value":1131`, adyenItem),
	},
	"bigcommerce": {
		// The hash is one over the data, which names the order only.
		changed("the hash", "dd70c0", "dd70c1", bigCommerceUpdate),
		changed("the time of the next change", "1561479335", "1561479336", bigCommerceUpdate),
		changed("the kind of change", "order/updated", "order/statusUpdated", bigCommerceUpdate),
		changed("the store", "stores/x", "stores/y", bigCommerceUpdate),
	},
	"cloudevents": cloudEventsThatDiffer,
	"contentful": {
		changed("the key", "a1b2", "a1b3", `{"sys":{"id":"e1"}}`, "X-Contentful-Idempotency-Key: a1b2", "X-Contentful-Topic: ContentManagement.Entry.publish"),
		changed("the content", `"version":5`, `"version":6`, `{"sys":{"id":"e1","version":5}}`, "X-Contentful-Idempotency-Key: a1b2"),
		changed("the topic", "Entry.publish", "Entry.archive", `{"sys":{"id":"e1"}}`, "X-Contentful-Idempotency-Key: a1b2", "X-Contentful-Topic: ContentManagement.Entry.publish"),
		changed("the webhook", "site", "search", `{"sys":{"id":"e1"}}`, "X-Contentful-Idempotency-Key: a1b2", "X-Contentful-Webhook-Name: site"),
	},
	"eventarc": cloudEventsThatDiffer,
	"eventgrid": lineOnEach("aeg-event-type: Notification", append([]twoEvents{
		changed("the event", "2d1781af", "2d1781b0", eventGridEvents),
		changed("the topic", "/subscriptions/x", "/subscriptions/y", eventGridEvents),
		changed("the subscription", "BILLING", "AUDIT", eventGridEvents, "aeg-subscription-name: BILLING"),
		changed("the subscription, structured", "BILLING", "AUDIT", oneCloudEvent, structuredMode, "aeg-subscription-name: BILLING"),
	}, cloudEventsThatDiffer...)),
	"fourthwall": {
		changed("the event", "weve_a", "weve_b", `{"testMode":false,"id":"weve_a","webhookId":"wcon_1","type":"ORDER_UPDATED"}`, "X-Fourthwall-Hmac-SHA256: a"),
		changed("the webhook", "wcon_1", "wcon_2", `{"testMode":false,"id":"weve_a","webhookId":"wcon_1","type":"ORDER_UPDATED"}`, "X-Fourthwall-Hmac-SHA256: a"),
	},
	"github": {
		changed("the event", "72d3162e", "72d3162f", `{"zen":"z"}`, "X-GitHub-Delivery: 72d3162e", "X-GitHub-Hook-ID: 1"),
		changed("the hook", "292430182", "292430183", `{"zen":"z"}`, "X-GitHub-Delivery: 72d3162e", "X-GitHub-Hook-ID: 292430182"),
	},
	"gitlab": {
		changed("the delivery", "f5e5f430", "f5e5f431", `{"object_kind":"push"}`, "Idempotency-Key: f5e5f430", "X-Gitlab-Event: Push Hook", "X-Gitlab-Event-UUID: 13792a34"),
		changed("the ID of Standard Webhooks", "f5e5f430", "f5e5f431", `{"object_kind":"push"}`, "webhook-id: f5e5f430", "X-Gitlab-Event: Push Hook", "X-Gitlab-Event-UUID: 13792a34"),
		// A webhook that leads to another one hands its UUID on.
		changed("the content, after one and the same cause", "push", "issue", `{"object_kind":"push"}`, "X-Gitlab-Event: Push Hook", "X-Gitlab-Event-UUID: 13792a34"),
		changed("the hook, group's and project's", "w1", "w2", `{"object_kind":"push"}`, "X-Gitlab-Event: Push Hook", "X-Gitlab-Event-UUID: 13792a34", "X-Gitlab-Webhook-UUID: w1"),
		changed("the UUID", "13792a34", "13792a35", `{"object_kind":"push"}`, "X-Gitlab-Event: Push Hook", "X-Gitlab-Event-UUID: 13792a34"),
	},
	"hugging_face": {
		changed("the delivery", "f5e5", "f5e6", `{"event":{"action":"update","scope":"repo.content"},"webhook":{"id":"6390","version":3}}`, "Webhook-Id: f5e5"),
		changed("the webhook", "6390", "6391", `{"event":{"action":"update","scope":"repo.content"},"webhook":{"id":"6390","version":3}}`, "Webhook-Id: f5e5"),
	},
	"knative": cloudEventsThatDiffer,
	"line": {
		changed("the event", "01FZ74A0", "01FZ74A1", `{"destination":"U1","events":[{"type":"message","webhookEventId":"01FZ74A0","deliveryContext":{"isRedelivery":false}}]}`, "X-Line-Signature: a"),
		changed("the second event", "01FZ74B0", "01FZ74B1", `{"destination":"U1","events":[{"webhookEventId":"01FZ74C0"},{"webhookEventId":"01FZ74B0"}]}`, "X-Line-Signature: a"),
	},
	"mailgun": {
		changed("the event", "CPgf", "CPgg", `{"signature":{"token":"a"},"event-data":{"id":"CPgf","timestamp":1529006854.329574,"event":"opened"}}`),
		// An ID is unique within a day only.
		changed("the day", "1529006854.329574", "1529093254.329574", `{"signature":{"token":"a"},"event-data":{"id":"CPgf","timestamp":1529006854.329574,"event":"opened"}}`),
	},
	"nylas": {
		changed("the notification", "5da3ec1e", "5da3ec1f", `{"specversion":"1.0","type":"message.updated","source":"/google/emails/realtime","id":"5da3ec1e","data":{"object":{"id":"m"}}}`, "X-Nylas-Signature: a"),
		changed("the source", "/google/emails", "/microsoft/emails", `{"specversion":"1.0","type":"message.updated","source":"/google/emails/realtime","id":"5da3ec1e","data":{"object":{"id":"m"}}}`, "X-Nylas-Signature: a"),
	},
	"pubsub": {
		changed("the message", "2070443601311540", "2070443601311541", `{"message":{"data":"eA==","messageId":"2070443601311540"},"subscription":"projects/p/subscriptions/s"}`),
		changed("the subscription", "subscriptions/s", "subscriptions/t", `{"message":{"data":"eA==","messageId":"2070443601311540"},"subscription":"projects/p/subscriptions/s"}`),
	},
	"sevalla": {
		changed("the event", "a1b2c3d4", "a1b2c3d5", `{"webhook_id":"d5f8","event_id":"a1b2c3d4","event_delivery_id":"f1e2","type":"APP_DEPLOY"}`, "svl-signature: whsec_1"),
		changed("the webhook", "d5f8", "d5f9", `{"webhook_id":"d5f8","event_id":"a1b2c3d4","event_delivery_id":"f1e2","type":"APP_DEPLOY"}`, "svl-signature: whsec_1"),
	},
	"shopify": shopifyEventsThatDiffer,
	"sns": {
		changed("the message", "165545c9", "165545ca", `{"Type":"Notification"}`, "x-amz-sns-message-id: 165545c9"),
		changed("the subscription", "2bcfbf39", "2bcfbf40", `{"Type":"Notification"}`, "x-amz-sns-message-id: 165545c9",
			"x-amz-sns-subscription-arn: arn:aws:sns:us-west-2:123456789012:MyTopic:2bcfbf39"),
	},
	"telegram": {
		changed("the bot, by its secret", "s1", "s2", `{"update_id":10000}`, "X-Telegram-Bot-Api-Secret-Token: s1"),
		changed("the update", "10000", "10001", `{"update_id":10000,"edited_message":{"message_id":1365}}`, "X-Telegram-Bot-Api-Secret-Token: s1"),
	},
	"whatsapp": lineOnEach("X-Hub-Signature-256: sha256=a", whatsAppEventsThatDiffer),
	"woocommerce": {
		changed("the delivery", "5fe8b7", "5fe8b8", `{"id":1,"status":"processing"}`, "X-WC-Webhook-Delivery-ID: 5fe8b7"),
		changed("the content, in one second", "processing", "completed", `{"id":1,"status":"processing"}`, "X-WC-Webhook-Delivery-ID: 5fe8b7"),
	},
}

const bigCommerceUpdate = `{"scope":"store/order/updated","store_id":"1","data":{"type":"order","id":250},"hash":"dd70c0","created_at":1561479335,"producer":"stores/x"}`

const adyenItem = `{"live":"false","notificationItems":[{"NotificationRequestItem":{"amount":{"value":1130,"currency":"EUR"},"eventCode":"AUTHORISATION","eventDate":"2026-01-02T03:04:05+01:00","pspReference":"7914073381342284","reason":"","success":"true"}}]}`

const eventGridEvents = `[{"id":"2d1781af","topic":"/subscriptions/x","eventType":"Blob"}]`

const (
	structuredMode = "Content-Type: application/cloudevents+json; charset=utf-8"
	batchedMode    = "Content-Type: application/cloudevents-batch+json"
	oneCloudEvent  = `{"specversion":"1.0","type":"Microsoft.Storage.BlobCreated","source":"/shop/1","id":"A234","data":{}}`
	twoCloudEvents = `[{"specversion":"1.0","source":"/shop/1","id":"A1"},{"specversion":"1.0","source":"/shop/1","id":"A234"}]`
)

// In each mode of the HTTP binding: an ID is unique within its source.
var cloudEventsThatDiffer = []twoEvents{
	changed("the event", "A234", "A235", `{"n":1}`, "ce-source: /shop/1", "ce-id: A234"),
	changed("the source", "/shop/1", "/shop/2", `{"n":1}`, "ce-source: /shop/1", "ce-id: A234"),
	changed("the event, structured", "A234", "A235", oneCloudEvent, structuredMode),
	changed("the source, structured", "/shop/1", "/shop/2", oneCloudEvent, structuredMode),
	changed("the event, batched", "A234", "A235", twoCloudEvents, batchedMode),
	changed("the source, batched", "/shop/1", "/shop/2", twoCloudEvents, batchedMode),
	changed("the event, in other letters", "A234", "A235", twoCloudEvents, strings.ToUpper(batchedMode)),
	// Event Grid batches events under the type of a single one.
	changed("the event, batched as if single", "A234", "A236", twoCloudEvents, structuredMode),
}

const (
	groupStatus = `{"object":"whatsapp_business_account","entry":[{"id":"1022","changes":[{"field":"messages","value":{"statuses":[{"id":"wamid.A","status":"read","timestamp":"1749416390","recipient_id":"G1","recipient_type":"group","recipient_participant_id":"15550001"}]}}]}]}`
	aMessage    = `{"object":"whatsapp_business_account","entry":[{"id":"1022","changes":[{"field":"messages","value":{"messages":[{"from":"15550001","id":"wamid.A","type":"text"}]}}]}]}`
)

// The statuses of a message to a group have one message ID, for all participants.
var whatsAppEventsThatDiffer = []twoEvents{
	changed("the message", "wamid.A", "wamid.B", aMessage),
	changed("the status", `"read"`, `"played"`, groupStatus),
	changed("the message of a status", "wamid.A", "wamid.B", groupStatus),
	changed("the participant of a group", "15550001", "15550002", groupStatus),
	changed("the user ID of a participant without a number", "US.1", "US.2", strings.Replace(groupStatus, `"recipient_participant_id":"15550001"`, `"recipient_participant_user_id":"US.1"`, 1)),
	changed("the time of a status", "1749416390", "1749416391", groupStatus),
	changed("a number or a user ID", "recipient_participant_id", "recipient_participant_user_id", groupStatus),
}

var shopifyEventsThatDiffer = []twoEvents{
	changed("the event", "98880550", "98880551", `{"id":1}`, "X-Shopify-Event-Id: 98880550", "X-Shopify-Webhook-Id: b54557e4", "X-Shopify-Topic: orders/updated"),
	changed("the webhook", "b54557e4", "b54557e5", `{"id":1}`, "X-Shopify-Event-Id: 98880550", "X-Shopify-Webhook-Id: b54557e4", "X-Shopify-Topic: orders/updated"),
	changed("the topic", "orders/updated", "orders/paid", `{"id":1}`, "X-Shopify-Event-Id: 98880550", "X-Shopify-Webhook-Id: b54557e4", "X-Shopify-Topic: orders/updated"),
	changed("the shop", "a.myshopify.com", "b.myshopify.com", `{"id":1}`, "X-Shopify-Event-Id: 98880550", "X-Shopify-Webhook-Id: b54557e4", "X-Shopify-Shop-Domain: a.myshopify.com"),
	changed("the content, with an event ID alone", `"id":1`, `"id":2`, `{"id":1}`, "X-Shopify-Event-Id: 98880550", "X-Shopify-Topic: orders/updated"),
	changed("the content, with a webhook ID alone", `"id":1`, `"id":2`, `{"id":1}`, "X-Shopify-Webhook-Id: b54557e4", "X-Shopify-Topic: orders/updated"),
	changed("the delivery of the newer Events", "c1", "c2", `{"id":1}`, "Shopify-Webhook-Id: c1", "Shopify-Topic: product"),
}

// Two events of a provider have two keys, however little they differ in.
func TestDifferentEventsHaveDifferentKeys(t *testing.T) {
	for name, pairs := range eventsOf {
		p, ok := delivery.ProviderNamed(name)
		if !ok {
			t.Errorf("%s is not in the catalogue", name)
		}
		for _, pair := range pairs {
			a, errA := delivery.Find(p.Sources, pair.a.request(), maxLength)
			b, errB := delivery.Find(p.Sources, pair.b.request(), maxLength)
			if errA != nil || errB != nil || keyOf(a) == keyOf(b) {
				t.Errorf("%s: %s: found %+v, %v and %+v, %v", name, pair.differIn, a, errA, b, errB)
			}
		}
	}
}
