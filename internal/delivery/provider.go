package delivery

import (
	"slices"
	"time"
)

// UsualRetention is how long a kept response is replayed, unless a provider or
// the user says otherwise. It is longer than most providers retry.
const UsualRetention = 7 * 24 * time.Hour

// Provider is a sender of webhooks, as the catalogue knows it. All of them are
// served in [ModeWebhook].
type Provider struct {
	// Name is the word in the configuration, and the prefix of its IDs.
	Name string
	// Title is the provider's own spelling of its name.
	Title string
	// Sources are where its delivery ID stands; the first that is present wins.
	Sources []Source
	// Retention is how long a kept response is replayed, where [UsualRetention]
	// is wrong: the provider retries for longer, or sends the same body again for
	// another event. Zero for the usual.
	Retention time.Duration
	// Passes are the provider's requests that are no deliveries.
	Passes []Pass
	// Verified says that the fact was read in the provider's documentation or
	// source code. The others are from secondary sources or general knowledge.
	Verified bool
	// Fact says where it comes from what identifies a delivery.
	Fact string
	// Note is what a user has to know beyond that, in whole sentences.
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

// complete returns a copy of an entry, with the provider filled in to its
// sources. The caller may change the sources, but not a list's members.
func (p Provider) complete() Provider {
	p.Sources = slices.Clone(p.Sources)
	for i, s := range p.Sources {
		p.Sources[i].Provider = p.Name
		p.Sources[i].Parts = slices.Clone(s.Parts)
		p.Sources[i].ScopeHeaders = slices.Clone(s.ScopeHeaders)
	}
	p.Passes = slices.Clone(p.Passes)
	return p
}
