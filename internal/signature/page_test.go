package signature_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

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

The signatures that [%[1]sverify%[1]s](directive.md#verify) can check. [Security](security.md#webhooks-with-verify) says what that protects against.

%[1]s%[1]s%[1]scaddyfile
hooks.example.com {
	handle /webhooks {
		dedup github stripe {
			verify github {env.GITHUB_SECRET}
			verify stripe {env.STRIPE_SECRET}
		}
		reverse_proxy localhost:3000
	}
}
%[1]s%[1]s%[1]s

- **provider**: a * marks a scheme that was read in the code or pages of others. Try it under [%[1]sobserve%[1]s](directive.md#observe) first.
- **verified by**: where the signature is, and which bytes it is over, with the placeholders of [%[1]sverify hmac%[1]s](directive.md#verify). Where nothing else is said, %[1]sverify%[1]s takes a %[1]ssecret%[1]s.
- **covers the ID**: whether the signature covers what the [key](providers.md) is made of. Where it does not, whoever has captured a request can send it again under another ID, and it [runs again](#a-key-of-what-is-signed).
- **tolerance**: how old a signed timestamp may be, or how far in the future, unless you write %[1]swithin%[1]s. Empty if there is no signed timestamp.

| provider | verified by | covers the ID | tolerance |
|---|---|---|---|
`

const signaturesTail = `
## A key of what is signed

Where a second run under another ID would do harm, make the key of the body, which is signed. A redelivery has the same body, and so has [an equal event](providers.md#keys-made-of-content).

%[1]s%[1]s%[1]scaddyfile
hooks.example.com {
	handle /webhooks/github {
		dedup {
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
}
%[1]s%[1]s%[1]s
`

func renderSignatures() []byte {
	var b, notes bytes.Buffer
	fmt.Fprintf(&b, signaturesHead, "`")
	for _, p := range signature.Providers() {
		if p.Reason != "" {
			fmt.Fprintf(&b, "| `%s` | **cannot be verified**: %s | | |\n", p.Name, p.Reason)
			continue
		}
		star := ""
		if p.Source != "primary" {
			star = " *"
		}
		fmt.Fprintf(&b, "| `%s`%s | %s%s | %s | %s |\n", p.Name, star, signedBytes.ReplaceAllString(p.How(), "`$0`"), takes(p), p.ID, tolerance(p))
		var says []string
		if p.Note != "" {
			says = append(says, p.Note)
		}
		if p.Handshake != "" && p.Handshake != "signed" {
			says = append(says, "Handshake: "+p.Handshake+".")
		}
		if len(says) > 0 {
			fmt.Fprintf(&notes, "- `%s`: %s\n", p.Name, strings.Join(says, " "))
		}
	}
	fmt.Fprintf(&b, "\n## Notes\n\nA handshake is the request that sets a webhook up or tests it. One that is signed is not listed. One that is refused passes under `observe`.\n\n%s", &notes)
	fmt.Fprintf(&b, signaturesTail, "`")
	return b.Bytes()
}

// signedBytes is what a signature is over.
var signedBytes = regexp.MustCompile(`\S*\{\S*\}`)

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
	return fmt.Sprintf("%d minutes", p.Within/time.Minute)
}
