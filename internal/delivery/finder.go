package delivery

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"
)

// Request is the part of a request that sources read.
type Request struct {
	// Header is the header of the request. A field is looked up under its canonical
	// name and under its name in lower case.
	Header http.Header
	// Body returns the whole body, or [ErrBodyTooLarge]. [Find] calls it at most
	// once, and only if it tries a source that needs the body. Nil means that the
	// body is empty.
	Body func() ([]byte, error)
	// Replace returns a text with its placeholders replaced. If a placeholder has no
	// value, it returns an empty text: the rest of the text alone would be the same
	// ID for many requests. An error is from [Request.Member].
	Replace func(text string) (value string, err error)
	// Exclude are JSON pointers (RFC 6901) to the members that a source of kind
	// content leaves out.
	Exclude []string
	// Reserve is asked for the bytes that the body takes when it is parsed, before they are
	// allocated. Its error, [ErrBodyTooLarge] or another, is that of what needed them. Nil means
	// that there is room.
	Reserve func(bytes int) error

	parsed *parsedBody
}

// Found is the delivery ID that a request carries.
type Found struct {
	// Provider is [Source.Provider].
	Provider string
	// Kind is [Source.Kind], except for a number in a JSON body: 1 and "1" are
	// different IDs, and so they have different kinds.
	Kind string
	// Prefix is the first of these that is not empty: the name of the provider, the
	// word that the user has configured, the name of the header field in lower case,
	// the kind of the source.
	Prefix string
	// ID has at least 1 byte, and at most as many as [Find] was told. An ID from a
	// header field has only bytes from 0x20 to 0x7E; other IDs are UTF-8.
	//
	// A source of kind content has a hash as its ID. For parts, the ID is that of the first one.
	// For a batch, the ID says how many IDs it is made of and what the first one is, and ends
	// with a hash over all of them, so that it may be longer than the limit.
	ID string
	// Parts are the IDs of the other parts that are present, and Tuple is a hash over all parts.
	// Both are empty for other kinds.
	Parts []string
	Tuple string
	// Scope is what the provider adds to the scope. For each of its header fields it
	// has the name in lower case, the number of lines in decimal, and the lines.
	// With the number, an absent field is not the same as an empty one, and a line
	// is not read as the name of the next field.
	Scope []string
	// Content is [Source.MadeOfContent].
	Content bool
}

var (
	// ErrMissing says that none of the sources is present in the request.
	ErrMissing = errors.New("the request has no idempotency key or delivery ID")
	// ErrBodyTooLarge is what [Request.Body] returns for a body that is larger than
	// may be kept in memory.
	ErrBodyTooLarge = errors.New("the body is larger than max_request_body")
)

// absentError says that what a source reads is not in the request, and why. For a
// header field it is empty: there is no more to say.
type absentError string

func (e absentError) Error() string { return string(e) }

func absent(format string, arguments ...any) error {
	return absentError(fmt.Sprintf(format, arguments...))
}

// unusableError says that what a source reads may be in the request, and why it is no
// ID. A source on its own is as good as absent then. An optional part is not: other
// requests, with other values there, would have the same key.
type unusableError string

func (e unusableError) Error() string { return string(e) }

func unusable(format string, arguments ...any) error {
	return unusableError(fmt.Sprintf(format, arguments...))
}

// isMissing reports whether an error says that a source has no ID for a request.
func isMissing(err error) bool {
	if err == nil {
		return false
	}
	_, absent := errors.AsType[absentError](err)
	_, unusable := errors.AsType[unusableError](err)
	return absent || unusable
}

// item is an ID that a source has found, with its kind.
type item struct {
	kind, id string
	parts    []string // as [Found.Parts]
	tuple    string   // as [Found.Tuple]
}

// Find tries the sources in their order, and returns the delivery ID of the first
// one that is present in the request. An ID has no more than maxLength bytes.
//
// Errors:
//   - [ErrMissing] if no source is present. Its text says why a source in the body
//     is not present, and why the request is not from a source's provider.
//   - An [*InvalidError] if the first source that is present is a header field
//     without a valid ID. No further source is tried, because the client meant
//     this field.
//   - [ErrBodyTooLarge] if a source needs the body, the body is too large, and no
//     other source is present.
//   - The error of [Request.Body] if the body could not be read, and of [Request.Reserve].
func Find(sources []Source, request Request, maxLength int) (Found, error) {
	f := finder{request: request.Remember(), maxLength: maxLength}
	var reasons []string
	tooLarge := false
	for _, source := range sources {
		if reason := source.Signs.mismatch(request.Header); reason != "" {
			reason = "not from " + source.Provider + ": " + reason
			if !slices.Contains(reasons, reason) {
				reasons = append(reasons, reason)
			}
			continue
		}
		found, err := f.find(source)
		switch {
		case isMissing(err):
			reason := err.Error()
			if reason == "" && source.Provider != "" {
				reason = "it is not there" // an API's request without a key is nothing to explain
			}
			if reason != "" {
				reasons = append(reasons, source.String()+": "+reason)
			}
			continue
		case errors.Is(err, ErrBodyTooLarge):
			tooLarge = true // but one of the next sources may need no body
			continue
		case err != nil:
			return Found{}, err
		}
		return Found{
			Provider: source.Provider,
			Kind:     found.kind,
			Prefix:   source.prefix(),
			ID:       found.id,
			Parts:    found.parts,
			Tuple:    found.tuple,
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
	return item{kind: KindHeader, id: id}, err
}

func (f finder) json(pointer string) (item, error) {
	doc, err := f.request.document()
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
	var err error
	if f.request.Replace != nil {
		id, err = f.request.Replace(text)
	}
	switch {
	case err != nil:
		return item{}, err
	case id == "":
		return item{}, absent("it is empty")
	case !utf8.ValidString(id):
		return item{}, unusable("it is not UTF-8")
	}
	return item{kind: KindValue, id: id}, f.checkLength(id)
}

func (f finder) checkLength(id string) error {
	if len(id) > f.maxLength {
		return unusable("it has %d bytes; an ID has at most %d", len(id), f.maxLength)
	}
	return nil
}
