package delivery_test

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/signature"
)

//go:generate go test -run TestProvidersPage -update .

var update = flag.Bool("update", false, "write docs/providers.md anew")

const providersPage = "../../docs/providers.md"

// fromCatalogue are the parts of the page that say what the catalogue says: the groups of
// providers that look the same, the table, and the notes.
var fromCatalogue = regexp.MustCompile("(?s)(whose requests look the same:\n\n).*?(\nOne of a group.*?\n\\|---[-|]*\n).*(\n## Batches\n)")

func TestProvidersPage(t *testing.T) {
	got, err := os.ReadFile(providersPage)
	if err != nil {
		t.Fatal(err)
	}
	parts := fromCatalogue.FindSubmatchIndex(got)
	if parts == nil {
		t.Fatal("docs/providers.md has no place for the catalogue")
	}
	want := slices.Concat(got[:parts[3]], []byte(groups()), got[parts[4]:parts[5]], renderProviders(), got[parts[6]:])
	if bytes.Equal(got, want) {
		return
	}
	if !*update {
		t.Fatal("docs/providers.md is stale; write it anew with: go generate ./internal/delivery")
	}
	if err := os.WriteFile(providersPage, want, 0o644); err != nil {
		t.Fatal(err)
	}
}

func renderProviders() []byte {
	var b bytes.Buffer
	for _, p := range delivery.Providers() {
		trust := "verified"
		if !p.Verified {
			trust = "*unverified*"
		}
		var keys []string
		for _, s := range p.Sources {
			keys = append(keys, s.String())
		}
		route := "any"
		if p.Matcher() != "" {
			route = "**own**"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s | %s | %s |\n", p.Name, p.Title, route, codes(keys), codes(p.Scope()), p.RetentionText(), cmp.Or(signatureOf(p).ID, "–"), trust)
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

func codes(texts []string) string {
	for i, text := range texts {
		texts[i] = "`" + text + "`"
	}
	return strings.Join(texts, ", ")
}
