package signature_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/signature"
)

//go:generate go test -run TestProvidersPage -update .

var update = flag.Bool("update", false, "write docs/providers.md anew")

const providersPage = "../../docs/providers.md"

// fromCatalogues are the parts of the page that say what the catalogues say: the groups of
// providers that look the same, the table, and the notes.
var fromCatalogues = regexp.MustCompile("(?s)(whose requests look the same:\n\n).*?(One of a group.*?\n\\|---[-|]*\n).*(## Batches\n)")

func TestProvidersPage(t *testing.T) {
	got, err := os.ReadFile(providersPage)
	if err != nil {
		t.Fatal(err)
	}
	parts := fromCatalogues.FindSubmatchIndex(got)
	if parts == nil {
		t.Fatal("docs/providers.md has no place for the catalogue")
	}
	want := slices.Concat(got[:parts[3]], []byte(groups()), got[parts[4]:parts[5]], renderProviders(), got[parts[6]:])
	if bytes.Equal(got, want) {
		return
	}
	if !*update {
		t.Fatal("docs/providers.md is stale; write it anew with: go generate ./internal/signature")
	}
	if err := os.WriteFile(providersPage, want, 0o644); err != nil {
		t.Fatal(err)
	}
}

// Every provider whose deliveries have keys can be verified, or has the reason why not.
func TestEveryProviderIsVerifiableOrExplained(t *testing.T) {
	var keyed, verified []string
	for _, p := range delivery.Providers() {
		keyed = append(keyed, p.Name)
	}
	for _, p := range signature.Providers() {
		verified = append(verified, p.Name)
	}
	if !slices.Equal(keyed, verified) {
		t.Errorf("with keys: %q\nhere: %q", keyed, verified)
	}
}

// The README says how many providers there are, and how many of them are documented.
func TestProvidersOfTheReadme(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	all, documented := delivery.Providers(), 0
	for _, p := range all {
		if p.Documented() {
			documented++
		}
	}
	for _, want := range []string{fmt.Sprintf("**%d webhook senders", len(all)), fmt.Sprintf(" %d are documented", documented)} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("the README does not say %q", want)
		}
	}
}

func renderProviders() []byte {
	var b, notes bytes.Buffer
	for _, p := range delivery.Providers() {
		s, known := signature.ProviderNamed(p.Name)
		if !known {
			panic("no signature of " + p.Name)
		}
		var keys []string
		for _, source := range p.Sources {
			keys = append(keys, source.String())
		}
		sender := fmt.Sprintf("[%s](%s)", p.Title, p.Fact)
		if !p.Documented() {
			sender = p.Title + " *"
		}
		path := ""
		if p.Matcher() != "" {
			path = "own"
		}
		how := "none: " + s.Reason
		if s.Reason == "" {
			how = signedBytes.ReplaceAllString(short.ReplaceAllString(s.How(), "$1$2"), "`$0`") + takes(s)
		}
		if s.Source != "primary" && s.Reason == "" {
			how += " †"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s | %s |\n", p.Name, sender, codes(keys), path, how, s.ID, tolerance(s))
		if says := note(p, s); says != "" {
			fmt.Fprintf(&notes, "- `%s`: %s\n", p.Name, says)
		}
	}
	fmt.Fprintf(&b, `
## Notes

A handshake sets a webhook up or tests it. One that is signed is not listed. Under %[1]sverify%[1]s an unsigned one passes; for a refused one, set the webhook up before, or under %[1]sobserve%[1]s.

%[2]s
`, "`", &notes)
	return b.Bytes()
}

// saidOnce has what several notes say, and what they say of it in the page.
var saidOnce = strings.NewReplacer(
	"Every endpoint gets the same ID: keep host and path in the scope.", "",
	"The next change may send the same bytes, and counts as a duplicate within the retention: set a shorter one if that hurts.", "",
	"In each HTTP mode: binary, structured and batched.", "",
	"Handshake: unsigned, and passes", "Unsigned handshake",
	"Handshake: unsigned, and refused; set the webhook up before `verify`", "Refused handshake",
)

// note returns what the page does not say elsewhere of a provider.
func note(p delivery.Provider, s signature.Provider) string {
	var says []string
	if p.Retention != 0 {
		says = append(says, "Kept for "+p.RetentionText()+".")
	}
	if fields := p.Scope(); len(fields) > 0 {
		says = append(says, "The key has "+codes(fields)+", too.")
	}
	if p.Note != "" {
		says = append(says, p.Note)
	}
	for _, pass := range p.Passes {
		says = append(says, fmt.Sprintf("Passes: `%s`.", pass))
	}
	if s.Note != "" {
		says = append(says, "Under `verify`: "+s.Note)
	}
	if s.Handshake != "" && s.Handshake != "signed" {
		says = append(says, "Handshake: "+s.Handshake+".")
	}
	return strings.Join(strings.Fields(saidOnce.Replace(strings.Join(says, " "))), " ")
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
	return b.String() + "\n"
}

func codes(texts []string) string {
	return "`" + strings.Join(texts, "`, `") + "`"
}

var (
	// short leaves out what the page says once above the table.
	short = regexp.MustCompile(`HMAC-SHA256 \((base64|hex)\)|, over \{body\}(,|$)`)
	// signedBytes is what a signature is over.
	signedBytes = regexp.MustCompile(`\S*\{\S*\}`)
)

// takes returns the words of verify that the provider needs, if it is not the secret alone.
func takes(p signature.Provider) string {
	switch {
	case p.PublicKey():
		return "; takes `public_key`"
	case p.URL():
		return "; takes `secret` and `url`"
	}
	return ""
}

func tolerance(p signature.Provider) string {
	switch {
	case !p.Timed():
		return ""
	case p.Within == 0:
		return "off"
	}
	return fmt.Sprintf("%dm", p.Within/time.Minute)
}
