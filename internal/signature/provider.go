package signature

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Provider is a sender of webhooks in the catalogue, and how its requests are verified.
type Provider struct {
	Name string
	// Reason says why they cannot be verified. If it is not empty, nothing else is set.
	Reason string
	// ID says in a few words whether the signature covers the delivery ID, yes or no for most.
	// Where it does not, a captured request can be sent again under another ID.
	ID string
	// Within is the default tolerance of a timestamp; 0 is none.
	Within time.Duration
	// Handshake says what becomes of the request that sets a webhook up; empty if none is known.
	Handshake string
	// Source says where the scheme was read: primary is the provider's own page, code or SDK, and
	// secondary those of others; or secondary in part.
	Source string
	// Note is what else a user has to know, in whole sentences.
	Note string

	schemes []scheme
	// foreign is what fields of other senders begin with, which send fields of this provider's
	// name too.
	foreign   []string
	challenge challenge
}

// What [Provider.Handshake] begins with.
const (
	signedHandshake   = "signed"
	unsignedPasses    = "unsigned, and passes: "
	unsignedIsRefused = "unsigned, and refused; set the webhook up before `verify`: "
)

// Providers returns the whole catalogue, sorted by name, with those that cannot be verified.
func Providers() (all []Provider) {
	for _, p := range catalogue {
		all = append(all, p.complete())
	}
	for name, reason := range unverifiable {
		all = append(all, Provider{Name: name, Reason: reason})
	}
	slices.SortFunc(all, func(a, b Provider) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// ProviderNamed returns the provider with this name, and whether there is one.
func ProviderNamed(name string) (Provider, bool) {
	for _, p := range catalogue {
		if p.Name == name {
			return p.complete(), true
		}
	}
	reason, known := unverifiable[name]
	return Provider{Name: name, Reason: reason}, known
}

// complete returns an entry with what the table leaves out.
func (p Provider) complete() Provider {
	p.ID, p.Source = cmp.Or(p.ID, "yes"), cmp.Or(p.Source, "primary")
	return p
}

// Challenges reports whether it sends challenges that pass unsigned.
func (p Provider) Challenges() bool { return p.challenge.method != "" }

// PublicKey reports whether it takes a public key in place of a secret.
func (p Provider) PublicKey() bool { return p.has(func(s scheme) bool { return s.publicKey != nil }) }

// URL reports whether it needs the URL to which it sends.
func (p Provider) URL() bool {
	return p.has(func(s scheme) bool { return strings.Contains(s.Signed, placeURL) })
}

// Timed reports whether its requests may have a timestamp that is signed.
func (p Provider) Timed() bool {
	return p.has(func(s scheme) bool {
		r, err := s.compile(false)
		return err == nil && r.timed
	})
}

func (p Provider) has(is func(scheme) bool) bool { return slices.ContainsFunc(p.schemes, is) }

// How says where the signature is, and what it is over, in the words of the configuration.
func (p Provider) How() string {
	var ways []string
	for _, s := range p.schemes {
		s = s.withDefaults()
		place := s.Header
		if s.parameter != "" {
			place = "?" + s.parameter
		} else if s.second != "" {
			place += " or " + s.second
		}
		way := fmt.Sprintf("HMAC-%s (%s) in %s, over %s", strings.ToUpper(s.Algorithm), s.Encoding, place, s.Signed)
		switch {
		case s.how != "":
			way = s.how
		case s.static:
			way = place + " equals the secret"
		}
		ways = append(ways, way)
	}
	return strings.Join(ways, ", or ")
}

// challenge is a request that a provider sends unsigned, to see whether the receiver listens.
type challenge struct{ method, parameter, field string }

func (c challenge) matches(r Request) bool {
	return c.method != "" && r.Method == c.method && !r.HasBody &&
		(c.parameter == "" || len(parameters(r.Target, c.parameter)) > 0) &&
		(c.field == "" || len(r.Header.Values(c.field)) > 0)
}
