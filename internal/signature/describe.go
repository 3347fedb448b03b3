package signature

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Coverage says whether what is signed covers what the catalogue makes the key of.
type Coverage string

// The zero value is CoversID.
const (
	CoversID      Coverage = ""
	CoversNoID    Coverage = "no"
	CoversPart    Coverage = "in part"
	CoversNothing Coverage = "nothing is signed"
)

// String says it in a word or two.
func (c Coverage) String() string { return cmp.Or(string(c), "yes") }

// Source says where a scheme was read.
type Source string

// The zero value is Primary: the provider's own page, code or SDK.
const (
	Primary         Source = ""
	Secondary       Source = "secondary"
	PartlySecondary Source = "secondary in part"
)

// String says it in a word or two.
func (s Source) String() string { return cmp.Or(string(s), "primary") }

// Provider says how the requests of a provider are verified.
type Provider struct {
	Name string
	// Reason says why they cannot be verified. If it is not empty, the rest is.
	Reason string
	// How names where the signature is, and what it is over.
	How string
	// ID says whether the signature covers the delivery ID. Where it does not, a captured request
	// can be sent again under another ID.
	ID Coverage
	// Timed reports whether a timestamp is signed, and Within is its default tolerance; 0 is none.
	Timed  bool
	Within time.Duration
	// Handshake says what becomes of the request that sets a webhook up; empty if none is known.
	Handshake string
	Source    Source
	// PublicKey reports whether it takes a public key in place of a secret, and URL whether it
	// needs the URL to which the provider sends.
	PublicKey, URL bool
	// Note is what else a user has to know, in whole sentences.
	Note string
}

// Providers returns all providers of the catalogue, sorted by name, with those that cannot be
// verified.
func Providers() []Provider {
	var all []Provider
	for _, p := range catalogue {
		all = append(all, p.describe())
	}
	for name, reason := range maps.All(unverifiable) {
		all = append(all, Provider{Name: name, Reason: reason})
	}
	slices.SortFunc(all, func(a, b Provider) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

func (p provider) describe() Provider {
	d := Provider{
		Name: p.name, ID: p.id, Within: p.within, Handshake: p.handshake, Source: p.source, Note: p.note,
		PublicKey: p.schemes[0].kind == publicKeyEd25519 || p.schemes[0].kind == publicKeyECDSA,
		URL:       strings.Contains(p.schemes[0].Signed, "{url}"),
	}
	var ways []string
	for _, s := range p.schemes {
		if c, err := s.compile(true); err == nil {
			d.Timed = d.Timed || c.timed()
		}
		ways = append(ways, s.describe())
	}
	d.How = strings.Join(ways, ", or ")
	return d
}

// describe says how a scheme is verified, in the words of the configuration.
func (s scheme) describe() string {
	place := s.Header
	if s.parameter != "" {
		place = "?" + s.parameter
	}
	switch s.kind {
	case token:
		return place + " equals the secret"
	case basic:
		return "Basic authentication with user and password"
	case ofAdyen:
		return "HMAC-SHA256 in each item, over eight of its members"
	case ofConvoy:
		return "HMAC-SHA256 or SHA512 in " + place + ", over the compact JSON, behind a timestamp or not"
	case ofTwilio:
		return "HMAC-SHA1 in " + place + ", over the URL and the sorted form or the body's hash"
	}
	algorithm := "HMAC-" + strings.ToUpper(cmp.Or(s.Algorithm, "sha256"))
	switch s.kind {
	case publicKeyEd25519:
		algorithm = "Ed25519"
	case publicKeyECDSA:
		algorithm = "ECDSA P-256"
	}
	if s.second != "" {
		place += " or " + s.second
	}
	text := fmt.Sprintf("%s (%s) in %s, over %s", algorithm, cmp.Or(s.Encoding, "hex"), place, strings.ReplaceAll(cmp.Or(s.Signed, defaultSigned), fieldPrefix, ""))
	if s.pointer != "" {
		text += ", which has the timestamp at " + s.pointer
	}
	return text
}
