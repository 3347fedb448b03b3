package signature_test

import (
	"slices"
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
