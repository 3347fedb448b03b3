package delivery

import (
	"slices"
	"time"
)

// DefaultRetention is how long a kept response is replayed, unless a provider or
// the user says otherwise. It is longer than most providers retry.
const DefaultRetention = 7 * 24 * time.Hour

// Provider is a sender of webhooks in the catalogue. A handler for a provider works
// in [ModeWebhook].
type Provider struct {
	// Name is the name in the configuration, and the prefix of the IDs.
	Name string
	// Title is the name as the provider writes it.
	Title string
	// Sources are the places where the delivery ID can be. The first one that is
	// present in a request counts.
	Sources []Source
	// Signs say which requests may be from the provider. They hold for every source
	// that has none of its own, and for Passes that are not [Pass.Unsigned].
	Signs Signs
	// Retention is how long a kept response is replayed, if [DefaultRetention] would
	// be wrong: the provider retries for longer, or sends the same body again for
	// another event. Zero means the usual one.
	Retention time.Duration
	// Passes are the requests of the provider that are not deliveries.
	Passes []Pass
	// Verified says that the fact was read in the documentation or the source code
	// of the provider. Other facts are from secondary sources or general knowledge.
	Verified bool
	// Fact says where the fact is from: what identifies a delivery. If it was verified,
	// this is the address of the page or the file.
	Fact string
	// Read is the day on which a verified fact was read there, such as 2026-11-22. It
	// is empty if that was not noted.
	Read string
	// Note is what else a user has to know, in whole sentences.
	Note string
}

// ProviderNamed returns the provider with this name, and whether there is one.
func ProviderNamed(name string) (Provider, bool) {
	for _, p := range catalogue {
		if p.Name == name {
			return p.complete(), true
		}
	}
	return Provider{}, false
}

// Providers returns the whole catalogue, sorted by name.
func Providers() []Provider {
	all := make([]Provider, 0, len(catalogue))
	for _, p := range catalogue {
		all = append(all, p.complete())
	}
	return all
}

// complete returns a copy of an entry, with the name of the provider in all its
// sources. The caller may change the copy, except for the slices in [Source.Batch].
func (p Provider) complete() Provider {
	p.Sources = slices.Clone(p.Sources)
	for i, s := range p.Sources {
		p.Sources[i].Provider = p.Name
		p.Sources[i].Parts = slices.Clone(s.Parts)
		p.Sources[i].ScopeHeaders = slices.Clone(s.ScopeHeaders)
		if s.Signs.isZero() {
			s.Signs = p.Signs
		}
		p.Sources[i].Signs = s.Signs.clone()
	}
	p.Signs = p.Signs.clone()
	p.Passes = slices.Clone(p.Passes)
	return p
}
