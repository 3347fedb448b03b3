package delivery

import (
	"net/http"
	"slices"
	"strings"
)

// Sign is a header field by which a request is known to be from a provider. It is no
// proof of that: a proof is the service's to ask for. It keeps the requests of honest
// senders apart that share a route.
type Sign struct {
	// Header is the name of the field.
	Header string
	// Begins is what the field's value begins with, in upper or lower case. If it is
	// empty, any value is a sign.
	Begins string
}

func (s Sign) isOn(header http.Header) bool {
	return slices.ContainsFunc(headerLines(header, s.Header), func(line string) bool {
		line = strings.TrimLeft(line, " \t")
		return len(line) >= len(s.Begins) && strings.EqualFold(line[:len(s.Begins)], s.Begins)
	})
}

// String names the sign in words that follow "with".
func (s Sign) String() string {
	if s.Begins == "" {
		return s.Header
	}
	return s.Header + " that begins with " + s.Begins
}

// Signs say which requests may be from a provider. The zero value takes every request
// for its own.
type Signs struct {
	// AllOf are fields that the provider always sends.
	AllOf []Sign
	// AnyOf are fields of which the provider always sends at least one.
	AnyOf []Sign
	// NoneOf are fields of other senders. These send fields of the provider's name
	// too, so that services made for the provider understand them.
	NoneOf []Sign
}

// mismatch returns why a request is not from the provider, "" if it may be.
func (s Signs) mismatch(header http.Header) string {
	for _, sign := range s.NoneOf {
		if sign.isOn(header) {
			return "the request has " + sign.String()
		}
	}
	for _, sign := range s.AllOf {
		if !sign.isOn(header) {
			return "the request has no " + sign.String()
		}
	}
	if len(s.AnyOf) > 0 && !slices.ContainsFunc(s.AnyOf, func(sign Sign) bool { return sign.isOn(header) }) {
		return "the request has no " + joined(s.AnyOf, " or ")
	}
	return ""
}

// String says which requests may be from the provider, in words that follow
// "requests"; it is "" if all may be.
func (s Signs) String() string {
	var all []string
	if len(s.AllOf) > 0 {
		all = append(all, "with "+joined(s.AllOf, " and "))
	}
	if len(s.AnyOf) > 0 {
		all = append(all, "with "+joined(s.AnyOf, " or "))
	}
	if len(s.NoneOf) > 0 {
		all = append(all, "without "+joined(s.NoneOf, " or "))
	}
	return strings.Join(all, " and ")
}

// exclusive reports whether only the provider's requests have them.
func (s Signs) exclusive() bool { return len(s.AllOf)+len(s.AnyOf) > 0 }

func (s Signs) isZero() bool { return len(s.AllOf)+len(s.AnyOf)+len(s.NoneOf) == 0 }

func (s Signs) clone() Signs {
	return Signs{AllOf: slices.Clone(s.AllOf), AnyOf: slices.Clone(s.AnyOf), NoneOf: slices.Clone(s.NoneOf)}
}

// signedBy are the signs of a provider that always sends one of these fields.
func signedBy(names ...string) Signs {
	signs := make([]Sign, len(names))
	for i, name := range names {
		signs[i] = Sign{Header: name}
	}
	return Signs{AnyOf: signs}
}
