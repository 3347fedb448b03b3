package delivery

// knownByHeader are the providers that send the delivery ID in a header field.
var knownByHeader = []Provider{
	{
		Name: "bitbucket", Title: "Bitbucket Cloud", Fact: generalKnowledge,
		// X-Hook-UUID names the hook: it is the same in every delivery.
		Sources: []Source{inHeader("X-Request-UUID")},
	},
	{
		Name: "clerk", Title: "Clerk", Verified: true,
		Sources: []Source{inHeader("svix-id")},
		Fact:    "https://clerk.com/docs/webhooks/overview",
	},
	{
		Name: "convoy", Title: "Convoy", Verified: true,
		Sources: []Source{inHeader("X-Convoy-EventDelivery-ID")},
		Fact:    "https://github.com/frain-dev/convoy",
	},
	{
		Name: "forgejo", Title: "Forgejo", Verified: true,
		Sources: []Source{inHeader("X-Gitea-Delivery")},
		Fact:    "https://forgejo.org/docs/latest/user/webhooks/",
		Note:    "It sends the same ID as X-GitHub-Delivery too: on one handler with github, name forgejo first. A replay by hand is a new delivery.",
	},
	{
		Name: "gitea", Title: "Gitea", Verified: true,
		Sources: []Source{inHeader("X-Gitea-Delivery")},
		Fact:    "https://docs.gitea.com/usage/webhooks",
		Note:    "It sends the same ID as X-GitHub-Delivery too: on one handler with github, name gitea first. A replay by hand is a new delivery.",
	},
	{
		Name: "github", Title: "GitHub", Verified: true,
		// The ID names the event: without the hook's own, the second hook's
		// delivery would be taken for a duplicate of the first.
		Sources: []Source{inHeader("X-GitHub-Delivery", "X-GitHub-Hook-ID")},
		Fact:    "https://docs.github.com/en/webhooks/webhook-events-and-payloads#delivery-headers",
		Note:    "A redelivery by hand keeps the ID: release its key first to have it run again.",
	},
	{
		Name: "gitlab", Title: "GitLab", Verified: true,
		Sources: []Source{inHeader("Idempotency-Key"), inHeader("webhook-id"), inHeader("X-Gitlab-Event-UUID")},
		Fact:    "https://docs.gitlab.com/user/project/integrations/webhooks/",
		Note:    "Idempotency-Key and webhook-id are the same ID; older versions send X-Gitlab-Event-UUID alone. A request sent again by hand keeps it.",
	},
	{
		Name: "hugging_face", Title: "Hugging Face", Verified: true,
		Sources: []Source{inHeader("Webhook-Id")},
		Fact:    "https://huggingface.co/docs/hub/webhooks",
		Note:    "A replay by hand keeps the ID: release its key first to have it run again.",
	},
	{
		Name: "jira", Title: "Jira Cloud", Fact: secondarySource,
		Sources: []Source{inHeader("X-Atlassian-Webhook-Identifier")},
	},
	{
		Name: "linear", Title: "Linear", Fact: secondarySource,
		Sources: []Source{inHeader("Linear-Delivery")},
	},
	{
		Name: "openai", Title: "OpenAI", Verified: true,
		Sources: []Source{inHeader("webhook-id")},
		Fact:    "https://platform.openai.com/docs/guides/webhooks",
	},
	{
		Name: "outpost", Title: "Outpost", Verified: true,
		Sources: []Source{inHeader("X-Outpost-Event-Id")},
		Fact:    "https://github.com/hookdeck/outpost",
	},
	{
		Name: "pagerduty", Title: "PagerDuty", Verified: true,
		Sources: []Source{inHeader("X-Webhook-Id")},
		Fact:    "https://developer.pagerduty.com/docs/webhooks-overview",
		Note:    "It drops a delivery that is answered with 4xx other than 429.",
	},
	{
		Name: "razorpay", Title: "Razorpay", Fact: secondarySource,
		Sources: []Source{inHeader("X-Razorpay-Event-Id")},
	},
	{
		Name: "replicate", Title: "Replicate", Verified: true,
		Sources: []Source{inHeader("webhook-id")},
		Fact:    "https://replicate.com/docs/topics/webhooks/verify-webhook",
	},
	{
		Name: "resend", Title: "Resend", Verified: true,
		Sources: []Source{inHeader("svix-id")},
		Fact:    "https://resend.com/docs/dashboard/webhooks/introduction",
	},
	{
		Name: "sentry", Title: "Sentry", Fact: generalKnowledge,
		Sources: []Source{inHeader("Request-ID")},
	},
	{
		Name: "shopify", Title: "Shopify", Verified: true,
		// One event goes to several subscriptions with the same event ID.
		Sources: []Source{
			inHeader("X-Shopify-Event-Id", "X-Shopify-Topic", "X-Shopify-Shop-Domain"),
			inHeader("X-Shopify-Webhook-Id", "X-Shopify-Topic", "X-Shopify-Shop-Domain"),
		},
		Fact: "https://shopify.dev/docs/apps/build/webhooks/best-practices",
	},
	{
		Name: "sns", Title: "Amazon SNS", Verified: true,
		Sources: []Source{inHeader("x-amz-sns-message-id")},
		Passes: []Pass{{
			Header: "x-amz-sns-message-type",
			Values: []string{"SubscriptionConfirmation", "UnsubscribeConfirmation"},
		}},
		Fact: "https://docs.aws.amazon.com/sns/latest/dg/http-header.html",
	},
	{
		Name: "standard_webhooks", Title: "Standard Webhooks", Verified: true,
		Sources: []Source{inHeader("webhook-id")},
		Fact:    "https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md",
		Note:    "For every sender that follows the specification and has no name of its own here.",
	},
	{
		Name: "svix", Title: "Svix", Verified: true,
		Sources: []Source{inHeader("svix-id")},
		Fact:    "https://docs.svix.com/receiving/verifying-payloads/how-manual",
		Note:    "For every sender that uses Svix and has no name of its own here.",
	},
	{
		Name: "twilio", Title: "Twilio", Fact: secondarySource,
		// A message's or call's SID is that of all events about it.
		Sources: []Source{inHeader("I-Twilio-Idempotency-Token")},
		Note:    "A duplicate needs the TwiML of the first answer: leave duplicate at replay, and max_response_body large enough.",
	},
	{
		Name: "twitch", Title: "Twitch EventSub", Fact: secondarySource,
		Sources: []Source{inHeader("Twitch-Eventsub-Message-Id")},
		Passes:  []Pass{{Header: "Twitch-Eventsub-Message-Type", Values: []string{"webhook_callback_verification"}}},
	},
	{
		Name: "zendesk", Title: "Zendesk", Fact: secondarySource,
		// X-Zendesk-Webhook-Id names the hook: it is the same in every delivery.
		Sources: []Source{inHeader("X-Zendesk-Webhook-Invocation-Id")},
	},
}
