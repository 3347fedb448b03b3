package delivery

// ofStandardWebhooks are the signs of every sender that follows Standard Webhooks:
// webhook-id alone is the name of other senders' fields too.
var ofStandardWebhooks = signedBy("webhook-signature", "webhook-timestamp")

// shopifyScope separates deliveries of one event to several subscriptions.
var shopifyScope = []string{"X-Shopify-Topic", "X-Shopify-Shop-Domain"}

// knownByHeader are the providers that send the delivery ID in a header field.
var knownByHeader = []Provider{
	{
		Name: "bitbucket", Title: "Bitbucket Cloud",
		Fact: "support.atlassian.com/bitbucket-cloud/docs/event-payloads, read on 2026-11-22, does not say whether a retry keeps the UUID",
		// X-Hook-UUID names the hook: it is the same in every delivery.
		Sources: []Source{headerSource("X-Request-UUID")},
		Signs:   signedBy("X-Hook-UUID", "X-Event-Key"),
		Note:    "It repeats a delivery twice after a 5xx.",
	},
	{
		Name: "clerk", Title: "Clerk",
		Sources: []Source{headerSource("svix-id")},
		Fact:    "https://clerk.com/docs/webhooks/overview",
	},
	{
		Name: "contentful", Title: "Contentful", Read: firstReading,
		// The page mentions very recent requests with the same key. It does not say whether a
		// later action can have the same key.
		Sources: []Source{inScope(partsSource(headerSource("X-Contentful-Idempotency-Key"), contentSource()), "X-Contentful-Topic", "X-Contentful-Webhook-Name")},
		Fact:    "https://www.contentful.com/developers/changelog/idempotency-key-headers-for-webhook-requests/",
		Note:    "It may reuse an idempotency key, so the key includes a hash of the body.",
	},
	{
		Name: "convoy", Title: "Convoy",
		Sources: []Source{headerSource("X-Convoy-EventDelivery-ID")},
		Fact:    "https://github.com/frain-dev/convoy",
	},
	{
		Name: "forgejo", Title: "Forgejo",
		Sources: []Source{headerSource("X-Gitea-Delivery")},
		Fact:    "https://forgejo.org/docs/latest/user/webhooks/",
		Note:    "A manual replay is a new delivery.",
	},
	{
		Name: "gitea", Title: "Gitea",
		Sources: []Source{headerSource("X-Gitea-Delivery")},
		Fact:    "https://docs.gitea.com/usage/webhooks",
		Note:    "A manual replay is a new delivery.",
	},
	{
		Name: "github", Title: "GitHub",
		// The ID names the event: without the ID of the hook, the delivery to a second hook
		// would be a duplicate of the first.
		Sources: []Source{headerSource("X-GitHub-Delivery", "X-GitHub-Hook-ID")},
		Signs:   Signs{NoneOf: []Sign{{Header: "X-Gitea-Delivery"}, {Header: "X-Gogs-Delivery"}}},
		Fact:    "https://docs.github.com/en/webhooks/webhook-events-and-payloads#delivery-headers",
		Note:    "It does not retry by itself: redeliver what has failed, manually or by its API. A redelivery keeps the ID.",
	},
	{
		Name: "gitlab", Title: "GitLab", Read: firstReading,
		// A webhook that triggers another one passes on its X-Gitlab-Event-UUID. Two hooks
		// with the same address differ in their UUIDs.
		Sources: []Source{
			headerSource("Idempotency-Key", "X-Gitlab-Webhook-UUID"), headerSource("webhook-id", "X-Gitlab-Webhook-UUID"),
			inScope(partsSource(headerSource("X-Gitlab-Event-UUID"), contentSource()), "X-Gitlab-Webhook-UUID"),
		},
		Signs: signedBy("X-Gitlab-Event"),
		Fact:  "https://docs.gitlab.com/user/project/integrations/webhooks/",
		Note:  "A manual retry keeps the ID. Older versions send only X-Gitlab-Event-UUID, which several events can share.",
	},
	{
		Name: "hugging_face", Title: "Hugging Face",
		// All its deliveries have this member, and those of other senders with the field do not.
		Sources: []Source{partsSource(headerSource("Webhook-Id"), memberSource("/webhook/id"))},
		Fact:    "https://huggingface.co/docs/hub/webhooks",
		Note:    "A manual replay keeps the ID.",
	},
	{
		Name: "jira", Title: "Jira Cloud", Read: secondReading,
		// Jira lists a webhook that failed after all retries with one ID, that of this field.
		Sources: []Source{headerSource("X-Atlassian-Webhook-Identifier")},
		Fact:    "https://developer.atlassian.com/cloud/jira/platform/rest/v3/api-group-webhooks/",
		Note:    "The ID is unique within a site: use one path for each site.",
	},
	{
		Name: "linear", Title: "Linear",
		Fact: "linear.app/developers/webhooks, read on 2026-11-22, does not say whether a retry keeps the UUID",
		// The body has the time at which it was sent, so a hash of it is not better.
		Sources: []Source{headerSource("Linear-Delivery")},
		Note:    "It retries three times, the last after about seven hours.",
	},
	{
		Name: "openai", Title: "OpenAI",
		Sources: []Source{headerSource("webhook-id")},
		Signs:   ofStandardWebhooks,
		Fact:    "https://platform.openai.com/docs/guides/webhooks",
	},
	{
		Name: "outpost", Title: "Outpost",
		Sources: []Source{headerSource("X-Outpost-Event-Id")},
		Fact:    "https://github.com/hookdeck/outpost",
	},
	{
		Name: "pagerduty", Title: "PagerDuty", Read: secondReading,
		Sources: []Source{headerSource("X-Webhook-Id")},
		Signs: Signs{AnyOf: []Sign{
			{Header: "X-PagerDuty-Signature"}, {Header: "X-Webhook-Subscription"}, {Header: "User-Agent", Begins: "PagerDuty-Webhook/"},
		}},
		Fact: "https://github.com/PagerDuty/developer-docs/blob/main/docs/webhooks/02-Behavior.md",
		Note: "It drops a delivery after a 4xx other than 429.",
	},
	{
		Name: "pandadoc", Title: "PandaDoc", Read: firstReading,
		Sources: []Source{headerSource("X-PandaDoc-Webhook-Event-Id")},
		Fact:    "https://developers.pandadoc.com/changelog/2026-07-20-webhooks-deduplicate",
		Note:    "A manual retry keeps the ID.",
	},
	{
		Name: "postmark", Title: "Postmark", Read: secondReading,
		// Several opens, clicks and recipients of one message share MessageID and
		// RecordType.
		Sources: []Source{headerSource("X-PM-Webhook-Trace-Id")},
		Fact:    "https://github.com/ActiveCampaign/postmark-skills/blob/1d8f3680d1595d38107ace4eadc7a8aab0169001/postmark-webhooks/references/handler-examples.md",
		Note: "An inbound message has no trace ID: write `mode webhook` and `key content postmark` beside the name. " +
			"It retries for 70 minutes, and drops an event after a 4xx other than 408 and 429.",
	},
	{
		Name: "prolific", Title: "Prolific", Read: firstReading,
		Sources: []Source{headerSource("X-Event-ID")},
		Signs:   signedBy("X-Prolific-Request-Signature", "X-Prolific-Request-Timestamp"),
		Fact:    "https://docs.prolific.com/api-reference/webhooks/idempotency-and-the-x-event-id-header",
		Note:    "It retries for 24 hours.",
	},
	{
		Name: "razorpay", Title: "Razorpay", Read: firstReading,
		Sources: []Source{headerSource("X-Razorpay-Event-Id")},
		Fact:    "https://razorpay.com/docs/payments/payment-gateway/s2s-integration/test-s2s/best-practices/webhooks-and-fetch-apis",
		Note:    "It retries for 24 hours.",
	},
	{
		Name: "replicate", Title: "Replicate",
		Sources: []Source{headerSource("webhook-id")},
		Signs:   ofStandardWebhooks,
		Fact:    "https://replicate.com/docs/topics/webhooks/verify-webhook",
	},
	{
		Name: "resend", Title: "Resend",
		Sources: []Source{headerSource("svix-id")},
		Fact:    "https://resend.com/docs/dashboard/webhooks/introduction",
	},
	{
		Name: "shopify", Title: "Shopify", Read: firstReading,
		// According to one page, the ID of the event marks a duplicate; according to another
		// page, that of the webhook does. The key has both.
		Sources: []Source{
			inScope(partsSource(headerSource("X-Shopify-Event-Id"), headerSource("X-Shopify-Webhook-Id")), shopifyScope...),
			inScope(partsSource(headerSource("X-Shopify-Event-Id"), contentSource()), shopifyScope...),
			inScope(partsSource(headerSource("X-Shopify-Webhook-Id"), contentSource()), shopifyScope...),
			headerSource("Shopify-Webhook-Id", "Shopify-Topic", "Shopify-Shop-Domain"),
		},
		Fact: "https://shopify.dev/docs/apps/build/webhooks/verify-deliveries",
		Note: "Its pages contradict each other on which ID marks a duplicate, so the key has both. Its newer Events send Shopify-Webhook-Id. It tries eight times within four hours.",
	},
	{
		Name: "sns", Title: "Amazon SNS",
		// The ID names the published message: each subscription to the topic gets it, and two
		// subscriptions can have URLs that differ only in the query.
		Sources: []Source{headerSource("x-amz-sns-message-id", "x-amz-sns-subscription-arn")},
		Passes: []Pass{{
			Header: "x-amz-sns-message-type",
			Values: []string{"SubscriptionConfirmation", "UnsubscribeConfirmation"},
		}},
		Fact: "https://docs.aws.amazon.com/sns/latest/dg/http-header.html",
	},
	{
		Name: "standard_webhooks", Title: "Standard Webhooks",
		Sources: []Source{headerSource("webhook-id")},
		Signs:   ofStandardWebhooks,
		Fact:    "https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md",
		Note:    "For other senders that follow the specification, such as Codat. Together with gitlab, name gitlab first.",
	},
	{
		Name: "svix", Title: "Svix",
		Sources: []Source{headerSource("svix-id")},
		Fact:    "https://docs.svix.com/receiving/verifying-payloads/how-manual",
		Note:    "For other senders that use Svix.",
	},
	{
		Name: "twilio", Title: "Twilio", Read: firstReading,
		// All events about a message or call have its SID.
		Sources: []Source{headerSource("I-Twilio-Idempotency-Token")},
		Fact:    "https://github.com/twilio/twilio-agent-connect-python",
		Note:    "A duplicate needs the TwiML of the first answer: leave on_duplicate at replay. A webhook set to GET passes, except under `verify`: choose POST.",
	},
	{
		Name: "twitch", Title: "Twitch EventSub", Read: firstReading,
		Sources: []Source{headerSource("Twitch-Eventsub-Message-Id")},
		Passes:  []Pass{{Header: "Twitch-Eventsub-Message-Type", Values: []string{"webhook_callback_verification"}, SignedPointer: "/challenge"}},
		Fact:    "https://dev.twitch.tv/docs/eventsub/",
	},
	{
		Name: "zendesk", Title: "Zendesk", Read: secondReading,
		Fact: "https://developer.zendesk.com/documentation/webhooks/anatomy-of-a-webhook-request/",
		// That page says that the field has the ID of the invocation; the reference of
		// the API, that an invocation has one attempt or several.
		// X-Zendesk-Webhook-Id names the hook: it is the same in every delivery.
		Sources: []Source{headerSource("X-Zendesk-Webhook-Invocation-Id")},
		Note:    "For triggers set to PUT or DELETE write `methods POST PATCH PUT DELETE`. Set to GET, they pass. Under `verify`, all methods are deduplicated.",
	},
}
