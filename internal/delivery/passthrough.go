package delivery

import (
	"net/http"
	"slices"
	"strings"

	"github.com/caddy-dedup/caddy-dedup/internal/canonicaljson"
	"github.com/go-json-experiment/json/jsontext"
)

// Pass describes requests of a provider that are not deliveries, such as the
// handshake of a new subscription. Such a request must reach the upstream each time.
type Pass struct {
	// Header is the header field by which such a request is known, if Pointer is
	// empty.
	Header string
	// Pointer is the JSON pointer to a string or number in the body by which such a
	// request is known.
	Pointer string
	// Values are the values that such a request has there. If there are none, any
	// value means that the request passes.
	Values []string
	// Empty says that Pointer is to an array, and that in such a request it has no
	// elements: the sender tries whether the receiver listens.
	Empty bool
	// Suffix is what the value ends in, in place of Values.
	Suffix string
	// Unsigned says that such a request may come without the signs of the provider.
	Unsigned bool
}

// PassThrough reports whether the request passes without a claim, because it is not
// a delivery, and returns the name of the provider from which it is. A body that
// cannot be read never lets a request pass. Nor does one that only looks like a
// handshake, if a header field says that another one of the providers has sent it, or is one of the
// sources: then it has a key.
func PassThrough(providers []Provider, sources []Source, request Request) (name string, ok bool) {
	request = request.Remember()
	for _, p := range providers {
		if p.PassesThrough(request) {
			ofAnother := !p.sends(request.Header) &&
				(slices.ContainsFunc(providers, func(other Provider) bool { return other.sends(request.Header) }) ||
					slices.ContainsFunc(sources, func(s Source) bool { return s.isSent(request.Header) }))
			if !ofAnother {
				return p.Name, true
			}
		}
	}
	return "", false
}

// sends reports whether a request has what only deliveries of the provider have: the header
// field with its delivery ID, or its signs.
func (p Provider) sends(header http.Header) bool {
	return p.Signs.exclusive() && p.Signs.mismatch(header) == "" ||
		slices.ContainsFunc(p.Sources, func(s Source) bool { return s.isSent(header) })
}

// isSent reports whether a request has the header fields that only those with the source have.
func (s Source) isSent(header http.Header) bool {
	return s.OfOneSender() && s.Signs.mismatch(header) == "" && s.hasHeaders(header)
}

func (s Source) hasHeaders(header http.Header) bool {
	if s.Kind == KindHeader {
		return len(headerLines(header, s.Header)) > 0
	}
	return !slices.ContainsFunc(s.Parts, func(part Source) bool {
		return part.Kind == KindHeader && !part.Optional && len(headerLines(header, part.Header)) == 0
	})
}

// PassesThrough reports whether the request is from the provider but not a delivery,
// so that it must reach the upstream without a claim.
func (p Provider) PassesThrough(request Request) bool {
	request = request.Remember()
	return slices.ContainsFunc(p.Passes, func(pass Pass) bool {
		return p.maySend(pass, request.Header) && pass.matches(request)
	})
}

func (p Provider) maySend(pass Pass, header http.Header) bool {
	return pass.Unsigned || p.Signs.mismatch(header) == ""
}

// NeedsBody reports whether it takes the body of a request with this header to know its key, or
// that it passes. That of a request which no provider can have sent is left to stream.
func NeedsBody(sources []Source, providers []Provider, header http.Header) bool {
	return slices.ContainsFunc(sources, func(s Source) bool {
		return s.NeedsBody() && s.Signs.mismatch(header) == ""
	}) || slices.ContainsFunc(providers, func(p Provider) bool {
		return slices.ContainsFunc(p.Passes, func(pass Pass) bool { return pass.Pointer != "" && p.maySend(pass, header) })
	})
}

func (p Pass) matches(request Request) bool {
	told := headerLines(request.Header, p.Header)
	if p.Pointer != "" {
		doc, err := request.document()
		if err != nil {
			return false
		}
		if p.Empty {
			return isEmptyArray(doc.Root(), p.Pointer)
		}
		found, err := member(doc.Root(), p.Pointer)
		if err != nil {
			return false
		}
		told = []string{found.id}
	}
	if p.Suffix != "" {
		return slices.ContainsFunc(told, func(value string) bool { return strings.HasSuffix(value, p.Suffix) })
	}
	if len(p.Values) == 0 {
		return len(told) > 0
	}
	return slices.ContainsFunc(told, func(value string) bool { return slices.Contains(p.Values, value) })
}

func isEmptyArray(from canonicaljson.Value, pointer string) bool {
	array, ok := from.At(pointer)
	if !ok || array.Kind() != jsontext.KindBeginArray {
		return false
	}
	for range array.Elements() {
		return false
	}
	return true
}
