// Package delivery says where a request's key comes from: the sources that a
// handler is configured with, the rules by which a header field becomes a
// delivery ID, and the catalogue of webhook providers.
//
// The package knows neither Caddy nor a store. What it finds is hashed into a
// key by package idempotency, together with the namespace and the scope that
// the handler adds.
package delivery

import (
	"errors"
	"fmt"
	"net/http"
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

// KindHeader is the kind of a source that reads a header field.
const KindHeader = "header"

// IdempotencyKeyHeader is the field that API clients send
// (draft-ietf-httpapi-idempotency-key-header-07, section 2.1).
const IdempotencyKeyHeader = "Idempotency-Key"

// Source is one place where a delivery ID may stand.
type Source struct {
	// Kind is [KindHeader].
	Kind string
	// Header is the field that a source of kind header reads, in any case.
	Header string
	// Prefix is what the user wrote to keep the source's IDs apart from those
	// of others; empty for the default, see [Found].
	Prefix string
	// Provider is the catalogue's name of the provider whose preset this is;
	// empty for a source of the user's own.
	Provider string
	// ScopeHeaders are the fields that the provider's preset adds to the scope.
	ScopeHeaders []string
}

// Request is what sources read from.
type Request struct {
	// Header is the request's header. A field counts under its canonical name
	// and under its name in lower case.
	Header http.Header
}

// Found is the delivery ID that a request carries.
type Found struct {
	// Provider is that of the source; empty for a source of the user's own.
	Provider string
	// Kind is that of the source.
	Kind string
	// Prefix is the provider's name, else what the user wrote, else the
	// header's name in lower case.
	Prefix string
	// ID has 1 to the maximum length of bytes. Those of an ID from a header
	// field are all within 0x20 to 0x7E.
	ID string
	// Scope is what the provider's preset adds to the scope: for each of its
	// fields the name in lower case, the number of lines in decimal, and the
	// lines. The number keeps an absent field apart from an empty one, and a
	// line apart from the next field's name.
	Scope []string
}

// ErrMissing says that none of the sources is present in the request.
var ErrMissing = errors.New("the request has no idempotency key or delivery ID")

// Find returns the delivery ID of the first source that is present, with no
// more than maxLength bytes. The error is [ErrMissing] if no source is present,
// and an [*InvalidError] if the first one present is not a valid ID; the
// sources behind it are then not tried.
func Find(sources []Source, request Request, maxLength int) (Found, error) {
	for _, source := range sources {
		if source.Kind != KindHeader {
			return Found{}, fmt.Errorf("source kind %q is unknown; it must be %q", source.Kind, KindHeader)
		}
		lines := headerLines(request.Header, source.Header)
		if len(lines) == 0 {
			continue
		}
		id, err := headerID(source.Header, lines, maxLength)
		if err != nil {
			return Found{}, err
		}
		return Found{
			Provider: source.Provider,
			Kind:     source.Kind,
			Prefix:   source.prefix(),
			ID:       id,
			Scope:    headerScope(request.Header, source.ScopeHeaders),
		}, nil
	}
	return Found{}, ErrMissing
}

func (s Source) prefix() string {
	switch {
	case s.Provider != "":
		return s.Provider
	case s.Prefix != "":
		return s.Prefix
	default:
		return strings.ToLower(s.Header)
	}
}
