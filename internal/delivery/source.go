// Package delivery says where a request's key comes from: the sources that a
// handler is configured with, the rules by which a header field, a member of a
// JSON body, a text or a whole body becomes a delivery ID, and the catalogue of
// webhook providers.
//
// The package knows neither Caddy nor a store. What it finds is hashed into a
// key by package idempotency, together with the namespace and the scope that
// the handler adds.
package delivery

import (
	"slices"
	"strings"
)

// Mode is whom a handler serves; it decides what happens to a request whose
// delivery ID is invalid, and which statuses its refusals have.
type Mode string

const (
	// ModeAPI serves clients that send an idempotency key: an invalid one is
	// refused.
	ModeAPI Mode = "api"
	// ModeWebhook serves providers that deliver events: many of them drop an
	// event that is answered with 400, so that an invalid delivery ID counts as
	// missing.
	ModeWebhook Mode = "webhook"
)

const (
	// KindHeader is the kind of a source that reads a header field.
	KindHeader = "header"
	// KindJSON reads a string or a number in a JSON body.
	KindJSON = "json"
	// KindValue is a text with placeholders.
	KindValue = "value"
	// KindContent hashes the body: its canonical form (RFC 8785) if it is JSON,
	// else its bytes.
	KindContent = "content"
	// KindParts is made of several sources of the kinds above, all of which must
	// be present.
	KindParts = "parts"
	// KindBatch is made of the IDs of all elements of an array in a JSON body. It
	// is for the catalogue alone.
	KindBatch = "batch"
)

// kindJSONNumber is the kind of an ID that is a number in a JSON body: 1 and "1"
// are different IDs.
const kindJSONNumber = "json number"

// IdempotencyKeyHeader is the field that API clients send
// (draft-ietf-httpapi-idempotency-key-header-07, section 2.1).
const IdempotencyKeyHeader = "Idempotency-Key"

// Source is one place where a delivery ID may stand.
type Source struct {
	// Kind is [KindHeader], [KindJSON], [KindValue], [KindContent], [KindParts]
	// or [KindBatch].
	Kind string
	// Header is the field that a source of kind header reads, in any case.
	Header string
	// Pointer is the JSON pointer (RFC 6901) to what a source of kind json reads.
	Pointer string
	// Text is that of a source of kind value, with placeholders.
	Text string
	// Parts are those of a source of kind parts, in order.
	Parts []Source
	// Batch is the array that a source of kind batch reads.
	Batch List
	// Prefix is what the user wrote to keep the source's IDs apart from those
	// of others; empty for the default, see [Found].
	Prefix string
	// Provider is the catalogue's name of the provider whose preset this is;
	// empty for a source of the user's own.
	Provider string
	// ScopeHeaders are the fields that the provider's preset adds to the scope.
	ScopeHeaders []string
}

// List is an array in a JSON body whose elements carry IDs.
type List struct {
	// Array is the JSON pointer to the array, from the element of the list
	// around this one, or from the whole body; "" is that itself.
	Array string
	// Members are the JSON pointers, from an element, to what makes up its ID.
	// All of them must be there.
	Members []string
	// Lists are further arrays within an element. An element that has them must
	// have elements in at least one of them.
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

// MadeOfContent reports whether the source's ID changes with every change of
// the body, so that a fingerprint of the body would say nothing more.
func (s Source) MadeOfContent() bool {
	return s.Kind == KindContent || slices.ContainsFunc(s.Parts, Source.MadeOfContent)
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
