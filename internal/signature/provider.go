package signature

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Provider is a catalogue entry: a sender of webhooks, and how its requests are verified.
type Provider struct {
	Name string
	// Reason is why its requests cannot be verified. If it is set, only Name is set besides.
	Reason string
	// ID is whether the signature covers the delivery ID: "yes", "no", or a few words. If it does
	// not, a captured request can be sent again under another ID.
	ID string
	// Within is the default tolerance of timestamps; 0 accepts any.
	Within time.Duration
	// Handshake is what happens to the request that sets up a webhook; empty if none is known.
	Handshake string
	// Source is the origin of the scheme: "primary" for the provider's own page, code or SDK,
	// "secondary" for those of others, or "secondary in part".
	Source string
	// Note has whatever else a user needs to know, in whole sentences.
	Note string

	schemes []scheme
	// foreign has prefixes of the fields of other senders that also send this provider's fields.
	foreign   []string
	challenge challenge
}

// The prefixes of [Provider.Handshake].
const (
	signedHandshake   = "signed"
	unsignedPasses    = "unsigned, and passes: "
	unsignedIsRefused = "unsigned, and refused; set the webhook up before `verify`: "
)

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

// complete returns the entry with its defaults.
func (p Provider) complete() Provider {
	p.ID, p.Source = cmp.Or(p.ID, "yes"), cmp.Or(p.Source, "primary")
	return p
}

// Challenges reports whether the provider sends unsigned challenges, which pass.
func (p Provider) Challenges() bool { return p.challenge.method != "" }

// PublicKey reports whether the provider needs a public key instead of a secret.
func (p Provider) PublicKey() bool { return p.has(func(s scheme) bool { return s.publicKey != nil }) }

// URL reports whether the provider signs the URL to which it sends.
func (p Provider) URL() bool {
	return p.has(func(s scheme) bool { return strings.Contains(s.Signed, placeURL) })
}

func (p Provider) has(is func(scheme) bool) bool { return slices.ContainsFunc(p.schemes, is) }

// How describes where the signature is, and what it covers, in the words of the configuration.
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

// challenge is an unsigned request by which a provider checks that the receiver listens.
type challenge struct{ method, parameter, field string }

func (c challenge) matches(r Request) bool {
	return c.method != "" && r.Method == c.method && !r.HasBody &&
		(c.parameter == "" || len(parameters(r.Target, c.parameter)) > 0) &&
		(c.field == "" || len(r.Header.Values(c.field)) > 0)
}
