// Package delivery says where the key of a request comes from. It has the sources
// that a handler is configured with, the rules by which a header field, a member of
// a JSON body, a text or a whole body becomes a delivery ID, and the catalogue of
// webhook providers.
//
// The package knows neither Caddy nor a store. The handler adds a namespace and a
// scope to the delivery ID that is found, and package idempotency hashes all of
// them into the key.
package delivery

import (
	"slices"
	"strings"
)

// Mode says for which kind of client a handler works. It decides what happens to a
// request whose delivery ID is invalid, and with which status a request is refused.
type Mode string

const (
	// ModeAPI is for clients that send an idempotency key. A request with an invalid
	// key is refused.
	ModeAPI Mode = "api"
	// ModeWebhook is for providers that deliver events. Many of them drop an event
	// that is answered with 400; so an invalid delivery ID counts as a missing one.
	ModeWebhook Mode = "webhook"
)

const (
	// KindHeader is the kind of a source that reads a header field.
	KindHeader = "header"
	// KindJSON reads a string or a number in a JSON body.
	KindJSON = "json"
	// KindValue takes a text from the configuration, with placeholders.
	KindValue = "value"
	// KindContent hashes the body: its canonical form (RFC 8785) if it is JSON,
	// else its bytes.
	KindContent = "content"
	// KindParts combines several sources of the kinds above. All of them must be
	// present, except for those that are optional.
	KindParts = "parts"
	// KindBatch combines the IDs of all elements of an array in a JSON body. Only
	// the catalogue uses it; a user cannot configure it.
	KindBatch = "batch"
)

// kindJSONNumber is the kind of an ID that is a number in a JSON body. It is not
// [KindJSON], because 1 and "1" are different IDs.
const kindJSONNumber = "json number"

// IdempotencyKeyHeader is the field that API clients send
// (draft-ietf-httpapi-idempotency-key-header-07, section 2.1).
const IdempotencyKeyHeader = "Idempotency-Key"

// Source is one place where a delivery ID may stand.
type Source struct {
	// Kind is [KindHeader], [KindJSON], [KindValue], [KindContent], [KindParts]
	// or [KindBatch].
	Kind string
	// Header is the name of the field that a source of kind header reads, in upper
	// or lower case.
	Header string
	// Pointer is the JSON pointer (RFC 6901) to what a source of kind json reads.
	Pointer string
	// Text is the text of a source of kind value, with placeholders.
	Text string
	// Parts are the sources that a source of kind parts combines, in order.
	Parts []Source
	// Optional says of a part that it may be absent. The ID of the parts is then
	// another one than with any value of this part.
	Optional bool
	// Batch is the array that a source of kind batch reads.
	Batch List
	// Prefix is the word with which the user keeps the IDs of this source apart from
	// those of other sources; empty for the default, see [Found].
	Prefix string
	// Provider is the name of the provider in the catalogue from which this source
	// is; empty if the user has configured the source.
	Provider string
	// Signs say which requests may be from the provider. In all others the source is
	// absent, whatever they carry: a field such as Idempotency-Key is many senders'.
	Signs Signs
	// ScopeHeaders are the header fields that the provider adds to the scope.
	ScopeHeaders []string
}

// List is an array in a JSON body whose elements carry IDs.
type List struct {
	// Array is the JSON pointer to the array. It starts from the whole body or, for a
	// list in another one, from an element of that list. "" means that the body, or
	// the element, is the array itself.
	Array string
	// Members are JSON pointers that start from an element. The values there
	// together are the ID of the element, and all of them must be present.
	Members []string
	// Optional are JSON pointers like Members, to values that not every element has.
	// Those that are there are part of the element's ID too.
	Optional []string
	// Lists are further arrays within each element. At least one of them must have
	// elements.
	Lists []List
}

// NeedsBody reports whether the source reads the request's body.
func (s Source) NeedsBody() bool {
	switch s.Kind {
	case KindJSON, KindContent, KindBatch:
		return true
	case KindParts:
		return slices.ContainsFunc(s.Parts, Source.NeedsBody)
	default:
		return false
	}
}

// OfOneSender reports whether only requests of the source's own provider can have it:
// it is, or is made with, a header field of theirs, or reads requests with their signs
// alone.
func (s Source) OfOneSender() bool {
	return s.Kind == KindHeader || s.Signs.exclusive() ||
		slices.ContainsFunc(s.Parts, func(part Source) bool { return part.Kind == KindHeader && !part.Optional })
}

// MadeOfContent reports whether the ID changes with every change of the body. If it
// does, a fingerprint of the body would add nothing.
func (s Source) MadeOfContent() bool {
	return s.Kind == KindContent || slices.ContainsFunc(s.Parts, Source.MadeOfContent)
}

// WithPrefix returns the source with the prefix in it that its IDs have ([Found]): a
// source that reads many requests then works it out once.
func (s Source) WithPrefix() Source {
	s.Prefix = s.prefix()
	return s
}

func (s Source) prefix() string {
	switch {
	case s.Provider != "":
		return s.Provider
	case s.Prefix != "":
		return s.Prefix
	case s.Kind == KindHeader:
		return strings.ToLower(s.Header)
	default:
		return s.Kind
	}
}
