package delivery

import "time"

// knownByMember are the providers whose delivery ID is one member of the body, or two.
var knownByMember = []Provider{
	{
		Name: "asaas", Title: "Asaas", Read: firstReading,
		Sources: []Source{partsSource(memberSource("/id"), memberSource("/event"))},
		Fact:    "https://docs.asaas.com/changelog/inclus%C3%A3o-de-campo-com-id-do-evento-em-envios-de-webhooks",
	},
	{
		Name: "bigcommerce", Title: "BigCommerce",
		// The hash is over the data, which names the changed object, but not the time.
		Sources: []Source{partsSource(memberSource("/hash"), memberSource("/scope"), memberSource("/producer"), memberSource("/created_at"))},
		Fact:    "https://developer.bigcommerce.com/docs/integrations/webhooks",
		Note:    "Its hash is the same for each update of one order, so the key includes scope, store and time.",
	},
	{
		Name: "box", Title: "Box", Read: firstReading,
		// BOX-DELIVERY-ID changes with every retry.
		Sources: []Source{memberSource("/id")},
		Signs:   signedBy("BOX-DELIVERY-ID"),
		Fact:    "https://developer.box.com/guides/webhooks/v2/",
	},
	{
		Name: "chargebee", Title: "Chargebee", ChangesBody: true, Read: secondReading,
		// webhook_status changes with an attempt.
		Sources: []Source{partsSource(memberSource("/id"), memberSource("/event_type"))},
		Fact:    "https://github.com/chargebee/ai/blob/459f7df974cdb053b9199786d753de1a769289e6/chargebee-integration/references/webhooks.md",
		Note:    noteRoute + " It retries for up to three days.",
	},
	{
		Name: "circleci", Title: "CircleCI",
		Sources: []Source{memberSource("/id")},
		Signs:   signedBy("Circleci-Event-Type"),
		Fact:    "https://circleci.com/docs/guides/integration/outbound-webhooks/",
	},
	{
		Name: "fourthwall", Title: "Fourthwall", Read: firstReading,
		// Its page does not say whether two webhooks get one event under one ID.
		Sources: []Source{partsSource(memberSource("/id"), memberSource("/webhookId"))},
		Signs:   signedBy("X-Fourthwall-Hmac-SHA256", "X-Fourthwall-Hmac-Apps-SHA256"),
		Fact:    "https://docs.fourthwall.com/webhooks/webhook-model",
	},
	{
		Name: "gusto", Title: "Gusto", Read: firstReading,
		// resource_uuid and entity_uuid name the subject of the event.
		Sources: []Source{memberSource("/uuid")},
		Signs:   signedBy("X-Gusto-Signature"),
		Fact:    "https://docs.gusto.com/embedded-payroll/v2022-09-15/changelog/added-unique-identifier-to-webhook-event-payload",
		Passes:  []Pass{{Pointer: "/verification_token", Unsigned: true}},
	},
	{
		Name: "intercom", Title: "Intercom", ChangesBody: true, Read: secondReading,
		// delivery_attempts counts the attempts at the notification that has this ID.
		Sources: []Source{memberSource("/id")},
		Signs:   Signs{AnyOf: []Sign{{Header: "X-Hub-Signature"}}, NoneOf: codeHosts},
		Fact:    "https://developers.intercom.com/intercom-api-reference/reference/webhook-models#webhook-notification-object",
		Note:    "It retries after a minute.",
	},
	{
		Name: "mailgun", Title: "Mailgun", ChangesBody: true, Read: firstReading,
		// The token of /signature may differ from one POST to the next.
		Sources: []Source{partsSource(memberSource("/event-data/id"), memberSource("/event-data/timestamp"))},
		Fact:    "https://documentation.mailgun.com/docs/mailgun/user-manual/events/event-structure",
		Note:    "The ID is unique only within a day, so the key includes the time of the event.",
	},
	{
		Name: "notion", Title: "Notion", ChangesBody: true, Read: firstReading,
		Sources: []Source{memberSource("/id")},
		Signs:   signedBy("X-Notion-Signature"),
		Passes:  []Pass{{Pointer: "/verification_token", Unsigned: true}},
		Fact:    "https://www.npmjs.com/package/@notionhq/client",
		Note:    "It tries up to eight times.",
	},
	{
		Name: "nylas", Title: "Nylas", ChangesBody: true, Read: firstReading,
		Sources: []Source{partsSource(memberSource("/id"), memberSource("/source"))},
		Signs:   signedBy("X-Nylas-Signature"),
		Fact:    "https://developer.nylas.com/docs/cookbook/use-cases/build/handle-duplicate-webhooks/",
		Note:    "It tries three times.",
	},
	{
		Name: "paddle", Title: "Paddle", Read: firstReading,
		// The notification's ID differs per destination.
		Sources: []Source{memberSource("/event_id")},
		Signs:   signedBy("Paddle-Signature"),
		Fact:    "https://developer.paddle.com/webhooks/about/how-webhooks-work",
		Note:    noteRoute + " It retries for three days.",
	},
	{
		Name: "paypal", Title: "PayPal", Read: secondReading,
		// The ID in the header is that of one transmission.
		Sources: []Source{memberSource("/id")},
		Signs:   signedBy("PAYPAL-TRANSMISSION-ID"),
		Fact:    "https://github.com/paypal/paypal-rest-api-specifications/blob/main/openapi/notifications_webhooks_v1.json",
		Note:    noteRoute + " A manual redelivery keeps the ID.",
	},
	{
		Name: "sevalla", Title: "Sevalla", ChangesBody: true, Read: firstReading,
		// event_delivery_id changes with every attempt.
		Sources:   []Source{partsSource(memberSource("/event_id"), memberSource("/webhook_id"))},
		Signs:     signedBy("svl-signature"),
		Retention: 8 * 24 * time.Hour,
		Fact:      "https://api-docs.sevalla.com/v3/webhook-events",
		Note:      "Its twelve retries take more than seven days.",
	},
	{
		Name: "slack", Title: "Slack Events API", Read: secondReading,
		// event_id names one event, and retries are of that event.
		Sources: []Source{memberSource("/event_id")},
		Signs:   signedBy("X-Slack-Signature"),
		Fact:    "https://docs.slack.dev/apis/events-api/",
		Passes:  []Pass{{Pointer: "/type", Values: []string{"url_verification"}, Unsigned: true}},
		Note:    "It waits for 3 seconds: respond first and work afterwards. It retries at once, after one minute and after five, and with Delayed Events each hour for a day.",
	},
	{
		Name: "square", Title: "Square", Read: firstReading,
		Sources: []Source{memberSource("/event_id")},
		Signs:   signedBy("x-square-hmacsha256-signature"),
		Fact:    "https://developer.squareup.com/docs/webhooks/step4manage",
		Note:    "The ID can be null; such a request passes.",
	},
	{
		Name: "stripe", Title: "Stripe", Read: firstReading,
		Fact:    "https://docs.stripe.com/webhooks",
		Sources: []Source{memberSource("/id")},
		Signs:   signedBy("Stripe-Signature"),
		// The events of a test endpoint all have one ID.
		Passes: []Pass{{Pointer: "/id", Suffix: "_00000000000000"}},
		Note:   noteRoute + " It retries for 3 days. Two events about one change have two IDs, and both run.",
	},
	{
		Name: "telegram", Title: "Telegram Bot API", Read: firstReading,
		Sources: []Source{inScope(memberSource("/update_id"), "X-Telegram-Bot-Api-Secret-Token")},
		Signs:   signedBy("X-Telegram-Bot-Api-Secret-Token"),
		Fact:    "https://core.telegram.org/bots/api",
		Note:    "Give each bot a path or a secret token of its own. Without a `secret_token` at setWebhook, write `mode webhook` and `key json /update_id telegram` in place of the name.",
	},
	{
		Name: "typeform", Title: "Typeform",
		Fact:    "Typeform's pages, read on 2026-11-22, do not say whether a retry keeps the ID",
		Sources: []Source{partsSource(memberSource("/event_id"), memberSource("/event_type"))},
	},
	{
		Name: "vercel", Title: "Vercel",
		Fact:    "Vercel's pages, read on 2026-11-21, do not say whether a retry keeps the ID",
		Sources: []Source{memberSource("/id")},
		Signs:   signedBy("x-vercel-signature"),
	},
}
