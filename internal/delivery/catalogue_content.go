package delivery

import "time"

// knownByContent are the providers that send no delivery ID at all, or one that changes
// with each attempt.
var knownByContent = []Provider{
	{
		Name: "asana", Title: "Asana",
		Fact:    "developers.asana.com/docs/webhooks-guide, read on 2026-11-22, does not say what a retry carries",
		Sources: []Source{contentSource()},
		Signs:   signedBy("X-Hook-Signature"),
		Passes:  []Pass{{Header: "X-Hook-Secret", Unsigned: true}, {Pointer: "/events", Empty: true}},
		Note:    "It retries for 24 hours.",
	},
	{
		Name: "discord", Title: "Discord webhook events", Read: firstReading,
		Sources: []Source{contentSource()},
		Signs:   signedBy("X-Signature-Ed25519"),
		Passes:  []Pass{{Pointer: "/type", Values: []string{"0"}}},
		Fact:    "https://docs.discord.com/developers/events/webhook-events",
		Note:    "It has the event's time in it.",
	},
	{
		Name: "dropbox", Title: "Dropbox", Read: firstReading,
		Sources:   []Source{contentSource()},
		Signs:     signedBy("X-Dropbox-Signature"),
		Retention: 10 * time.Minute,
		Fact:      "https://www.dropbox.com/developers/reference/webhooks",
		Note:      "It retries for about ten minutes. " + noteRepeats,
	},
	{
		Name: "lemon_squeezy", Title: "Lemon Squeezy",
		Fact:    "general knowledge; no page or code of Lemon Squeezy was found on 2026-11-22 that says what a retry carries",
		Sources: []Source{contentSource()},
		// Other senders use X-Signature too.
		Signs: Signs{AllOf: []Sign{{Header: "X-Signature"}, {Header: "X-Event-Name"}}},
		Note:  "Bodies have a member /meta/webhook_id: if it changes with a retry, the retry runs.",
	},
	{
		Name: "plaid", Title: "Plaid", Read: firstReading,
		Sources: []Source{contentSource()},
		Signs:   signedBy("Plaid-Verification"),
		// 30 s, 2 min and 8 min between the first four attempts.
		Retention: 11 * time.Minute,
		Fact:      "https://plaid.com/docs/api/webhooks",
		Note:      "It retries for 24 hours; the retention covers the first three retries, because bodies repeat within a day. " + noteRepeats,
	},
	{
		Name: "sentry", Title: "Sentry", Read: firstReading,
		// Request-ID changes with each attempt.
		Sources:   []Source{contentSource()},
		Signs:     signedBy("Sentry-Hook-Resource"),
		Retention: 20 * time.Minute,
		Fact:      "https://github.com/getsentry/sentry/blob/master/src/sentry/sentry_apps/tasks/sentry_apps.py",
		Note: "Request-ID changes with each attempt; the key is a hash of the body. It retries three times, five minutes apart. " +
			"Equal changes of one issue without an event in between count as one.",
	},
	{
		Name: "zoom", Title: "Zoom",
		Fact:    "developers.zoom.us/docs/api/webhooks, read on 2026-11-22, does not say what a retry carries",
		Sources: []Source{contentSource()},
		Signs:   signedBy("x-zm-signature"),
		// The token changes every 72 hours.
		Passes: []Pass{{Pointer: "/event", Values: []string{"endpoint.url_validation"}}},
		Note: "It retries three times, the last after 85 minutes. " +
			"Two copies of the event of a recording can have different download tokens; then both run.",
	},
}
