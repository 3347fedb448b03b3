package cli

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

func TestPrintProviders(t *testing.T) {
	var out bytes.Buffer
	printProviders(&out)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	all := delivery.Providers()
	if len(lines) != len(all)+4 || !strings.HasSuffix(lines[len(lines)-2], "as in dedup /webhooks/adyen adyen") {
		t.Fatalf("%d lines for %d providers:\n%s", len(lines), len(all), out.String())
	}
	column := strings.Index(lines[0], "KEY")
	for i, p := range all {
		line := lines[i+1]
		if !strings.HasPrefix(line, p.Name+" ") || len(line) <= column || line[column:] != p.Key() || line[column-1] != ' ' {
			t.Errorf("the line of %s is not aligned, or lacks its key:\n%s", p.Name, line)
		}
	}
	for _, want := range []string{
		"github             yes         any    body    7d         X-GitHub-Hook-ID", "adyen              yes         own    partly", "stripe             yes         any    id", "okta               yes         own    secret", "sns                yes         any    no",
	} {
		if !strings.Contains(out.String(), "\n"+want) {
			t.Errorf("no line starts with %q:\n%s", want, out.String())
		}
	}
}

func TestPrintProvider(t *testing.T) {
	for name, want := range map[string][]string{
		"github":  {"title      GitHub\n", "mode       webhook\n", "key        header X-GitHub-Delivery\n", "scope      host, path, X-GitHub-Hook-ID\n", "retention  7d\n", "passes     none of its requests\n", "fact       https://docs.github.com/", "verify     HMAC-SHA256 (hex) in X-Hub-Signature-256, over {body}\n", "signs ID   no\n", "handshake  signed\n"},
		"sns":     {"verify     no: its certificate must be fetched"},
		"dropbox": {"handshake  unsigned, and passes: GET with challenge\n"},
		"slack":   {"passes     json /type is url_verification\n", "fact       https://docs.slack.dev/apis/events-api/, read on 2026-11-22\n"},
		"stripe":  {"within     5m\n", "signs ID   yes\n", "claims     requests with Stripe-Signature\n", "passes     json /id ends in _00000000000000\n"},
		"okta":    {"route      a site's own JSON could be taken for its deliveries; give it a path of its own: dedup /webhooks/okta okta\n"},
		"linear":  {"fact       none: linear.app/developers/webhooks, read on 2026-11-22, does not say"},
		"gitlab":  {"key        header Idempotency-Key, or header webhook-id, or parts header X-Gitlab-Event-UUID + content\n", "claims     requests with X-Gitlab-Event\n"},
	} {
		var out bytes.Buffer
		if err := printProvider(&out, name); err != nil {
			t.Fatal(err)
		}
		for _, line := range want {
			if !strings.Contains(out.String(), "\n"+line) {
				t.Errorf("%s: no line %q in\n%s", name, line, out.String())
			}
		}
	}
}

func TestPrintUnknownProvider(t *testing.T) {
	for name, near := range map[string][]string{"git-hub": {"github"}, "event": {"eventarc", "eventgrid"}, "nobody": {"`caddy-dedup providers`"}} {
		var out bytes.Buffer
		err := printProvider(&out, name)
		if err == nil || out.Len() > 0 {
			t.Fatalf("%s: got %v and %q", name, err, out.String())
		}
		for _, want := range append(near, fmt.Sprintf("%q", name)) {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %q; want %s in it", name, err, want)
			}
		}
	}
}
