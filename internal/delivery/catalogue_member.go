package delivery

// knownByMember are the providers whose delivery ID is one member of the body.
var knownByMember = []Provider{
	{
		Name: "bigcommerce", Title: "BigCommerce", Verified: true,
		Sources: []Source{inMember("/hash")},
		Fact:    "https://developer.bigcommerce.com/docs/integrations/webhooks",
	},
	{
		Name: "box", Title: "Box", Verified: true,
		// BOX-DELIVERY-ID changes with every retry.
		Sources: []Source{inMember("/id")},
		Fact:    "https://developer.box.com/guides/webhooks/v2/",
	},
	{
		Name: "circleci", Title: "CircleCI", Verified: true,
		Sources: []Source{inMember("/id")},
		Fact:    "https://circleci.com/docs/guides/integration/outbound-webhooks/",
	},
	{
		Name: "intercom", Title: "Intercom", Fact: secondarySource,
		Sources: []Source{inMember("/id")},
	},
	{
		Name: "mailgun", Title: "Mailgun", Fact: generalKnowledge,
		// The token of /signature may differ from one POST to the next.
		Sources: []Source{inMember("/event-data/id")},
	},
	{
		Name: "notion", Title: "Notion", Fact: secondarySource,
		Sources: []Source{inMember("/id")},
		Passes:  []Pass{{Pointer: "/verification_token"}},
	},
	{
		Name: "paddle", Title: "Paddle", Fact: secondarySource,
		// The notification's ID is another one for each destination.
		Sources: []Source{inMember("/event_id")},
		Note:    noteRoute,
	},
	{
		Name: "paypal", Title: "PayPal", Fact: generalKnowledge,
		// Whether the transmission ID of the header survives a retry is unknown.
		Sources: []Source{inMember("/id")},
	},
	{
		Name: "slack", Title: "Slack Events API",
		Fact:    "api.slack.com/types/event, read on 2026-11-22, says that event_id is unique, and nothing about retries",
		Sources: []Source{inMember("/event_id")},
		Passes:  []Pass{{Pointer: "/type", Values: []string{"url_verification"}}},
		Note:    "It waits for 3 seconds: answer first and work afterwards, or its retries wait for the first run. In 2025 it sent one message as several events, each with an ID of its own; they are several deliveries here (https://github.com/slackapi/node-slack-sdk/issues/2141).",
	},
	{
		Name: "square", Title: "Square", Fact: secondarySource,
		Sources: []Source{inMember("/event_id")},
	},
	{
		Name: "stripe", Title: "Stripe", Verified: true,
		Fact:    "https://docs.stripe.com/webhooks",
		Sources: []Source{inMember("/id")},
		Note:    noteRoute + " It retries for 3 days (read on 2026-11-21). Two events about one change have two IDs, and both run.",
	},
	{
		Name: "telegram", Title: "Telegram Bot API", Fact: secondarySource,
		Sources: []Source{inMember("/update_id")},
		Note:    "Every bot counts for itself: give each a path of its own, and leave the path in the scope.",
	},
	{
		Name: "typeform", Title: "Typeform", Fact: generalKnowledge,
		Sources: []Source{inMember("/event_id")},
	},
	{
		Name: "vercel", Title: "Vercel", Fact: secondarySource,
		Sources: []Source{inMember("/id")},
	},
}
