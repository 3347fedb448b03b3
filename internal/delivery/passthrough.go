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
	// Values are the values that such a request has there. None means any value.
	Values []string
	// Empty reports whether such a request has an empty array at Pointer: the sender tests the
	// receiver.
	Empty bool
	// Suffix is the suffix of the value, instead of Values.
	Suffix string
	// SignedPointer is the Pointer for verified requests, instead of Header, which no sender signs. If
	// it is empty, such a request is a delivery.
	SignedPointer string
	// Unsigned reports whether such a request may lack the signs of the provider.
	Unsigned bool
}

// PassThrough reports whether the request passes without a claim, because it is not
// a delivery, and returns the name of its provider. A request whose body cannot be read does not
// pass. Nor does one that resembles a handshake but has a header field of another provider or of a
// source: it has a key.
func PassThrough(providers []Provider, sources []Source, request Request) (name string, ok bool) {
	request = request.Remember()
	for _, p := range providers {
		passes := slices.ContainsFunc(p.Passes, func(pass Pass) bool {
			return p.maySend(pass, request.Header) && pass.matches(request)
		})
		if !passes {
			continue
		}
		ofAnother := !p.sends(request.Header) &&
			(slices.ContainsFunc(providers, func(other Provider) bool { return other.sends(request.Header) }) || Sends(sources, request.Header))
		if !ofAnother {
			return p.Name, true
		}
	}
	return "", false
}

// sends reports whether only the provider can have sent a request: it has the header field of its
// delivery ID, or its signs.
func (p Provider) sends(header http.Header) bool {
	return p.Signs.exclusive() && p.Signs.mismatch(header) == "" ||
		slices.ContainsFunc(p.Sources, func(s Source) bool { return s.isSent(header) })
}

// isSent reports whether a request has the header fields of the source.
func (s Source) isSent(header http.Header) bool {
	return s.OfOneSender() && s.Signs.mismatch(header) == "" && s.hasHeaders(header)
}

// Sends reports whether a request has the header fields that identify the sender of one of the sources.
func Sends(sources []Source, header http.Header) bool {
	return slices.ContainsFunc(sources, func(s Source) bool { return s.isSent(header) })
}

func (s Source) hasHeaders(header http.Header) bool {
	if s.Kind == KindHeader {
		return len(header.Values(s.Header)) > 0
	}
	return !slices.ContainsFunc(s.Parts, func(part Source) bool {
		return part.Kind == KindHeader && !part.Optional && len(header.Values(part.Header)) == 0
	})
}

func (p Provider) maySend(pass Pass, header http.Header) bool {
	return pass.Unsigned || p.Signs.mismatch(header) == ""
}

// NeedsBody reports whether the body of a request with this header is needed to find its key or to
// see that it passes. If no provider can have sent the request, its body can stream.
func NeedsBody(sources []Source, providers []Provider, header http.Header) bool {
	isForm, _ := formType(header)
	return slices.ContainsFunc(sources, func(s Source) bool {
		return s.NeedsBody() && (isForm || !s.ReadsFormOnly()) && s.Signs.mismatch(header) == ""
	}) || slices.ContainsFunc(providers, func(p Provider) bool {
		return slices.ContainsFunc(p.Passes, func(pass Pass) bool { return pass.Pointer != "" && p.maySend(pass, header) })
	})
}

func (p Pass) matches(request Request) bool {
	values := request.Header.Values(p.Header)
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
		values = []string{found.id}
	}
	if p.Suffix != "" {
		return slices.ContainsFunc(values, func(value string) bool { return strings.HasSuffix(value, p.Suffix) })
	}
	if len(p.Values) == 0 {
		return len(values) > 0
	}
	return slices.ContainsFunc(values, func(value string) bool { return slices.Contains(p.Values, value) })
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
