package exchange

import (
	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/signature"
)

// Verification is how a handler checks signatures.
type Verification struct {
	Verifiers signature.Verifiers
	// Sources are those of each provider, and of the user's own scheme under "". The sender that
	// has signed a request selects them.
	Sources map[string][]delivery.Source
}
