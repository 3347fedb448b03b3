package delivery

import (
	"net/http"
	"slices"
	"strings"
)

// Sign is a header field that identifies the requests of a provider. It is not proof of their
// origin. It separates the requests of honest senders that share a route.
type Sign struct {
	// Header is the name of the field.
	Header string
	// Begins is the prefix of the value, in upper or lower case. If it is empty, any value
	// matches.
	Begins string
}

func (s Sign) isOn(header http.Header) bool {
	return slices.ContainsFunc(header.Values(s.Header), func(line string) bool {
		line = strings.TrimLeft(line, " \t")
		return len(line) >= len(s.Begins) && strings.EqualFold(line[:len(s.Begins)], s.Begins)
	})
}

// String describes the sign as in "with ...".
func (s Sign) String() string {
	if s.Begins == "" {
		return s.Header
	}
	return s.Header + " that starts with " + s.Begins
}

// Signs identify the requests that may be from a provider. The zero value matches every request.
type Signs struct {
	// AllOf are fields that the provider always sends.
	AllOf []Sign
	// AnyOf are fields of which the provider always sends at least one.
	AnyOf []Sign
	// NoneOf are fields of other senders that imitate the provider by sending its fields too.
	NoneOf []Sign
}

// mismatch returns why a request is not from the provider, or "" if it may be.
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

// String describes the matching requests as in "requests ..."; it returns "" if all match.
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

// signedBy returns the signs of a provider that always sends one of these fields.
func signedBy(names ...string) Signs {
	signs := make([]Sign, len(names))
	for i, name := range names {
		signs[i] = Sign{Header: name}
	}
	return Signs{AnyOf: signs}
}
