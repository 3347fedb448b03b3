package delivery

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/caddy-dedup/caddy-dedup/internal/canonicaljson"
)

// Request is the part of a request that sources read.
type Request struct {
	// Header is the header of the request.
	Header http.Header
	// Body returns the whole body, or [ErrBodyTooLarge]. [Find] calls it at most once, and
	// only for a source that needs the body. Nil means an empty body.
	Body func() ([]byte, error)
	// Replace returns a text with its placeholders replaced. If a placeholder has no value, it
	// returns "": the rest of the text would be the same ID for many requests. Errors are those
	// of [Request.Member].
	Replace func(text string) (value string, err error)
	// Exclude are JSON pointers (RFC 6901) to the members that a source of kind
	// content leaves out.
	Exclude []string
	// Content returns what a source of kind content has as the ID, in place of the hash of the body, by that
	// body, nil if it is not JSON. Nil means the hash.
	Content func(body *canonicaljson.Document) (string, error)
	// Signed reports whether the sender signs the body and not its Content-Type. Which kind of form the
	// body is, is then known from the body alone.
	Signed bool
	// LastCounts reports whether the last of several members with the same name counts. By default, a body
	// with such members is not JSON.
	LastCounts bool
	// Reserve reserves the bytes for the parsed body before they are allocated. Its error,
	// [ErrBodyTooLarge] or another, is returned to the caller. Nil means no limit.
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
	// Prefix separates the IDs of one source from those of others. It is [Source.Provider], else the name
	// of the header field in lower case, else the kind of the source.
	Prefix string
	// ID has from 1 byte to the maxLength of [Find]. An ID from a header field has only bytes
	// from 0x20 to 0x7E; other IDs are UTF-8.
	//
	// A source of kind content has a hash as its ID. For parts, the ID is that of the first
	// part, and for a batch that of the first element.
	ID string
	// Parts are the IDs of the other parts that are present; nil for other kinds.
	Parts []string
	// Tuple is a hash over all parts, or over the IDs of a batch; "" for other kinds.
	Tuple string
	// Scope is what the provider adds to the scope: for each of its header fields the name in
	// lower case, the number of lines in decimal, and the lines. The number distinguishes an
	// absent field from an empty one, and a line from the name of the next field.
	Scope []string
	// Content is [Source.MadeOfContent].
	Content bool
}

var (
	// ErrMissing is the error if none of the sources is present in the request.
	ErrMissing = errors.New("the request has no idempotency key or delivery ID")
	// ErrUnusable is the error if a member of the body or a text is present in the request and cannot
	// be its ID, and no other source is present.
	ErrUnusable = errors.New("the request has no usable idempotency key or delivery ID")
	// ErrBodyTooLarge is the error of [Request.Body] for a body that is too large to be held in
	// memory.
	ErrBodyTooLarge = errors.New("the body is larger than max_request_body")
)

// missingError is why a source has no ID in a request. An optional part is then absent only if
// the source is: otherwise requests with other values would have the same key.
type missingError struct {
	kind   missingKind
	reason string // empty for a header field that is absent
}

type missingKind int

const (
	isAbsent missingKind = iota
	// isUnknown is a source in a body that is not JSON, which may contain any member.
	isUnknown
	// isUnusable is a source whose value cannot be an ID.
	isUnusable
)

func (e missingError) Error() string { return e.reason }

// Is reports whether the error is ErrUnusable.
func (e missingError) Is(target error) bool { return target == ErrUnusable && e.kind == isUnusable }

func absent(format string, arguments ...any) error {
	return missingError{isAbsent, fmt.Sprintf(format, arguments...)}
}

func unusable(format string, arguments ...any) error {
	return missingError{isUnusable, fmt.Sprintf(format, arguments...)}
}

// errNoField is the error for an absent header field. It is allocated once, and not for every request.
var errNoField error = missingError{}

// isMissing reports whether an error is a missingError.
func isMissing(err error) bool {
	_, is := errors.AsType[missingError](err)
	return is
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
//   - [ErrMissing] if no source is present, [ErrUnusable] if only sources are present whose values
//     cannot be IDs. The text explains why a source in the body has no ID, and why the request is not
//     from the provider of a source.
//   - An [InvalidError] if the first source that is present is a header field
//     without a valid ID. Later sources are not tried, because the client meant this field.
//   - [ErrBodyTooLarge] if a source needs the body, the body is too large, and no
//     other source is present; of a form it may be [ErrTooManyFields].
//   - The error of [Request.Body] if the body could not be read, and of [Request.Reserve].
func Find(sources []Source, request Request, maxLength int) (Found, error) {
	f := finder{request: request.Remember(), maxLength: maxLength}
	var reasons []string
	var tooLarge error
	missing := ErrMissing
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
			if errors.Is(err, ErrUnusable) {
				missing = ErrUnusable
			}
			reason := err.Error()
			if reason == "" && source.Provider != "" {
				reason = "it is absent" // API requests without a key need no explanation
			}
			if reason != "" {
				reasons = append(reasons, source.String()+": "+reason)
			}
			continue
		case errors.Is(err, ErrBodyTooLarge):
			tooLarge = err // a later source may not need the body
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
	if tooLarge != nil {
		return Found{}, tooLarge
	}
	if len(reasons) > 0 {
		return Found{}, fmt.Errorf("%w: %s", missing, strings.Join(reasons, "; "))
	}
	return Found{}, missing
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
	case KindForm:
		return f.form(source.Field)
	case KindValue:
		return f.value(source.Text)
	case KindContent:
		return f.content()
	case KindParts:
		return f.parts(source)
	default:
		return f.batch(source.Batch)
	}
}

func (f finder) header(name string) (item, error) {
	lines := f.request.Header.Values(name)
	if len(lines) == 0 {
		return item{}, errNoField
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
