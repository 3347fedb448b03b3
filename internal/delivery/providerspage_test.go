package delivery_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
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

// The README says how many providers there are, and how many of them their senders document.
func TestProvidersOfTheReadme(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	all, verified := delivery.Providers(), 0
	for _, p := range all {
		if p.Verified {
			verified++
		}
	}
	for _, want := range []string{fmt.Sprintf("**%d webhook senders", len(all)), fmt.Sprintf(" %d are documented", verified)} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("the README does not say %q", want)
		}
	}
}

func renderProviders() []byte {
	var b, notes bytes.Buffer
	for _, p := range delivery.Providers() {
		var keys []string
		for _, s := range p.Sources {
			keys = append(keys, s.String())
		}
		retention := ""
		if p.Retention != 0 {
			retention = p.RetentionText()
		}
		title := fmt.Sprintf("[%s](%s)", p.Title, p.Fact)
		if !p.Verified {
			title = p.Title + " *"
		}
		route := ""
		if p.Matcher() != "" {
			route = " **own path**"
		}
		fmt.Fprintf(&b, "| `%s`%s | %s | %s | %s | %s | %s |\n", p.Name, route, title, codes(keys), codes(p.Scope()), p.Signs, retention)
		writeNote(&notes, p)
	}
	fmt.Fprintf(&b, "\n## Notes\n\n%s", &notes)
	return b.Bytes()
}

// writeNote writes what the table does not say of a provider, if there is anything.
func writeNote(b *bytes.Buffer, p delivery.Provider) {
	var says []string
	if !p.Verified {
		says = append(says, "Unverified: "+p.Fact+".")
	}
	if p.Note != "" {
		says = append(says, p.Note)
	}
	for _, pass := range p.Passes {
		says = append(says, fmt.Sprintf("Passes: `%s`.", pass))
	}
	if len(says) > 0 {
		fmt.Fprintf(b, "- `%s`: %s\n", p.Name, strings.Join(says, " "))
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
