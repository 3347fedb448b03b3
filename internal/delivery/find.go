package delivery

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"
)

// Request is what sources read from.
type Request struct {
	// Header is the request's header. A field counts under its canonical name
	// and under its name in lower case.
	Header http.Header
	// Body returns the whole body, or [ErrBodyTooLarge]. It is called at most
	// once by [Find], and only if a source that needs the body is tried. A
	// request without it has an empty body.
	Body func() ([]byte, error)
	// Replace returns a text with its placeholders replaced, and an empty one
	// where a placeholder in it is empty: the rest of the text alone would be one
	// ID for many requests.
	Replace func(text string) (value string)
	// Exclude are the JSON pointers (RFC 6901) to what is left out of content.
	Exclude []string

	parsed *parsedBody
}

// Found is the delivery ID that a request carries.
type Found struct {
	// Provider is that of the source; empty for a source of the user's own.
	Provider string
	// Kind is that of the source; but a number in a JSON body has one of its own,
	// so that 1 and "1" are different IDs.
	Kind string
	// Prefix is the provider's name, else what the user wrote, else the
	// header's name in lower case, or the kind of a source that reads no header.
	Prefix string
	// ID has 1 to the maximum length of bytes. Those of an ID from a header
	// field are all within 0x20 to 0x7E; others are UTF-8. The ID of a content is
	// its hash; that of parts and of a batch says how many IDs it is made of and
	// what the first one is, and ends in a hash over all of them. These may be
	// longer than the maximum.
	ID string
	// Scope is what the provider's preset adds to the scope: for each of its
	// fields the name in lower case, the number of lines in decimal, and the
	// lines. The number keeps an absent field apart from an empty one, and a
	// line apart from the next field's name.
	Scope []string
	// Content says that the ID is made of the body's content.
	Content bool
}

var (
	// ErrMissing says that none of the sources is present in the request.
	ErrMissing = errors.New("the request has no idempotency key or delivery ID")
	// ErrBodyTooLarge is what [Request.Body] returns for a body that is larger
	// than may be held.
	ErrBodyTooLarge = errors.New("the body is larger than max_request_body")
)

// absentError says why a source has no ID in a request. It is empty for a
// header field, which simply is not there.
type absentError string

func (e absentError) Error() string { return string(e) }

func absent(format string, arguments ...any) error {
	return absentError(fmt.Sprintf(format, arguments...))
}

// item is an ID that a source has found, before the rules for lengths and
// prefixes of whole keys.
type item struct{ kind, id string }

// Find returns the delivery ID of the first source that is present, with no
// more than maxLength bytes.
//
// The error is [ErrMissing] if no source is present; its text says why, where a
// source could not read the body. It is an [*InvalidError] if the first source
// present is a header field without a valid ID; the sources behind it are then
// not tried. It is [ErrBodyTooLarge] if a source that needs the body could not
// have it and no other is present, and that of [Request.Body] if the body could
// not be read.
func Find(sources []Source, request Request, maxLength int) (Found, error) {
	f := finder{request: request.Remember(), maxLength: maxLength}
	var reasons []string
	tooLarge := false
	for _, source := range sources {
		found, err := f.find(source)
		var reason absentError
		switch {
		case errors.As(err, &reason):
			if reason != "" {
				reasons = append(reasons, source.String()+": "+string(reason))
			}
			continue
		case errors.Is(err, ErrBodyTooLarge):
			tooLarge = true // a source behind may need no body
			continue
		case err != nil:
			return Found{}, err
		}
		return Found{
			Provider: source.Provider,
			Kind:     found.kind,
			Prefix:   source.prefix(),
			ID:       found.id,
			Scope:    headerScope(request.Header, source.ScopeHeaders),
			Content:  source.MadeOfContent(),
		}, nil
	}
	if tooLarge {
		return Found{}, ErrBodyTooLarge
	}
	if len(reasons) > 0 {
		return Found{}, fmt.Errorf("%w: %s", ErrMissing, strings.Join(reasons, "; "))
	}
	return Found{}, ErrMissing
}

// finder looks for the ID of one request.
type finder struct {
	request   Request
	maxLength int
}

func (f finder) find(source Source) (item, error) {
	switch source.Kind {
	case KindHeader:
		return f.header(source.Header)
	case KindJSON:
		return f.json(source.Pointer)
	case KindValue:
		return f.value(source.Text)
	case KindContent:
		return f.content()
	case KindParts:
		return f.parts(source.Parts)
	case KindBatch:
		return f.batch(source.Batch)
	default:
		return item{}, fmt.Errorf("source kind %q is unknown; it must be %s", source.Kind, acceptedKinds)
	}
}

func (f finder) header(name string) (item, error) {
	lines := headerLines(f.request.Header, name)
	if len(lines) == 0 {
		return item{}, absentError("")
	}
	id, err := headerID(name, lines, f.maxLength)
	return item{KindHeader, id}, err
}

func (f finder) json(pointer string) (item, error) {
	doc, err := f.request.parsed.document(f.request.Body)
	if err != nil {
		return item{}, err
	}
	found, err := member(doc.Root(), pointer)
	if err != nil {
		return item{}, err
	}
	return found, f.checkLength(found.id)
}

func (f finder) value(text string) (item, error) {
	var id string
	if f.request.Replace != nil {
		id = f.request.Replace(text)
	}
	switch {
	case id == "":
		return item{}, absent("it is empty")
	case !utf8.ValidString(id):
		return item{}, absent("it is not UTF-8")
	}
	return item{KindValue, id}, f.checkLength(id)
}

func (f finder) checkLength(id string) error {
	if len(id) > f.maxLength {
		return absent("it has %d bytes; an ID has at most %d", len(id), f.maxLength)
	}
	return nil
}
