package signature_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/signature"
)

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

func TestProviderDescriptions(t *testing.T) {
	without := []string{"cloudevents", "contentful", "eventarc", "eventgrid", "knative", "mailgun", "paypal", "plaid", "pubsub", "sns"}
	for _, p := range signature.Providers() {
		if named, known := signature.ProviderNamed(p.Name); !known || named.Reason != p.Reason || named.How() != p.How() {
			t.Errorf("%s: %+v", p.Name, named)
		}
		if slices.Contains(without, p.Name) {
			if p.Reason == "" || p.How() != "" {
				t.Errorf("%s: %+v", p.Name, p)
			}
			continue
		}
		switch {
		case p.Reason != "" || p.How() == "":
			t.Errorf("%s: %+v", p.Name, p)
		case p.URL() != (p.Name == "square" || p.Name == "twilio"):
			t.Errorf("%s: URL", p.Name)
		case p.PublicKey() != (p.Name == "discord" || p.Name == "sendgrid"):
			t.Errorf("%s: PublicKey", p.Name)
		case p.Note != "" && !strings.HasSuffix(p.Note, "."):
			t.Errorf("%s: the note is no sentence: %s", p.Name, p.Note)
		}
	}
	for name, want := range map[string][4]string{
		"github":       {"HMAC-SHA256 (hex) in X-Hub-Signature-256, over {body}", "no", "signed", "primary"},
		"svix":         {"HMAC-SHA256 (base64) in svix-signature, over {http.request.header.svix-id}.{timestamp}.{body}", "yes", "", "primary"},
		"gitlab":       {"HMAC-SHA256 (base64) in webhook-signature, over {http.request.header.webhook-id}.{timestamp}.{body}, or X-Gitlab-Token equals the secret", "with a signing token", "", "secondary in part"},
		"hugging_face": {"X-Webhook-Secret equals the secret, or ?secret equals the secret", "nothing is signed", "", "primary"},
		"vercel":       {"HMAC-SHA1 (hex) in x-vercel-signature, over {body}", "yes", "", "secondary"},
		"adyen":        {"HMAC-SHA256 (base64) in each item, over eight of its members", "in part", "", "primary"},
	} {
		p, _ := signature.ProviderNamed(name)
		if got := [4]string{p.How(), p.ID, p.Handshake, p.Source}; got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
}
