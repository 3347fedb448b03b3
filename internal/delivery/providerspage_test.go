package delivery_test

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/signature"
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

Name the senders of your webhooks. Each delivery then reaches your service once:

%[1]scaddyfile
:8080 {
	dedup github stripe
	reverse_proxy localhost:3000
}
%[1]s

` + "`caddy-dedup providers`" + ` prints this catalogue, ` + "`caddy-dedup providers <name>`" + ` one entry.

- **key**: what identifies a delivery; the first one that is present wins. ` + "`header`" + ` is a header field, ` + "`json`" + ` a JSON pointer (RFC 6901) into the body. A request without any of them has no key, and passes.
- **scope**: what is part of the key beside the host and the path. The query is not: give two addresses that differ in the query alone a path each, or write a [` + "`scope`" + `](directive.md#scope) with ` + "`{http.request.host}`, `{http.request.orig_uri}`" + ` and the fields of this column.
- **retention**: how long a response is kept, unless the directive says otherwise. Most senders stop their retries within seven days; the notes say why another one is set. A retention shorter than the retries leaves the last ones unrecognised.
- **route**: ` + "`any`" + ` if the name can be on a whole site, because each delivery has a header field that only this sender sends. ` + "`own`" + ` if the sender has no such field, so that a site's own JSON with the same members would be taken for its deliveries: name its path, as in ` + "`dedup /webhooks/adyen adyen`" + `.
- **claims**, in the notes: the header fields by which the sender's requests are known. A request without them falls through to the next source: your own API's ` + "`POST /payments`" + ` with an ` + "`id`" + ` is not Stripe's, nor a scheduler's ` + "`Idempotency-Key: 42`" + ` GitLab's. If a proxy in front removes such a field, deliveries pass without a key, and the log says why.
- **signed**: whether the signature that [` + "`verify`" + `](directive.md#verify) checks covers the delivery ID. If it does not, whoever has captured a request can send it again under another ID. ` + "`–`" + `: it cannot be verified; the notes say why. [Signatures](signatures.md) has it all in one table.
- **verified**: read in the provider's documentation or source, which is linked below, with the day where noted. For an *unverified* entry the note says what is open: watch a retry of your own before you rely on it, and report what you saw.

Only POST and PATCH requests are deduplicated. If a provider uses another method, write it into ` + "`methods`" + `.

One handler can have several providers. It can have one of each of these groups, whose requests look the same:

%s
One of a group serves all of it. With [` + "`verify`" + `](directive.md#verify) they can be together: the signature tells them apart. If two of them could send the same ID, give each a path and a handler of its own.

| name | sender | route | key | scope | retention | signed | fact |
|---|---|---|---|---|---|---|---|
`

const pageTail = `
## Batches

A key marked *batch* is made of the IDs of all elements, in their order. ` + "`*`" + ` means each element of an array. The same request again is a duplicate; the same events in another order, or in other groups, are a new request and run. If that matters, compare the IDs in your service too. If one element has no ID, the request has no key and passes, so that this element is not lost.

## Keys made of content

If a provider sends no ID, the key is a hash of the body: of its canonical form (RFC 8785) if it is JSON, otherwise of its bytes. If the sender changes a member with each retry, such as the number of the attempt, name it with ` + "`exclude`" + `, or each retry runs. Two events with exactly the same body count as one: until the retention ends, the second does not reach your service.

## Senders without a name here

- **HubSpot** sends arrays of events. Their ` + "`eventId`" + ` is not promised to be unique, and ` + "`attemptNumber`" + ` changes with each try, so that even ` + "`key content`" + ` does not recognise a retry. Where each request has one event, ` + "`key content`" + ` with ` + "`exclude /0/attemptNumber`" + ` does.
- **Microsoft Graph** sends change notifications whose ID is optional. Two equal ones may be a retry or two changes: a ` + "`key content`" + ` with a short ` + "`retention`" + ` loses the second change, so leave its route without ` + "`dedup`" + ` where that hurts. The check of a new subscription, a POST with ` + "`?validationToken=`" + ` and an empty body, passes under ` + "`key content`" + `; do not make a key of the query.
- **Bitbucket Data Center** sends ` + "`X-Request-Id`" + `, a new one for each request: there is nothing to recognise.

## Any other sender

Write ` + "`key`" + ` lines, such as ` + "`key header X-Event-Id`" + ` or ` + "`key json /event/id orders`" + `, also beside providers, which are tried first. A last line ` + "`key content`" + ` is for requests without the ID.
`

func renderProviders() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, pageHead, "```", groups())
	for _, p := range delivery.Providers() {
		trust := "verified"
		if !p.Verified {
			trust = "*unverified*"
		}
		route := "any"
		if p.Matcher() != "" {
			route = "**own**"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s | %s | %s |\n", p.Name, p.Title, route, codes(keys(p)), codes(p.Scope()), p.RetentionText(), cmp.Or(signatureOf(p).ID, "–"), trust)
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
		if matcher := p.Matcher(); matcher != "" {
			fmt.Fprintf(&b, " A site's own JSON could be taken for its deliveries: write `%s`.", matcher)
		}
		if p.Note != "" {
			b.WriteString(" " + p.Note)
		}
		for _, pass := range p.Passes {
			fmt.Fprintf(&b, " Passes through unclaimed: `%s`.", pass)
		}
		describeSignature(&b, signatureOf(p))
		b.WriteString("\n")
	}
	b.WriteString(pageTail)
	return b.Bytes()
}

func signatureOf(p delivery.Provider) signature.Provider {
	signed, _ := signature.ProviderNamed(p.Name)
	return signed
}

// describeSignature writes what verify checks.
func describeSignature(b *bytes.Buffer, p signature.Provider) {
	if p.Reason != "" {
		fmt.Fprintf(b, " Cannot be verified: %s.", p.Reason)
		return
	}
	fmt.Fprintf(b, " Verified by: %s.", strings.NewReplacer("{", "`{", "}", "}`").Replace(p.How()))
	if p.Within > 0 {
		fmt.Fprintf(b, " Timestamp: %d minutes.", int(p.Within.Minutes()))
	}
	if p.Handshake != "" {
		fmt.Fprintf(b, " Handshake: %s.", p.Handshake)
	}
	if p.Source != "primary" {
		fmt.Fprintf(b, " Source: %s.", p.Source)
	}
	if p.Note != "" {
		b.WriteString(" " + p.Note)
	}
}

// groups lists the providers that cannot share a handler.
func groups() string {
	var b strings.Builder
	listed := map[string]bool{}
	for _, p := range delivery.Providers() {
		group := []string{p.Name}
		for _, q := range delivery.Providers() {
			if q.Name != p.Name && delivery.CheckDistinct([]string{p.Name, q.Name}) != nil {
				group = append(group, q.Name)
				listed[q.Name] = true
			}
		}
		if len(group) > 1 && !listed[p.Name] {
			fmt.Fprintf(&b, "- %s\n", codes(group))
		}
	}
	return b.String()
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
