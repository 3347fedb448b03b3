package delivery

import "time"

// knownByContent are the providers that send no delivery ID at all.
var knownByContent = []Provider{
	{
		Name: "asana", Title: "Asana", Fact: generalKnowledge,
		Sources: []Source{inContent()},
		Passes:  []Pass{{Header: "X-Hook-Secret"}},
		Note:    noteContent + " Its heartbeats have no events and are all the same: their duplicates get the first one's answer.",
	},
	{
		Name: "discord", Title: "Discord webhook events", Fact: generalKnowledge,
		Sources: []Source{inContent()},
		Passes:  []Pass{{Pointer: "/type", Values: []string{"0"}}},
		Note:    noteContent,
	},
	{
		Name: "dropbox", Title: "Dropbox", Fact: generalKnowledge,
		Sources:   []Source{inContent()},
		Retention: time.Minute,
		Note:      noteContent + " " + noteRepeats,
	},
	{
		Name: "lemon_squeezy", Title: "Lemon Squeezy", Fact: generalKnowledge,
		Sources: []Source{inContent()},
		Note:    noteContent,
	},
	{
		Name: "plaid", Title: "Plaid", Fact: generalKnowledge,
		Sources:   []Source{inContent()},
		Retention: time.Minute,
		Note:      noteContent + " " + noteRepeats,
	},
	{
		Name: "postmark", Title: "Postmark", Fact: secondarySource,
		// Several opens, clicks and recipients of one message share MessageID and
		// RecordType.
		Sources: []Source{inContent()},
		Note:    noteContent,
	},
}
