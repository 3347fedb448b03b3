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

Name the senders of your webhooks, and their retries reach your service once:

%[1]scaddyfile
:8080 {
	dedup github stripe
	reverse_proxy localhost:3000
}
%[1]s

Every provider is served in webhook mode. Its name is the prefix of its keys, so that two providers never share one; host and path are in the scope of all of them, and what the column *scope* names joins them. ` + "`caddy-dedup providers`" + ` prints this catalogue, and ` + "`caddy-dedup providers <name>`" + ` one entry of it.

- **key**: what identifies a delivery; the first that is present wins. ` + "`header`" + ` is a header field, ` + "`json`" + ` a JSON pointer (RFC 6901) into the body. A request without it has no key, and passes.
- **retention**: how long a response is kept for duplicates, unless the directive says otherwise. Seven days are longer than most retry; where it is another time, the notes say why.
- **verified**: read in the provider's documentation or source code, which is linked below. What is *unverified* comes from elsewhere: watch a retry of your own before you rely on it, and tell us what you saw.

Several names may stand on one handler, but not two that read the same member of the body: a delivery of one would be taken for the other's. A provider that is known by its whole body takes every delivery, and so comes last.

| name | sender | key | scope | retention | fact |
|---|---|---|---|---|---|
`

const pageTail = `
## Batches

A key marked *batch* is made of the IDs of all elements, in order, where ` + "`*`" + ` stands for each element of an array. A retry of the same request is a duplicate. The same events in another order, or cut into other requests, are another request and run: look at the IDs in your service if that matters. A request in which one element has no ID has no key at all, and passes: with a key of the others, that element could be lost.

## Keys made of content

A provider that sends no ID is known by the hash of the body: of its canonical form (RFC 8785) if it is JSON, so that white space and the order of members do not count, else of its bytes. Where a retry carries a member that changes each time, such as an attempt's number, name it with ` + "`exclude`" + `; otherwise the retry is a request of its own, and runs. Two events with the very same body are one: the second is not seen until the retention has ended.

## Any other sender

Write where its ID stands with ` + "`key`" + ` lines, such as ` + "`key header X-Event-Id`" + ` or ` + "`key json /event/id orders`" + `; they may stand beside names, and are tried after them. A second line ` + "`key content`" + ` is for requests without the ID.
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
			fmt.Fprintf(&b, "From <%s>.", p.Fact)
		} else {
			fmt.Fprintf(&b, "*Unverified*: %s.", p.Fact)
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
