package delivery

import "time"

// knownByMember are the providers whose delivery ID is one member of the body, or two.
var knownByMember = []Provider{
	{
		Name: "asaas", Title: "Asaas", Verified: true,
		Sources: []Source{inMember("/id")},
		Fact:    "https://docs.asaas.com/changelog/inclus%C3%A3o-de-campo-com-id-do-evento-em-envios-de-webhooks",
	},
	{
		Name: "bigcommerce", Title: "BigCommerce", Verified: true,
		// The hash is one over the data, which names what was changed, and not when.
		Sources: []Source{together(inMember("/scope"), inMember("/producer"), inMember("/hash"), inMember("/created_at"))},
		Fact:    "https://developer.bigcommerce.com/docs/integrations/webhooks",
		Note:    "There is no event ID; its hash is one over the data, which is the same for each update of one order. So scope, store and time are part of the key.",
	},
	{
		Name: "box", Title: "Box", Verified: true,
		// BOX-DELIVERY-ID changes with every retry.
		Sources: []Source{inMember("/id")},
		Fact:    "https://developer.box.com/guides/webhooks/v2/",
	},
	{
		Name: "chargebee", Title: "Chargebee",
		Fact:    "chargebee.com/docs/webhook_settings.html says that deliveries are repeated; that a retry keeps the event's ID is from a secondary source",
		Sources: []Source{inMember("/id")},
		Note:    noteRoute + " It retries for up to three days.",
	},
	{
		Name: "circleci", Title: "CircleCI", Verified: true,
		Sources: []Source{inMember("/id")},
		Fact:    "https://circleci.com/docs/guides/integration/outbound-webhooks/",
	},
	{
		Name: "fourthwall", Title: "Fourthwall", Verified: true,
		// Whether two webhooks get one event under one ID, its page does not say.
		Sources: []Source{together(inMember("/webhookId"), inMember("/id"))},
		Fact:    "https://docs.fourthwall.com/webhooks/webhook-model",
	},
	{
		Name: "gusto", Title: "Gusto", Verified: true,
		// resource_uuid and entity_uuid name what the event is about.
		Sources: []Source{inMember("/uuid")},
		Fact:    "https://docs.gusto.com/embedded-payroll/v2022-09-15/changelog/added-unique-identifier-to-webhook-event-payload",
		Passes:  []Pass{{Pointer: "/verification_token"}},
	},
	{
		Name: "intercom", Title: "Intercom",
		Fact:    "developers.intercom.com documents the notification's ID, and not whether a retry keeps it",
		Sources: []Source{inMember("/id")},
	},
	{
		Name: "mailgun", Title: "Mailgun", Verified: true,
		// The token of /signature may differ from one POST to the next.
		Sources: []Source{together(inMember("/event-data/id"), inMember("/event-data/timestamp"))},
		Fact:    "https://documentation.mailgun.com/docs/mailgun/user-manual/events/event-structure",
		Note:    "An event's ID is unique within a day only, so that the event's time is part of the key.",
	},
	{
		Name: "notion", Title: "Notion", Verified: true,
		Sources: []Source{inMember("/id")},
		Passes:  []Pass{{Pointer: "/verification_token"}},
		Fact:    "https://www.npmjs.com/package/@notionhq/client",
		Note:    "It tries up to eight times.",
	},
	{
		Name: "nylas", Title: "Nylas", Verified: true,
		Sources: []Source{together(inMember("/source"), inMember("/id"))},
		Fact:    "https://developer.nylas.com/docs/cookbook/use-cases/build/handle-duplicate-webhooks/",
		Note:    "Its notifications are shaped like CloudEvents. It tries three times. The challenge of a new webhook is a GET and passes.",
	},
	{
		Name: "paddle", Title: "Paddle", Verified: true,
		// The notification's ID is another one for each destination.
		Sources: []Source{inMember("/event_id")},
		Fact:    "https://developer.paddle.com/webhooks/about/how-webhooks-work",
		Note:    noteRoute + " It retries for three days.",
	},
	{
		Name: "paypal", Title: "PayPal",
		Fact: "docs.paypal.ai documents the event's ID, and not whether a retry keeps it",
		// Whether the transmission ID of the header survives a retry is unknown.
		Sources: []Source{inMember("/id")},
	},
	{
		Name: "sevalla", Title: "Sevalla", Verified: true,
		// event_delivery_id changes with every attempt.
		Sources:   []Source{together(inMember("/webhook_id"), inMember("/event_id"))},
		Signs:     signedBy("svl-signature"),
		Retention: 8 * 24 * time.Hour,
		Fact:      "https://api-docs.sevalla.com/v3/webhook-events",
		Note:      "Its twelve retries take more than seven days, and the retention is longer than that.",
	},
	{
		Name: "slack", Title: "Slack Events API",
		Fact:    "api.slack.com/types/event, read on 2026-11-22, says that event_id is unique, and nothing about retries",
		Sources: []Source{inMember("/event_id")},
		Passes:  []Pass{{Pointer: "/type", Values: []string{"url_verification"}}},
		Note:    "It waits for 3 seconds: answer first and work afterwards, or its retries wait for the first run. In 2025 it sent one message as several events, each with an ID of its own; they are several deliveries here (https://github.com/slackapi/node-slack-sdk/issues/2141).",
	},
	{
		Name: "square", Title: "Square", Verified: true,
		Sources: []Source{inMember("/event_id")},
		Fact:    "https://developer.squareup.com/docs/webhooks/step4manage",
		Note:    "The ID can be null; such a request passes.",
	},
	{
		Name: "stripe", Title: "Stripe", Verified: true,
		Fact:    "https://docs.stripe.com/webhooks",
		Sources: []Source{inMember("/id")},
		Note:    noteRoute + " It retries for 3 days (read on 2026-11-21). Two events about one change have two IDs, and both run.",
	},
	{
		Name: "telegram", Title: "Telegram Bot API", Verified: true,
		Sources: []Source{inScope(inMember("/update_id"), "X-Telegram-Bot-Api-Secret-Token")},
		Fact:    "https://core.telegram.org/bots/api",
		Note:    "Every bot counts for itself: give each a path or a secret token of its own, and leave the path in the scope. Updates are kept for 24 hours.",
	},
	{
		Name: "typeform", Title: "Typeform",
		Fact:    "Typeform's pages document the event's ID, and not whether a retry keeps it",
		Sources: []Source{inMember("/event_id")},
	},
	{
		Name: "vercel", Title: "Vercel",
		Fact:    "Vercel's pages document the event's ID, and not whether a retry keeps it",
		Sources: []Source{inMember("/id")},
	},
}
