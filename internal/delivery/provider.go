package delivery

import "slices"

// Provider is a sender of webhooks, as the catalogue knows it.
type Provider struct {
	// Name is the word in the configuration, and the prefix of its IDs.
	Name string
	// Title is the provider's own spelling of its name.
	Title string
	// Sources are where its delivery ID stands; the first that is present wins.
	Sources []Source
	// Reference is the page of the provider's documentation that says so.
	Reference string
}

// catalogue is sorted by name. An entry's sources need only say what they read:
// the catalogue fills in the provider.
var catalogue = []Provider{
	{
		// The delivery ID names the event, and is the same for every hook and app
		// that receives it: without the hook's ID the second hook's delivery
		// would be taken for a duplicate of the first. A redelivery that somebody
		// asked for by hand keeps the ID.
		Name:  "github",
		Title: "GitHub",
		Sources: []Source{
			{Kind: KindHeader, Header: "X-GitHub-Delivery", ScopeHeaders: []string{"X-GitHub-Hook-ID"}},
		},
		Reference: "https://docs.github.com/en/webhooks/webhook-events-and-payloads#delivery-headers",
	},
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

// complete returns a copy of an entry that the caller may change, with the
// provider filled in to its sources.
func (p Provider) complete() Provider {
	p.Sources = slices.Clone(p.Sources)
	for i := range p.Sources {
		p.Sources[i].Provider = p.Name
		p.Sources[i].ScopeHeaders = slices.Clone(p.Sources[i].ScopeHeaders)
	}
	return p
}
