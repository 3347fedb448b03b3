package delivery

import "time"

const (
	factCloudEvents = "https://github.com/cloudevents/spec/blob/main/cloudevents/bindings/http-protocol-binding.md"
	factWhatsApp    = "https://developers.facebook.com/documentation/business-messaging/whatsapp/webhooks/create-webhook-endpoint"
	factMeta        = "no page found on 2026-11-22 says what identifies an event of Messenger or Instagram; for WhatsApp alone, one does"
)

// ofMeta are the signs of Meta's senders. GitHub, and those that imitate it, sign in the same
// field.
var ofMeta = Signs{AnyOf: []Sign{{Header: "X-Hub-Signature-256"}}, NoneOf: codeHosts}

// ofCloudEvents are the sources of a sender of CloudEvents, in the three modes of the
// HTTP binding. Two event sources can use the same ID, so the source is part of it.
func ofCloudEvents() []Source {
	structured := partsSource(memberSource("/id"), memberSource("/source"))
	batched := batchSource(List{Array: "", Members: []string{"/id", "/source"}})
	// The binding distinguishes the modes by this type, followed by + or -batch+.
	structured.Signs = Signs{AnyOf: []Sign{{Header: "Content-Type", Begins: "application/cloudevents"}}}
	batched.Signs = structured.Signs
	return []Source{partsSource(headerSource("ce-id"), headerSource("ce-source")), structured, batched}
}

// ofEventGridAlone is the field that Event Grid sends in each of its schemas.
var ofEventGridAlone = Signs{AllOf: []Sign{{Header: "aeg-event-type"}}}

// ofEventGrid are the sources of Event Grid's own schema and of CloudEvents. Two event
// subscriptions can lead to one address, and each delivers the event.
func ofEventGrid() []Source {
	sources := append([]Source{batchSource(List{Array: "", Members: []string{"/id", "/topic"}})}, ofCloudEvents()...)
	for i, s := range sources {
		s.Signs.AllOf = ofEventGridAlone.AllOf
		sources[i] = inScope(s, "aeg-subscription-name")
	}
	return sources
}

// whatsAppChange is one of the changes that WhatsApp sends. All statuses of a message
// have the ID of the message, and those of a message to a group have one time and
// another participant each: a phone number or, where there is none, a user ID.
var whatsAppChange = List{
	Array: "/changes",
	Lists: []List{
		{Array: "/value/messages", Members: []string{"/id"}},
		{
			Array:    "/value/statuses",
			Members:  []string{"/id", "/status", "/timestamp"},
			Optional: []string{"/recipient_participant_id", "/recipient_participant_user_id"},
		},
	},
}

// whatsAppRetention is longer than Meta retries.
const whatsAppRetention = 8 * 24 * time.Hour

// knownBySeveral are the providers that need several values for one delivery
// ID, and those that send several events in one request.
var knownBySeveral = []Provider{
	{
		Name: "adyen", Title: "Adyen", Read: firstReading,
		// A corrected item may differ in any member, and a retry repeats the item as it is.
		// A JSON webhook carries one item.
		Sources: []Source{partsSource(
			memberSource("/notificationItems/0/NotificationRequestItem/pspReference"),
			memberSource("/notificationItems/0/NotificationRequestItem/eventCode"),
			contentSource(),
		)},
		Retention: 30 * 24 * time.Hour,
		Fact:      "https://docs.adyen.com/development-resources/webhooks/handle-webhook-events/",
		Note:      "There is no event ID. An event that is sent again with a later date or other details runs: Adyen wants the latest to be used. It retries for up to 30 days.",
	},
	{
		Name: "cloudevents", Title: "CloudEvents",
		Sources: ofCloudEvents(),
		Fact:    factCloudEvents,
		Note:    "In each HTTP mode: " + noteCloudEvents,
	},
	{
		Name: "eventarc", Title: "Google Eventarc",
		Sources: ofCloudEvents(),
		Fact:    "https://cloud.google.com/eventarc/docs/cloudevents",
		Note:    "In each HTTP mode: " + noteCloudEvents,
	},
	{
		Name: "eventgrid", Title: "Azure Event Grid",
		Sources: ofEventGrid(),
		Signs:   ofEventGridAlone,
		Passes:  []Pass{{Header: "aeg-event-type", Values: []string{"SubscriptionValidation"}}},
		Fact:    "https://learn.microsoft.com/en-us/azure/event-grid/delivery-and-retry",
		Note:    "In its own schema, and as CloudEvents: " + noteCloudEvents + " Together with cloudevents, name eventgrid first.",
	},
	{
		Name: "knative", Title: "Knative Eventing",
		Sources: ofCloudEvents(),
		Fact:    "https://knative.dev/docs/eventing/event-delivery/",
		Note:    "The body of a response is an event, too: a duplicate gets that of the first run again. In each HTTP mode: " + noteCloudEvents,
	},
	{
		Name: "line", Title: "LINE Messaging API", Read: firstReading,
		// deliveryContext changes with a redelivery.
		Sources: []Source{batchSource(List{Array: "/events", Members: []string{"/webhookEventId"}})},
		Signs:   signedBy("X-Line-Signature"),
		Fact:    "https://github.com/line/line-openapi/blob/main/webhook.yml",
		Passes:  []Pass{{Pointer: "/events", Empty: true, Unsigned: true}},
	},
	{
		Name: "meta", Title: "Meta (WhatsApp, Messenger, Instagram)", Fact: factMeta,
		Sources: []Source{batchSource(List{
			Array: "/entry",
			Lists: []List{whatsAppChange, {Array: "/messaging", Members: []string{"/message/mid", "/timestamp"}}},
		})},
		Signs:     ofMeta,
		Retention: whatsAppRetention,
		Note:      "Requests without an ID, such as receipts, pass. " + noteMeta,
	},
	{
		Name: "okta", Title: "Okta", Read: firstReading,
		Sources: []Source{batchSource(List{Array: "/data/events", Members: []string{"/uuid"}})},
		Fact:    "https://developer.okta.com/docs/concepts/event-hooks/",
	},
	{
		Name: "pubsub", Title: "Google Cloud Pub/Sub", ChangesBody: true, Read: firstReading,
		Sources: []Source{partsSource(memberSource("/message/messageId"), memberSource("/subscription"))},
		Fact:    "https://cloud.google.com/python/docs/reference/pubsub/1.5.0/google.cloud.pubsub_v1.types.PublishResponse",
		Note:    "For push subscriptions with the wrapped payload.",
	},
	{
		Name: "sendgrid", Title: "Twilio SendGrid", Read: firstReading,
		Sources: []Source{batchSource(List{Array: "", Members: []string{"/sg_event_id"}})},
		Fact:    "https://docs.sendgrid.com/for-developers/tracking-events/troubleshooting",
		Note:    "A request with an event without the ID passes. It retries for 24 hours.",
	},
	{
		Name: "whatsapp", Title: "WhatsApp Business Platform", Read: secondReading,
		// According to the page, Meta repeats a request for seven days, and the service must
		// drop duplicates. The IDs are those of messages, not of attempts.
		Fact:      factWhatsApp,
		Sources:   []Source{batchSource(List{Array: "/entry", Lists: []List{whatsAppChange}})},
		Signs:     ofMeta,
		Retention: whatsAppRetention,
		Note:      "Changes other than messages and statuses pass. " + noteMeta,
	},
	{
		Name: "woocommerce", Title: "WooCommerce",
		// Two events in one second have the same delivery ID.
		Sources: []Source{partsSource(headerSource("X-WC-Webhook-Delivery-ID"), contentSource())},
		Fact:    "https://github.com/woocommerce/woocommerce",
		Note:    "Two events within one second share the ID, so the key includes a hash of the body.",
	},
}
