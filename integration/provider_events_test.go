package integration

import (
	"slices"
	"strings"
	"testing"
)

// twoEvents are two events of one provider that are equal in all but what may differ
// between two of its events.
type twoEvents struct {
	differIn string
	a, b     sent
}

// oneEventChanged makes the second event of the first by replacing one text, in the
// body and in the header lines.
func oneEventChanged(differIn, from, to, body string, headerLines ...string) twoEvents {
	var changed []string
	for _, line := range headerLines {
		changed = append(changed, strings.Replace(line, from, to, 1))
	}
	return twoEvents{differIn, lined(body, headerLines...), lined(strings.Replace(body, from, to, 1), changed...)}
}

// lineOnEach adds a line to the header of each event.
func lineOnEach(line string, pairs []twoEvents) []twoEvents {
	all := make([]twoEvents, len(pairs))
	for i, pair := range pairs {
		field := lined("", line).options
		pair.a.options, pair.b.options = slices.Concat(pair.a.options, field), slices.Concat(pair.b.options, field)
		all[i] = pair
	}
	return all
}

// eventsOf has every provider of the catalogue. What its events can differ in is what
// must be in the key: a part that is left out swallows an event.
var eventsOf = map[string][]twoEvents{
	"adyen": {
		oneEventChanged("the event", "AUTHORISATION", "CAPTURE", adyenItem),
		oneEventChanged("the payment", "7914073381342284", "7914073381342285", adyenItem),
		oneEventChanged("the outcome", `"success":"true"`, `"success":"false"`, adyenItem),
		oneEventChanged("the date of a correction", "2026-01-02T03:04:05", "2026-01-02T03:09:05", adyenItem),
		oneEventChanged("the reason in a correction", `"reason":""`, `"reason":"refused"`, adyenItem),
		oneEventChanged("a corrected additional datum", `"reason":""`, `"reason":"","additionalData":{"expiryDate":"3/2030"}`, adyenItem),
		oneEventChanged("the merchant's reference", `"reason":""`, `"reason":"","merchantReference":"order-2"`, adyenItem),
		oneEventChanged("the amount in a correction", `"value":1130`, `"value":1131`, adyenItem),
	},
	"asaas": {oneEventChanged("the event", "evt_05b7", "evt_05b8", `{"id":"evt_05b7&368604920","event":"PAYMENT_CREATED","payment":{"id":"pay_1"}}`)},
	"asana": {oneEventChanged("the time", "03:04:05.001Z", "03:04:05.002Z", `{"events":[{"user":{"gid":"1"},"created_at":"2026-01-02T03:04:05.001Z","action":"changed","resource":{"gid":"7"}}]}`, "X-Hook-Signature: a")},
	"bigcommerce": {
		// The hash is one over the data, which names the order only.
		oneEventChanged("the hash", "dd70c0", "dd70c1", bigCommerceUpdate),
		oneEventChanged("the time of the next change", "1561479335", "1561479336", bigCommerceUpdate),
		oneEventChanged("the kind of change", "order/updated", "order/statusUpdated", bigCommerceUpdate),
		oneEventChanged("the store", "stores/x", "stores/y", bigCommerceUpdate),
	},
	"bitbucket":   {oneEventChanged("the request", "9a1b", "9a1c", `{"push":{"changes":[]}}`, "X-Request-UUID: 9a1b", "X-Hook-UUID: 7", "X-Event-Key: repo:push", "X-Attempt-Number: 1")},
	"box":         {oneEventChanged("the event", "eb0c4e06", "eb0c4e07", `{"type":"webhook_event","id":"eb0c4e06","trigger":"FILE.UPLOADED","source":{"id":"9"}}`, "BOX-DELIVERY-ID: f96bb54b")},
	"chargebee":   {oneEventChanged("the event", "ev_16BHbh", "ev_16BHbi", `{"id":"ev_16BHbh","occurred_at":1702578601,"event_type":"invoice_updated","webhook_status":"scheduled","content":{"invoice":{"id":"1"}}}`)},
	"circleci":    {oneEventChanged("the event", "3888f21b", "3888f21c", `{"type":"job-completed","id":"3888f21b","job":{"id":"8b91"}}`, "Circleci-Event-Type: job-completed")},
	"clerk":       {oneEventChanged("the message", "msg_a", "msg_b", `{"type":"user.updated","data":{"id":"user_1"}}`, "svix-id: msg_a")},
	"cloudevents": cloudEventsThatDiffer,
	"contentful": {
		oneEventChanged("the key", "a1b2", "a1b3", `{"sys":{"id":"e1"}}`, "X-Contentful-Idempotency-Key: a1b2", "X-Contentful-Topic: ContentManagement.Entry.publish"),
		oneEventChanged("the content", `"version":5`, `"version":6`, `{"sys":{"id":"e1","version":5}}`, "X-Contentful-Idempotency-Key: a1b2"),
		oneEventChanged("the topic", "Entry.publish", "Entry.archive", `{"sys":{"id":"e1"}}`, "X-Contentful-Idempotency-Key: a1b2", "X-Contentful-Topic: ContentManagement.Entry.publish"),
		oneEventChanged("the webhook", "site", "search", `{"sys":{"id":"e1"}}`, "X-Contentful-Idempotency-Key: a1b2", "X-Contentful-Webhook-Name: site"),
	},
	"convoy":   {oneEventChanged("the delivery", "01HZX1", "01HZX2", `{}`, "X-Convoy-EventDelivery-ID: 01HZX1")},
	"discord":  {oneEventChanged("the time", "53.064834", "53.064835", `{"type":1,"application_id":"1","event":{"type":"APPLICATION_AUTHORIZED","timestamp":"2026-10-18T14:42:53.064834"}}`, "X-Signature-Ed25519: a")},
	"dropbox":  {oneEventChanged("the account", "dbid:AAH4f99", "dbid:AAH4f98", `{"list_folder":{"accounts":["dbid:AAH4f99"]},"delta":{"users":[12345678]}}`, "X-Dropbox-Signature: a")},
	"eventarc": cloudEventsThatDiffer,
	"eventgrid": lineOnEach("aeg-event-type: Notification", append([]twoEvents{
		oneEventChanged("the event", "2d1781af", "2d1781b0", eventGridEvents),
		oneEventChanged("the topic", "/subscriptions/x", "/subscriptions/y", eventGridEvents),
		oneEventChanged("the subscription", "BILLING", "AUDIT", eventGridEvents, "aeg-subscription-name: BILLING"),
		oneEventChanged("the subscription, structured", "BILLING", "AUDIT", cloudEvent, structuredMode, "aeg-subscription-name: BILLING"),
	}, cloudEventsThatDiffer...)),
	"forgejo": {oneEventChanged("the delivery", "72d3", "72d4", `{"ref":"refs/heads/main"}`, "X-Gitea-Delivery: 72d3", "X-GitHub-Delivery: 72d3")},
	"fourthwall": {
		oneEventChanged("the event", "weve_a", "weve_b", `{"testMode":false,"id":"weve_a","webhookId":"wcon_1","type":"ORDER_UPDATED"}`, "X-Fourthwall-Hmac-SHA256: a"),
		oneEventChanged("the webhook", "wcon_1", "wcon_2", `{"testMode":false,"id":"weve_a","webhookId":"wcon_1","type":"ORDER_UPDATED"}`, "X-Fourthwall-Hmac-SHA256: a"),
	},
	"gitea": {oneEventChanged("the delivery", "72d3", "72d4", `{"ref":"refs/heads/main"}`, "X-Gitea-Delivery: 72d3", "X-GitHub-Delivery: 72d3")},
	"github": {
		oneEventChanged("the event", "72d3162e", "72d3162f", `{"zen":"z"}`, "X-GitHub-Delivery: 72d3162e", "X-GitHub-Hook-ID: 1"),
		oneEventChanged("the hook", "292430182", "292430183", `{"zen":"z"}`, "X-GitHub-Delivery: 72d3162e", "X-GitHub-Hook-ID: 292430182"),
	},
	"gitlab": {
		oneEventChanged("the delivery", "f5e5f430", "f5e5f431", `{"object_kind":"push"}`, "Idempotency-Key: f5e5f430", "X-Gitlab-Event: Push Hook", "X-Gitlab-Event-UUID: 13792a34"),
		oneEventChanged("the ID of Standard Webhooks", "f5e5f430", "f5e5f431", `{"object_kind":"push"}`, "webhook-id: f5e5f430", "X-Gitlab-Event: Push Hook", "X-Gitlab-Event-UUID: 13792a34"),
		// A webhook that leads to another one hands its UUID on.
		oneEventChanged("the content, after one and the same cause", "push", "issue", `{"object_kind":"push"}`, "X-Gitlab-Event: Push Hook", "X-Gitlab-Event-UUID: 13792a34"),
		oneEventChanged("the hook, group's and project's", "w1", "w2", `{"object_kind":"push"}`, "X-Gitlab-Event: Push Hook", "X-Gitlab-Event-UUID: 13792a34", "X-Gitlab-Webhook-UUID: w1"),
		oneEventChanged("the UUID", "13792a34", "13792a35", `{"object_kind":"push"}`, "X-Gitlab-Event: Push Hook", "X-Gitlab-Event-UUID: 13792a34"),
	},
	"gusto": {oneEventChanged("the event", "03ffbf0c", "03ffbf0d", `{"event_type":"company.updated","resource_uuid":"7779b433","timestamp":1707506458,"uuid":"03ffbf0c"}`, "X-Gusto-Signature: a")},
	"hugging_face": {
		oneEventChanged("the delivery", "f5e5", "f5e6", `{"event":{"action":"update","scope":"repo.content"},"webhook":{"id":"6390","version":3}}`, "Webhook-Id: f5e5"),
		oneEventChanged("the webhook", "6390", "6391", `{"event":{"action":"update","scope":"repo.content"},"webhook":{"id":"6390","version":3}}`, "Webhook-Id: f5e5"),
	},
	"intercom":      {oneEventChanged("the notification", "notif_a", "notif_b", `{"type":"notification_event","topic":"user.updated","id":"notif_a","delivery_attempts":1,"data":{"item":{"id":"u1"}}}`, "X-Hub-Signature: sha1=a")},
	"jira":          {oneEventChanged("the webhook", "72d3", "72d4", `{"webhookEvent":"jira:issue_updated"}`, "X-Atlassian-Webhook-Identifier: 72d3")},
	"knative":       cloudEventsThatDiffer,
	"lemon_squeezy": {oneEventChanged("the time of the change", "05.000000Z", "06.000000Z", `{"meta":{"event_name":"order_updated"},"data":{"type":"orders","id":"1","attributes":{"updated_at":"2026-01-02T03:04:05.000000Z"}}}`, "X-Event-Name: order_updated", "X-Signature: a")},
	"line": {
		oneEventChanged("the event", "01FZ74A0", "01FZ74A1", `{"destination":"U1","events":[{"type":"message","webhookEventId":"01FZ74A0","deliveryContext":{"isRedelivery":false}}]}`, "X-Line-Signature: a"),
		oneEventChanged("the second event", "01FZ74B0", "01FZ74B1", `{"destination":"U1","events":[{"webhookEventId":"01FZ74C0"},{"webhookEventId":"01FZ74B0"}]}`, "X-Line-Signature: a"),
	},
	"linear": {oneEventChanged("the delivery", "72d3", "72d4", `{"action":"update","type":"Issue"}`, "Linear-Delivery: 72d3")},
	"mailgun": {
		oneEventChanged("the event", "CPgf", "CPgg", `{"signature":{"token":"a"},"event-data":{"id":"CPgf","timestamp":1529006854.329574,"event":"opened"}}`),
		// An ID is unique within a day only.
		oneEventChanged("the day", "1529006854.329574", "1529093254.329574", `{"signature":{"token":"a"},"event-data":{"id":"CPgf","timestamp":1529006854.329574,"event":"opened"}}`),
	},
	"meta":   lineOnEach("X-Hub-Signature-256: sha256=a", append([]twoEvents{oneEventChanged("the message", "m_1", "m_2", `{"object":"page","entry":[{"id":"1","time":1,"messaging":[{"sender":{"id":"2"},"timestamp":7,"message":{"mid":"m_1","text":"hi"}}]}]}`)}, whatsAppEventsThatDiffer...)),
	"notion": {oneEventChanged("the event", "367cba44", "367cba45", `{"id":"367cba44","type":"page.content_updated","attempt_number":1,"entity":{"id":"p"}}`, "X-Notion-Signature: sha256=a")},
	"nylas": {
		oneEventChanged("the notification", "5da3ec1e", "5da3ec1f", `{"specversion":"1.0","type":"message.updated","source":"/google/emails/realtime","id":"5da3ec1e","data":{"object":{"id":"m"}}}`, "X-Nylas-Signature: a"),
		oneEventChanged("the source", "/google/emails", "/microsoft/emails", `{"specversion":"1.0","type":"message.updated","source":"/google/emails/realtime","id":"5da3ec1e","data":{"object":{"id":"m"}}}`, "X-Nylas-Signature: a"),
	},
	"okta":      {oneEventChanged("one event", "c6b299c0", "c6b299c1", `{"data":{"events":[{"uuid":"b5a188b9"},{"uuid":"c6b299c0"}]}}`)},
	"openai":    {oneEventChanged("the message", "wh_a", "wh_b", `{"object":"event","type":"response.completed"}`, "webhook-id: wh_a", "webhook-timestamp: 1")},
	"outpost":   {oneEventChanged("the event", "evt_1", "evt_2", `{"order":1}`, "X-Outpost-Event-Id: evt_1")},
	"paddle":    {oneEventChanged("the event", "evt_01hv", "evt_01hw", `{"event_id":"evt_01hv","event_type":"address.updated","notification_id":"ntf_1"}`, "Paddle-Signature: ts=1;h1=a")},
	"pagerduty": {oneEventChanged("the webhook", "72d3", "72d4", `{"event":{"id":"01BW"}}`, "X-Webhook-Id: 72d3", "X-PagerDuty-Signature: v1=a")},
	"pandadoc":  {oneEventChanged("the delivery", "72d3", "72d4", `[{"event":"document_state_changed"}]`, "X-PandaDoc-Webhook-Event-Id: 72d3")},
	"paypal":    {oneEventChanged("the event", "WH-2WR", "WH-2WS", `{"id":"WH-2WR","event_type":"PAYMENT.SALE.COMPLETED","resource":{"id":"80021663"}}`, "PAYPAL-TRANSMISSION-ID: 1")},
	"plaid":     {oneEventChanged("the item", "wz666", "wz667", `{"webhook_type":"TRANSACTIONS","webhook_code":"SYNC_UPDATES_AVAILABLE","item_id":"wz666"}`, "Plaid-Verification: eyJ")},
	"postmark": {
		oneEventChanged("the event", "5a4c1d4e", "5a4c1d4f", `{"RecordType":"Open","MessageID":"883953f4"}`, "X-PM-Webhook-Trace-Id: 5a4c1d4e"),
	},
	"prolific": {oneEventChanged("the event", "72d3", "72d4", `{"event_type":"study.status.change"}`, "X-Event-ID: 72d3", "X-Prolific-Request-Signature: a")},
	"pubsub": {
		oneEventChanged("the message", "2070443601311540", "2070443601311541", `{"message":{"data":"eA==","messageId":"2070443601311540"},"subscription":"projects/p/subscriptions/s"}`),
		oneEventChanged("the subscription", "subscriptions/s", "subscriptions/t", `{"message":{"data":"eA==","messageId":"2070443601311540"},"subscription":"projects/p/subscriptions/s"}`),
	},
	"razorpay":  {oneEventChanged("the event", "EvtA1", "EvtA2", `{"event":"payment.captured"}`, "X-Razorpay-Event-Id: EvtA1")},
	"replicate": {oneEventChanged("the message", "msg_a", "msg_b", `{"id":"ufawqh","status":"processing"}`, "webhook-id: msg_a", "webhook-signature: v1,a")},
	"resend":    {oneEventChanged("the message", "msg_a", "msg_b", `{"type":"email.opened"}`, "svix-id: msg_a")},
	"sendgrid":  {oneEventChanged("one event", "b3Blbg==", "b3Blbh==", `[{"event":"processed","sg_event_id":"ZGVsaXZlcmVk"},{"event":"open","sg_event_id":"b3Blbg=="}]`)},
	"sentry":    {oneEventChanged("the content", `"count":"1"`, `"count":"2"`, `{"action":"resolved","data":{"issue":{"id":"1","count":"1"}}}`, "Sentry-Hook-Resource: issue", "Request-ID: 72d3")},
	"sevalla": {
		oneEventChanged("the event", "a1b2c3d4", "a1b2c3d5", `{"webhook_id":"d5f8","event_id":"a1b2c3d4","event_delivery_id":"f1e2","type":"APP_DEPLOY"}`, "svl-signature: whsec_1"),
		oneEventChanged("the webhook", "d5f8", "d5f9", `{"webhook_id":"d5f8","event_id":"a1b2c3d4","event_delivery_id":"f1e2","type":"APP_DEPLOY"}`, "svl-signature: whsec_1"),
	},
	"shopify": shopifyEventsThatDiffer,
	"slack":   {oneEventChanged("the event", "Ev08MFMKH6", "Ev08MFMKH7", `{"type":"event_callback","event_id":"Ev08MFMKH6","event":{"type":"app_mention"}}`, "X-Slack-Signature: v0=a")},
	"sns": {
		oneEventChanged("the message", "165545c9", "165545ca", `{"Type":"Notification"}`, "x-amz-sns-message-id: 165545c9"),
		oneEventChanged("the subscription", "2bcfbf39", "2bcfbf40", `{"Type":"Notification"}`, "x-amz-sns-message-id: 165545c9",
			"x-amz-sns-subscription-arn: arn:aws:sns:us-west-2:123456789012:MyTopic:2bcfbf39"),
	},
	"square":            {oneEventChanged("the event", "13b867cf", "13b867d0", `{"merchant_id":"M","type":"payment.updated","event_id":"13b867cf"}`, "x-square-hmacsha256-signature: a")},
	"standard_webhooks": {oneEventChanged("the message", "msg_a", "msg_b", `{"type":"contact.updated"}`, "webhook-id: msg_a", "webhook-timestamp: 1")},
	"stripe":            {oneEventChanged("the event", "evt_1NG8", "evt_1NG9", `{"id":"evt_1NG8","object":"event","type":"charge.updated","data":{"object":{"id":"ch_1"}}}`, "Stripe-Signature: t=1,v1=a")},
	"svix":              {oneEventChanged("the message", "msg_a", "msg_b", `{"n":1}`, "svix-id: msg_a")},
	"telegram": {
		oneEventChanged("the bot, by its secret", "s1", "s2", `{"update_id":10000}`, "X-Telegram-Bot-Api-Secret-Token: s1"),
		oneEventChanged("the update", "10000", "10001", `{"update_id":10000,"edited_message":{"message_id":1365}}`, "X-Telegram-Bot-Api-Secret-Token: s1"),
	},
	"twilio":   {oneEventChanged("the request", "5a4c1d4e", "5a4c1d4f", "MessageSid=SM1&MessageStatus=sent", "I-Twilio-Idempotency-Token: 5a4c1d4e")},
	"twitch":   {oneEventChanged("the message", "befa7b53", "befa7b54", `{"event":{"user_id":"1337"}}`, "Twitch-Eventsub-Message-Id: befa7b53")},
	"typeform": {oneEventChanged("the event", "LtWXD3crgy", "LtWXD3crgz", `{"event_id":"LtWXD3crgy","event_type":"form_response"}`)},
	"vercel":   {oneEventChanged("the event", "uev_1", "uev_2", `{"id":"uev_1","type":"deployment.created","payload":{"deployment":{"id":"dpl_1"}}}`, "x-vercel-signature: a")},
	"whatsapp": lineOnEach("X-Hub-Signature-256: sha256=a", whatsAppEventsThatDiffer),
	"woocommerce": {
		oneEventChanged("the delivery", "5fe8b7", "5fe8b8", `{"id":1,"status":"processing"}`, "X-WC-Webhook-Delivery-ID: 5fe8b7"),
		oneEventChanged("the content, in one second", "processing", "completed", `{"id":1,"status":"processing"}`, "X-WC-Webhook-Delivery-ID: 5fe8b7"),
	},
	"zendesk": {oneEventChanged("the invocation", "8350205582", "8350205583", `{"id":"x"}`, "X-Zendesk-Webhook-Invocation-Id: 8350205582", "X-Zendesk-Webhook-Id: 01F1")},
	"zoom":    {oneEventChanged("the time", "1739923528546", "1739923528547", `{"event":"meeting.started","event_ts":1739923528546,"payload":{"object":{"id":"1"}}}`, "x-zm-signature: v0=a")},
}

const bigCommerceUpdate = `{"scope":"store/order/updated","store_id":"1","data":{"type":"order","id":250},"hash":"dd70c0","created_at":1561479335,"producer":"stores/x"}`

const adyenItem = `{"live":"false","notificationItems":[{"NotificationRequestItem":{"amount":{"value":1130,"currency":"EUR"},"eventCode":"AUTHORISATION","eventDate":"2026-01-02T03:04:05+01:00","pspReference":"7914073381342284","reason":"","success":"true"}}]}`

const eventGridEvents = `[{"id":"2d1781af","topic":"/subscriptions/x","eventType":"Blob"}]`

const (
	structuredMode = "Content-Type: application/cloudevents+json; charset=utf-8"
	batchedMode    = "Content-Type: application/cloudevents-batch+json"
	cloudEvent     = `{"specversion":"1.0","type":"Microsoft.Storage.BlobCreated","source":"/shop/1","id":"A234","data":{}}`
	cloudEvents    = `[{"specversion":"1.0","source":"/shop/1","id":"A1"},{"specversion":"1.0","source":"/shop/1","id":"A234"}]`
)

// In each mode of the HTTP binding: an ID is unique within its source.
var cloudEventsThatDiffer = []twoEvents{
	oneEventChanged("the event", "A234", "A235", `{"n":1}`, "ce-source: /shop/1", "ce-id: A234"),
	oneEventChanged("the source", "/shop/1", "/shop/2", `{"n":1}`, "ce-source: /shop/1", "ce-id: A234"),
	oneEventChanged("the event, structured", "A234", "A235", cloudEvent, structuredMode),
	oneEventChanged("the source, structured", "/shop/1", "/shop/2", cloudEvent, structuredMode),
	oneEventChanged("the event, batched", "A234", "A235", cloudEvents, batchedMode),
	oneEventChanged("the source, batched", "/shop/1", "/shop/2", cloudEvents, batchedMode),
	// Event Grid batches events under the type of a single one.
	oneEventChanged("the event, batched as if single", "A234", "A236", cloudEvents, structuredMode),
}

const (
	groupStatus = `{"object":"whatsapp_business_account","entry":[{"id":"1022","changes":[{"field":"messages","value":{"statuses":[{"id":"wamid.A","status":"read","timestamp":"1749416390","recipient_id":"G1","recipient_type":"group","recipient_participant_id":"15550001"}]}}]}]}`
	aMessage    = `{"object":"whatsapp_business_account","entry":[{"id":"1022","changes":[{"field":"messages","value":{"messages":[{"from":"15550001","id":"wamid.A","type":"text"}]}}]}]}`
)

// The statuses of a message to a group have one message ID, for all participants.
var whatsAppEventsThatDiffer = []twoEvents{
	oneEventChanged("the message", "wamid.A", "wamid.B", aMessage),
	oneEventChanged("the status", `"read"`, `"played"`, groupStatus),
	oneEventChanged("the message of a status", "wamid.A", "wamid.B", groupStatus),
	oneEventChanged("the participant of a group", "15550001", "15550002", groupStatus),
	oneEventChanged("the participant's user ID, who has no number", "US.1", "US.2", strings.Replace(groupStatus, `"recipient_participant_id":"15550001"`, `"recipient_participant_user_id":"US.1"`, 1)),
	oneEventChanged("the time of a status", "1749416390", "1749416391", groupStatus),
	oneEventChanged("a number or a user ID", "recipient_participant_id", "recipient_participant_user_id", groupStatus),
}

var shopifyEventsThatDiffer = []twoEvents{
	oneEventChanged("the event", "98880550", "98880551", `{"id":1}`, "X-Shopify-Event-Id: 98880550", "X-Shopify-Webhook-Id: b54557e4", "X-Shopify-Topic: orders/updated"),
	oneEventChanged("the webhook", "b54557e4", "b54557e5", `{"id":1}`, "X-Shopify-Event-Id: 98880550", "X-Shopify-Webhook-Id: b54557e4", "X-Shopify-Topic: orders/updated"),
	oneEventChanged("the topic", "orders/updated", "orders/paid", `{"id":1}`, "X-Shopify-Event-Id: 98880550", "X-Shopify-Webhook-Id: b54557e4", "X-Shopify-Topic: orders/updated"),
	oneEventChanged("the shop", "a.myshopify.com", "b.myshopify.com", `{"id":1}`, "X-Shopify-Event-Id: 98880550", "X-Shopify-Webhook-Id: b54557e4", "X-Shopify-Shop-Domain: a.myshopify.com"),
	oneEventChanged("the content, with an event ID alone", `"id":1`, `"id":2`, `{"id":1}`, "X-Shopify-Event-Id: 98880550", "X-Shopify-Topic: orders/updated"),
	oneEventChanged("the content, with a webhook ID alone", `"id":1`, `"id":2`, `{"id":1}`, "X-Shopify-Webhook-Id: b54557e4", "X-Shopify-Topic: orders/updated"),
	oneEventChanged("the delivery of the newer Events", "c1", "c2", `{"id":1}`, "Shopify-Webhook-Id: c1", "Shopify-Topic: product"),
}

// Two events of a provider run twice, however little they differ in.
func TestEventsThatDifferBothRun(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	blocks := make(map[string]string)
	names := catalogueNames(t)
	path := func(name string, n int) string { return "/" + name + "/" + string(rune('a'+n)) }
	for _, name := range names {
		if len(eventsOf[name]) == 0 {
			t.Errorf("%s has no two events in the table", name)
		}
		blocks["/"+name+"/*"] = "dedup " + name
	}
	p := start(t, conf{store: "store memory", site: onPaths(up, blocks)})
	for _, name := range names {
		for n, pair := range eventsOf[name] {
			t.Run(name+": "+pair.differIn, func(t *testing.T) {
				wantKeys(t, p, path(name, n), []sent{pair.a}, []sent{pair.b})
			})
		}
		delete(eventsOf, name)
	}
	for name := range eventsOf {
		t.Errorf("%s is not in the catalogue", name)
	}
}
