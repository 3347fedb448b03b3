// Package delivery finds the delivery ID or idempotency key of a request. It has the sources that
// a handler is configured with, the rules by which a header field, a member of a JSON body, a text
// or a whole body becomes a delivery ID, and the catalogue of webhook providers.
//
// The package knows neither Caddy nor a store. The handler adds a namespace and a
// scope to the delivery ID that is found, and package idempotency hashes all of
// them into the key.
package delivery

import (
	"slices"
	"strings"
)

// Mode is the kind of clients that a handler serves. It determines what happens to a request with
// an invalid delivery ID, and the statuses of refusals.
type Mode string

const (
	// ModeAPI is for clients that send an idempotency key. A request with an invalid
	// key is refused.
	ModeAPI Mode = "api"
	// ModeWebhook is for providers that deliver events. Many of them drop an event after a 400,
	// so an invalid delivery ID counts as missing.
	ModeWebhook Mode = "webhook"
	// ModeMCP is for tool calls of agents (Model Context Protocol), whose responses are JSON-RPC
	// messages.
	ModeMCP Mode = "mcp"
)

const (
	// KindHeader is the kind of a source that reads a header field.
	KindHeader = "header"
	// KindJSON reads a string or a number in a JSON body.
	KindJSON = "json"
	// KindForm reads a field of a form, urlencoded or multipart.
	KindForm = "form"
	// KindValue takes a text from the configuration, with placeholders.
	KindValue = "value"
	// KindContent hashes the body: its canonical form (RFC 8785) if it is JSON,
	// of a multipart body its parts, else its bytes.
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

// Source is one place where a request can have its delivery ID.
type Source struct {
	// Kind is [KindHeader], [KindJSON], [KindForm], [KindValue], [KindContent], [KindParts]
	// or [KindBatch].
	Kind string
	// Header is the name of the field that a source of kind header reads, in upper
	// or lower case.
	Header string
	// Pointer is the JSON pointer (RFC 6901) to what a source of kind json reads.
	Pointer string
	// Field is the name of the field that a source of kind form reads.
	Field string
	// Text is the text of a source of kind value, with placeholders.
	Text string
	// Parts are the sources that a source of kind parts combines, in order.
	Parts []Source
	// Optional reports whether a part may be absent. The ID of the parts then differs from that
	// with any value of this part.
	Optional bool
	// Batch is the array that a source of kind batch reads.
	Batch List
	// Provider is the name of the catalogue entry that has this source, or the configured prefix;
	// empty for a source without one.
	Provider string
	// Prefix is [Found.Prefix], if [Source.WithPrefix] has computed it.
	Prefix string
	// OfCatalogue reports whether the source is that of a catalogue entry.
	OfCatalogue bool
	// Signs identify the requests that may be from the provider. In all others the source is
	// absent: many senders use a field such as Idempotency-Key.
	Signs Signs
	// ScopeHeaders are the header fields that the provider adds to the scope.
	ScopeHeaders []string
}

// List is an array in a JSON body whose elements carry IDs.
type List struct {
	// Array is the JSON pointer to the array, relative to the body or, for a nested list, to an
	// element of the outer list. "" means that the body, or the element, is the array.
	Array string
	// Members are JSON pointers relative to an element. Their values form the ID of the element;
	// all must be present.
	Members []string
	// Optional are JSON pointers like Members, to values that may be absent. Those that are
	// present are part of the ID.
	Optional []string
	// Lists are nested arrays of each element. At least one must have elements.
	Lists []List
}

// NeedsBody reports whether the source reads the request's body.
func (s Source) NeedsBody() bool {
	switch s.Kind {
	case KindJSON, KindForm, KindContent, KindBatch:
		return true
	case KindParts:
		return slices.ContainsFunc(s.Parts, Source.NeedsBody)
	default:
		return false
	}
}

// ReadsFormOnly reports whether all that the source reads of the body are fields of a form.
func (s Source) ReadsFormOnly() bool {
	return s.Kind == KindForm || s.Kind == KindParts &&
		!slices.ContainsFunc(s.Parts, func(part Source) bool { return part.NeedsBody() && part.Kind != KindForm })
}

// OfOneSender reports whether only requests of the source's provider can have it: it uses a header
// field of the provider, or requires its signs.
func (s Source) OfOneSender() bool {
	return s.Kind == KindHeader || s.Signs.exclusive() ||
		slices.ContainsFunc(s.Parts, func(part Source) bool { return part.Kind == KindHeader && !part.Optional })
}

// MadeOfContent reports whether the ID changes with every change of the body, so that a fingerprint
// of the body would add nothing.
func (s Source) MadeOfContent() bool {
	return s.Kind == KindContent || slices.ContainsFunc(s.Parts, Source.MadeOfContent)
}

// WithPrefix returns the source with its effective prefix ([Found.Prefix]), which is then computed
// once and not for every request.
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
