package delivery

import (
	"slices"
	"time"
)

// DefaultRetention is the retention if neither the provider nor the user sets one. Most providers
// stop retrying earlier.
const DefaultRetention = 7 * 24 * time.Hour

// Provider is a sender of webhooks in the catalogue. A handler for a provider works
// in [ModeWebhook].
type Provider struct {
	// Name is the name in the configuration, and the prefix of the IDs.
	Name string
	// Title is the name as the provider writes it.
	Title string
	// Sources are the places where the delivery ID can be. The first one that is present in a
	// request is used.
	Sources []Source
	// Signs identify requests that may be from the provider. They apply to every source without
	// signs of its own, and to Passes that are not [Pass.Unsigned].
	Signs Signs
	// Retention is the retention of the provider if [DefaultRetention] would be wrong: the
	// provider retries longer, or sends the same body for different events. Zero means the
	// default.
	Retention time.Duration
	// ChangesBody reports whether the provider sends another body with each try of a delivery.
	ChangesBody bool
	// Passes are the requests of the provider that are not deliveries.
	Passes []Pass
	// Fact is the origin of the fact that identifies a delivery: the URL of a page or file of the
	// provider, or why there is none.
	Fact string
	// Read is the date on which a documented fact was read, such as 2026-11-22; "" if unknown.
	Read string
	// Note has whatever else a user needs to know, in whole sentences.
	Note string
}

// ProviderNamed returns the provider with this name, and whether there is one. The caller must not change
// its slices.
func ProviderNamed(name string) (Provider, bool) {
	i := slices.IndexFunc(catalogue, func(p Provider) bool { return p.Name == name })
	if i < 0 {
		return Provider{}, false
	}
	return catalogue[i], true
}

// Providers returns the whole catalogue, sorted by name. The caller must not change it.
func Providers() []Provider { return catalogue }
