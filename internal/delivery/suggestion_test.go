package delivery_test

import (
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

func TestNearNames(t *testing.T) {
	for name, want := range map[string]string{
		"GitHub": "github", "git-hub": "github", "githib": "github", "github ": "github", "standard-webhooks": "standard_webhooks", "standardwebhooks": "standard_webhooks",
		"standard": "standard_webhooks", "strpe": "stripe", "stripe_connect": "stripe", "event": "eventarc eventgrid", "git": "gitea github gitlab", "cloudevent": "cloudevents",
		"huggingface": "hugging_face", "slak": "slack", "sendgird": "sendgrid", "amazon": "", "": "", "x": "", "su": "", "zzzzzz": "",
	} {
		if got := strings.Join(delivery.NearNames(name), " "); got != want {
			t.Errorf("%q: got %q; want %q", name, got, want)
		}
	}
}
