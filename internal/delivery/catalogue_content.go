package delivery

import "time"

// knownByContent are the providers that send no delivery ID at all, or one that changes
// with each attempt.
var knownByContent = []Provider{
	{
		Name: "asana", Title: "Asana",
		Fact:    "developers.asana.com/docs/webhooks-guide, read on 2026-11-22, says how long it retries, and nothing about what a retry carries",
		Sources: []Source{contentSource()},
		Signs:   signedBy("X-Hook-Signature"),
		Passes:  []Pass{{Header: "X-Hook-Secret", Unsigned: true}, {Pointer: "/events", Empty: true}},
		Note:    noteContent + " It retries for 24 hours. A heartbeat has no events.",
	},
	{
		Name: "discord", Title: "Discord webhook events", Verified: true, Read: firstReading,
		Sources: []Source{contentSource()},
		Signs:   signedBy("X-Signature-Ed25519"),
		Passes:  []Pass{{Pointer: "/type", Values: []string{"0"}}},
		Fact:    "https://docs.discord.com/developers/events/webhook-events",
		Note:    noteContent + " Each event has its time in it, to the microsecond.",
	},
	{
		Name: "dropbox", Title: "Dropbox", Verified: true, Read: firstReading,
		Sources:   []Source{contentSource()},
		Signs:     signedBy("X-Dropbox-Signature"),
		Retention: 10 * time.Minute,
		Fact:      "https://www.dropbox.com/developers/reference/webhooks",
		Note:      noteContent + " It retries for about ten minutes. " + noteRepeats,
	},
	{
		Name: "lemon_squeezy", Title: "Lemon Squeezy",
		Fact:    "general knowledge; on 2026-11-22, no page or code of Lemon Squeezy was found that says what a retry carries",
		Sources: []Source{contentSource()},
		// Other senders use X-Signature too.
		Signs: Signs{AllOf: []Sign{{Header: "X-Signature"}, {Header: "X-Event-Name"}}},
		Note:  noteContent + " Bodies have a member /meta/webhook_id: if it changes with a retry, the retry runs.",
	},
	{
		Name: "plaid", Title: "Plaid", Verified: true, Read: firstReading,
		Sources: []Source{contentSource()},
		Signs:   signedBy("Plaid-Verification"),
		// 30 s, 2 min and 8 min between the first four attempts.
		Retention: 11 * time.Minute,
		Fact:      "https://plaid.com/docs/api/webhooks",
		Note: noteContent + " It retries after 30 seconds and then after four times as long each, for 24 hours; " +
			"the retention covers the first three retries, because bodies repeat within a day. " + noteRepeats,
	},
	{
		Name: "sentry", Title: "Sentry", Verified: true, Read: firstReading,
		// Request-ID changes with each attempt.
		Sources:   []Source{contentSource()},
		Signs:     signedBy("Sentry-Hook-Resource"),
		Retention: 20 * time.Minute,
		Fact:      "https://github.com/getsentry/sentry/blob/master/src/sentry/sentry_apps/tasks/sentry_apps.py",
		Note: "Request-ID changes with each attempt, so that the key is a hash of the body. It retries three times, five minutes apart, and makes an alert's body anew each time: " +
			"it is recognised as long as it says the same. Equal changes of one issue without an event between them count as one until the retention ends.",
	},
	{
		Name: "zoom", Title: "Zoom",
		Fact:    "developers.zoom.us/docs/api/webhooks and devsupport.zoom.us, read on 2026-11-22, name the signature, the validation and the times of the retries, and say nothing about what a retry carries",
		Sources: []Source{contentSource()},
		Signs:   signedBy("x-zm-signature"),
		// The token changes every 72 hours.
		Passes: []Pass{{Pointer: "/event", Values: []string{"endpoint.url_validation"}}},
		Note: noteContent + " Each event has its time in it, to the millisecond. It retries three times, the last after 85 minutes. " +
			"A user has seen two copies of one recording's event with another download token each; such copies both run (https://devforum.zoom.us/t/duplicate-sessions-caused-by-multiple-zoom-webhooks-for-the-same-meeting-recording/128602).",
	},
}
