package delivery

import "time"

const factCloudEvents = "https://github.com/cloudevents/spec/blob/main/cloudevents/bindings/http-protocol-binding.md"

// cloudEvent names an event of CloudEvents. Two sources can use the same ID, so the
// source is part of it.
func cloudEvent() Source {
	return together(inHeader("ce-source"), inHeader("ce-id"))
}

// whatsAppChange is one of the changes that WhatsApp sends. All statuses of a message
// have the ID of the message, so the status is part of the ID.
var whatsAppChange = List{
	Array: "/changes",
	Lists: []List{
		{Array: "/value/messages", Members: []string{"/id"}},
		{Array: "/value/statuses", Members: []string{"/id", "/status"}},
	},
}

// knownBySeveral are the providers that need several values for one delivery
// ID, and those that send several events in one request.
var knownBySeveral = []Provider{
	{
		Name: "adyen", Title: "Adyen", Verified: true,
		Sources: []Source{ofEach(List{
			Array: "/notificationItems",
			Members: []string{
				"/NotificationRequestItem/eventCode",
				"/NotificationRequestItem/pspReference",
				"/NotificationRequestItem/success",
			},
		})},
		Retention: 30 * 24 * time.Hour,
		Fact:      "https://docs.adyen.com/development-resources/webhooks/handle-webhook-events/",
		Note:      "There is no event ID; event code, PSP reference and success name an event. It retries for up to 30 days, and so long is the retention. " + noteBatch,
	},
	{
		Name: "cloudevents", Title: "CloudEvents", Verified: true,
		Sources: []Source{cloudEvent()},
		Fact:    factCloudEvents,
		Note:    "In the binary mode of the HTTP binding. For the structured mode add `key parts cloudevents` with `json /source` and `json /id`.",
	},
	{
		Name: "eventarc", Title: "Google Eventarc", Verified: true,
		Sources: []Source{cloudEvent()},
		Fact:    "https://cloud.google.com/eventarc/docs/cloudevents",
	},
	{
		Name: "eventgrid", Title: "Azure Event Grid", Verified: true,
		Sources: []Source{
			ofEach(List{Array: "", Members: []string{"/id", "/topic"}}),
			cloudEvent(),
		},
		Passes: []Pass{{Header: "aeg-event-type", Values: []string{"SubscriptionValidation"}}},
		Fact:   "https://learn.microsoft.com/en-us/azure/event-grid/delivery-and-retry",
		Note:   "In its own schema or as CloudEvents. " + noteBatch,
	},
	{
		Name: "knative", Title: "Knative Eventing", Verified: true,
		Sources: []Source{cloudEvent()},
		Fact:    "https://knative.dev/docs/eventing/event-delivery/",
		Note:    "The body of an answer is an event too: a duplicate's sender gets that of the first run once more, with the same ID.",
	},
	{
		Name: "meta", Title: "Meta (WhatsApp, Messenger, Instagram)", Fact: secondarySource,
		Sources: []Source{ofEach(List{
			Array: "/entry",
			Lists: []List{whatsAppChange, {Array: "/messaging", Members: []string{"/message/mid", "/timestamp"}}},
		})},
		Note: "Messages, and the statuses of WhatsApp; what has no ID, such as a receipt or another field's change, passes. " + noteBatch,
	},
	{
		Name: "okta", Title: "Okta", Verified: true,
		Sources: []Source{ofEach(List{Array: "/data/events", Members: []string{"/uuid"}})},
		Fact:    "https://developer.okta.com/docs/concepts/event-hooks/",
		Note:    "The verification of a new hook is a GET and passes. " + noteBatch,
	},
	{
		Name: "pubsub", Title: "Google Cloud Pub/Sub", Fact: generalKnowledge,
		Sources: []Source{together(inMember("/subscription"), inMember("/message/messageId"))},
		Note:    "For push subscriptions with the wrapped payload.",
	},
	{
		Name: "sendgrid", Title: "Twilio SendGrid", Fact: secondarySource,
		Sources: []Source{ofEach(List{Array: "", Members: []string{"/sg_event_id"}})},
		Note:    noteBatch,
	},
	{
		Name: "whatsapp", Title: "WhatsApp Business Platform", Fact: secondarySource,
		Sources: []Source{ofEach(List{Array: "/entry", Lists: []List{whatsAppChange}})},
		Note:    "Messages and statuses; a change of another field passes. " + noteBatch,
	},
	{
		Name: "woocommerce", Title: "WooCommerce", Verified: true,
		// Two events in one second have the same delivery ID.
		Sources: []Source{together(inHeader("X-WC-Webhook-Delivery-ID"), inContent())},
		Fact:    "https://github.com/woocommerce/woocommerce",
		Note:    "Two events within one second share the delivery ID, so that the key is made of it and a hash of the body.",
	},
}
