package signature_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/signature"
)

//go:generate go test -run TestSignaturesPage -update .

var update = flag.Bool("update", false, "write docs/signatures.md anew")

const signaturesPage = "../../docs/signatures.md"

// The page of signatures in the documentation says what the catalogue says.
func TestSignaturesPage(t *testing.T) {
	want := renderSignatures()
	if *update {
		if err := os.WriteFile(signaturesPage, want, 0o644); err != nil { //nolint:gosec // a page that everybody reads
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(signaturesPage)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("docs/signatures.md is stale; write it anew with: go generate ./internal/signature")
	}
}

const signaturesHead = `# Signatures

<!-- Generated from the catalogue in internal/signature by go generate. Change that. -->

Which senders of webhooks [%[1]sverify%[1]s](directive.md#verify) can check, and how. [Security](security.md#webhooks-with-verify) says what that protects against.

%[1]s%[1]s%[1]scaddyfile
hooks.example.com {
	dedup /webhooks/* github stripe {
		verify github {env.GITHUB_SECRET}
		verify stripe {env.STRIPE_SECRET}
	}
	reverse_proxy localhost:3000
}
%[1]s%[1]s%[1]s

- **verified by**: where the signature is, and which bytes it is over. %[1]s{body}%[1]s is the body as it was received. The placeholders are those of [%[1]sverify hmac%[1]s](directive.md#verify), which is for senders without a name here.
- **takes**: the words of %[1]sverify%[1]s that the provider needs.
- **covers the ID**: whether the signature covers what the [key](providers.md) is made of. Where it does not, a captured request can be sent again under another ID, and [runs again](#a-key-of-what-is-signed).
- **tolerance**: how far a signed timestamp may be in the past or in the future, if you do not write %[1]swithin%[1]s.
- **handshake**: what becomes of the request that sets the webhook up or tests it. Where nothing is said, none is known.
- **source**: *primary* if the scheme was read in the provider's own page, code or SDK, *secondary* if in those of others. Try a secondary one under [%[1]sobserve%[1]s](directive.md#observe) first.

| provider | verified by | takes | covers the ID | tolerance | handshake | source |
|---|---|---|---|---|---|---|
`

const signaturesTail = `
## A key of what is signed

Where a second run under another ID would do harm, make the key of the body, which is signed. A redelivery has the same body. Two events with exactly the same body count as one, until the retention ends.

%[1]s%[1]s%[1]scaddyfile
hooks.example.com {
	dedup /webhooks/* {
		mode webhook
		key content github
		verify hmac {
			secret {env.GITHUB_SECRET}
			header X-Hub-Signature-256
			format sha256={signature}
		}
	}
	reverse_proxy localhost:3000
}
%[1]s%[1]s%[1]s
`

func renderSignatures() []byte {
	var b, notes bytes.Buffer
	fmt.Fprintf(&b, signaturesHead, "`")
	for _, p := range signature.Providers() {
		if p.Reason != "" {
			fmt.Fprintf(&b, "| `%s` | **cannot be verified**: %s | | | | | |\n", p.Name, p.Reason)
			continue
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s | %s |\n", p.Name, signedBytes.ReplaceAllString(p.How(), "`$0`"), takes(p), p.ID, tolerance(p), p.Handshake, p.Source)
		if p.Note != "" {
			d, _ := delivery.ProviderNamed(p.Name)
			fmt.Fprintf(&notes, "\n**%s** (`%s`). %s\n", d.Title, p.Name, p.Note)
		}
	}
	fmt.Fprintf(&b, "\n## Notes\n%s", &notes)
	fmt.Fprintf(&b, signaturesTail, "`")
	return b.Bytes()
}

// signedBytes is what a signature is over.
var signedBytes = regexp.MustCompile(`\S*\{\S*\}`)

func takes(p signature.Provider) string {
	words := "`secret`"
	if p.PublicKey() {
		words = "`public_key`"
	}
	if p.URL() {
		words += ", `url`"
	}
	return words
}

func tolerance(p signature.Provider) string {
	switch {
	case !p.Timed():
		return "no timestamp"
	case p.Within == 0:
		return "off"
	}
	return fmt.Sprintf("%d minutes", p.Within/time.Minute)
}
