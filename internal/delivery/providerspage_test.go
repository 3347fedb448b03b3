package delivery_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

//go:generate go test -run TestProvidersPage -update .

var update = flag.Bool("update", false, "write docs/providers.md anew")

const providersPage = "../../docs/providers.md"

// The page of providers in the documentation says what the catalogue says.
func TestProvidersPage(t *testing.T) {
	want := renderProviders()
	if *update {
		if err := os.WriteFile(providersPage, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(providersPage)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("docs/providers.md is stale; write it anew with: go generate ./internal/delivery")
	}
}

const pageHead = `# Providers

<!-- Generated from the catalogue in internal/delivery by go generate. Change that. -->

Write the names of the senders of your webhooks. Then each delivery reaches your service once, also when the sender repeats it:

%[1]scaddyfile
:8080 {
	dedup github stripe
	reverse_proxy localhost:3000
}
%[1]s

All providers are served in webhook mode. The name of the provider is the prefix of its keys, so what is known under two names never shares a key. The scope has the host and the path, and what the column *scope* names. The query is no part of it: where a sender delivers one event, with one ID, to two addresses that differ in the query alone, the second delivery gets the response of the first. Give each a path of its own, or write a [` + "`scope`" + `](directive.md#scope) with ` + "`{http.request.host}`, `{http.request.orig_uri}`" + ` and the fields of that column. ` + "`caddy-dedup providers`" + ` prints this catalogue, and ` + "`caddy-dedup providers <name>`" + ` prints one entry of it.

- **key**: what identifies a delivery. The first one that is present wins. ` + "`header`" + ` is a header field, and ` + "`json`" + ` is a JSON pointer (RFC 6901) into the body. A request without any of them has no key, and passes.
- **retention**: how long a response is kept for duplicates, unless the directive says otherwise. It counts from the end of the run. Most senders stop their retries within seven days. If the retention is another one, the notes say why. A retention below the time of the retries leaves the last ones unrecognised.
- **claims**, in the notes: the header fields by which the sender's requests are known. A request without them is another sender's, whatever it carries, and falls through to the next source: the ` + "`Idempotency-Key: 42`" + ` of a scheduler on the same route is not GitLab's. If a proxy in front of yours removes such a field, deliveries pass without a key, and the log says why.
- **verified**: we have read it in the provider's documentation or source code, which is linked below, with the day on which we read it, where we noted that. Of an *unverified* entry, the sender's own words leave something open, or were not found: its note says what. Watch a retry of your own before you rely on it, and tell us what you saw.

Only POST and PATCH requests are deduplicated. If a provider uses another method, write it into ` + "`methods`" + `.

One handler can have several names. But it cannot have two that read the same member of the body, because a delivery of one would count as a delivery of the other: ` + "`cloudevents`" + ` serves every sender of CloudEvents. Of providers that have the same header field as their key, and the same claims, such as ` + "`svix`, `clerk` and `resend`" + `, or ` + "`openai` and `replicate`" + `, the first one that is named takes the deliveries of all of them, under its own name: if two of them could send the same ID, give each a path and a handler of its own. A provider that is known by the whole body, and by no header field, takes every delivery. So it comes last. A provider that is known by a member of the body takes every request that has this member, such as ` + "`/id`" + `: give other requests with a body of that shape a route of their own.

| name | sender | key | scope | retention | fact |
|---|---|---|---|---|---|
`

const pageTail = `
## Batches

A key marked *batch* is made of the IDs of all elements, in their order. ` + "`*`" + ` means each element of an array. If the provider sends the same request again, it is a duplicate. If it sends the same events in another order, or in other groups, they are a new request and run. If that matters, compare the IDs in your service too. If one element has no ID, the request has no key at all, and passes. Otherwise this element could be lost.

## Keys made of content

If a provider sends no ID, the key is a hash of the body. If the body is JSON, its canonical form (RFC 8785) is hashed, so white space and the order of members do not count. Otherwise its bytes are hashed. Some senders change a member with each retry, such as the number of the attempt. Name this member with ` + "`exclude`" + `, or each retry is a new request and runs. Two events with exactly the same body count as one: until the retention ends, the second one does not reach your service.

## Senders without a name here

- **HubSpot** sends arrays of events. Their ` + "`eventId`" + ` is not promised to be unique, and ` + "`attemptNumber`" + ` changes with each try, so that even ` + "`key content`" + ` does not recognise a retry. Where each request has one event, ` + "`key content`" + ` with ` + "`exclude /0/attemptNumber`" + ` does.
- **Microsoft Graph** sends change notifications whose ID is optional. Two equal ones may be a retry or two changes: a ` + "`key content`" + ` with a short ` + "`retention`" + ` loses the second change, so leave its route without ` + "`dedup`" + ` where that hurts. The check of a new subscription, a POST with ` + "`?validationToken=`" + ` and an empty body, passes under ` + "`key content`" + `; do not make a key of the query.
- **Bitbucket Data Center** sends ` + "`X-Request-Id`" + `, a new one for each request: there is nothing to recognise.

## Any other sender

Say with ` + "`key`" + ` lines where its ID is, such as ` + "`key header X-Event-Id`" + ` or ` + "`key json /event/id orders`" + `. They can stand beside names, and are tried after them. A second line ` + "`key content`" + ` is for requests without the ID.
`

func renderProviders() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, pageHead, "```")
	for _, p := range delivery.Providers() {
		trust := "verified"
		if !p.Verified {
			trust = "*unverified*"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n", p.Name, p.Title, codes(keys(p)), codes(p.Scope()), p.Kept(), trust)
	}
	b.WriteString("\n## Notes\n")
	for _, p := range delivery.Providers() {
		fmt.Fprintf(&b, "\n**%s** (`%s`). ", p.Title, p.Name)
		if p.Verified {
			fmt.Fprintf(&b, "From <%s>%s.", p.Fact, p.ReadOn())
		} else {
			fmt.Fprintf(&b, "*Unverified*: %s.", p.Fact)
		}
		if claims := p.Signs.String(); claims != "" {
			fmt.Fprintf(&b, " Claims only requests %s.", claims)
		}
		if p.Note != "" {
			b.WriteString(" " + p.Note)
		}
		for _, pass := range p.Passes {
			fmt.Fprintf(&b, " Passes through unclaimed: `%s`.", pass)
		}
		b.WriteString("\n")
	}
	b.WriteString(pageTail)
	return b.Bytes()
}

func keys(p delivery.Provider) []string {
	var texts []string
	for _, s := range p.Sources {
		texts = append(texts, s.String())
	}
	return texts
}

func codes(texts []string) string {
	for i, text := range texts {
		texts[i] = "`" + text + "`"
	}
	return strings.Join(texts, ", ")
}
