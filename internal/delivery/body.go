package delivery

import (
	"errors"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/caddy-dedup/caddy-dedup/internal/canonicaljson"
)

// contentVersion labels the hash of a body. A change of what is hashed must change the label.
const contentVersion = "caddy-dedup content v1"

// parsedBody is a request's body, read and parsed at most once.
type parsedBody struct {
	read, parsed    bool
	body            []byte
	doc             *canonicaljson.Document
	hasFormRoom     bool  // of [Request.roomForForm]
	noRoom          error // of [Request.Reserve]
	bodyErr, docErr error
}

// Remember returns a request that remembers its body: all calls of [Find] and
// [PassThrough] with it together read and parse the body only once.
func (r Request) Remember() Request {
	if r.parsed == nil {
		r.parsed = new(parsedBody)
	}
	return r
}

// bytes returns the body. If the body is empty, the source is absent.
func (p *parsedBody) bytes(read func() ([]byte, error)) ([]byte, error) {
	if !p.read {
		p.read = true
		if read != nil {
			p.body, p.bodyErr = read()
		}
		if p.bodyErr == nil && len(p.body) == 0 {
			p.bodyErr = absent("the body is empty")
		}
	}
	return p.body, p.bodyErr
}

// document returns the body as JSON. The error is a missingError if the body is empty or not JSON,
// or that of [Request.Reserve].
func (r Request) document() (*canonicaljson.Document, error) {
	p := r.parsed
	body, err := p.bytes(r.Body)
	if err != nil {
		return nil, err
	}
	if !p.parsed {
		p.parsed = true
		if r.LastCounts { // a function in a variable would make the request escape to the heap
			p.doc, p.docErr = canonicaljson.ParseLast(body, r.room)
		} else {
			p.doc, p.docErr = canonicaljson.Parse(body, r.room)
		}
		if p.docErr != nil && p.noRoom == nil {
			p.docErr = missingError{isUnknown, fmt.Sprintf("the body is %v", p.docErr)}
		}
	}
	return p.doc, p.docErr
}

// Parsed returns the body of a request that remembers it, if it was parsed and is JSON, else nil.
func (r Request) Parsed() *canonicaljson.Document {
	if r.parsed == nil || r.parsed.docErr != nil {
		return nil
	}
	return r.parsed.doc
}

// room reserves memory and remembers a failure.
func (r Request) room(bytes int) error {
	if r.Reserve != nil {
		r.parsed.noRoom = r.Reserve(bytes)
	}
	return r.parsed.noRoom
}

// Document returns the body as JSON, or nil if it is not JSON. Errors are those of [Request.Body] and
// [Request.Reserve].
func (r Request) Document() (*canonicaljson.Document, error) {
	doc, err := r.document()
	if isMissing(err) {
		return nil, nil
	}
	return doc, err
}

// member returns the ID at a pointer: a string that is not empty, or a number.
func member(from canonicaljson.Value, pointer string) (item, error) {
	v, ok := from.At(pointer)
	if !ok {
		return item{}, absent("%s is not in the body", pointer)
	}
	text, err := v.Text()
	if err != nil {
		return item{}, unusable("%s: %v", pointer, err)
	}
	switch v.Kind() {
	case jsontext.KindString:
		if text != "" {
			return item{kind: KindJSON, id: text}, nil
		}
		return item{}, absent("%s is an empty string", pointer)
	case jsontext.KindNumber:
		number, ok := exactNumber(text)
		if !ok {
			return item{}, unusable("%s is a number that is too long or has too large an exponent", pointer)
		}
		return item{kind: kindJSONNumber, id: number}, nil
	case jsontext.KindNull:
		return item{}, absent("%s is null, neither a string nor a number", pointer)
	default:
		return item{}, unusable("%s is neither a string nor a number", pointer)
	}
}

// Member returns the member of the body that a JSON pointer names: a string as it is, a number,
// true and false as they are written, an object or an array in canonical form (RFC 8785), and ""
// for null and where there is no such member.
//
// An error is [ErrBodyTooLarge], that of [Request.Body], or the reason why the member cannot be part of
// a key or a scope: the body is not JSON, or, with [ErrUnusable], the member is not a text. For an
// object or an array, Member returns the text along with the error.
func (r Request) Member(pointer string) (string, error) {
	doc, err := r.document()
	if missing, is := errors.AsType[missingError](err); is && missing.kind == isAbsent {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	v, ok := doc.Root().At(pointer)
	if !ok {
		return "", nil
	}
	switch v.Kind() {
	case jsontext.KindNull:
		return "", nil
	case jsontext.KindBeginObject, jsontext.KindBeginArray:
		text, err := v.Canonical(r.room)
		if r.parsed.noRoom != nil {
			return "", r.parsed.noRoom
		}
		if err == nil {
			err = errors.New("it is an object or an array")
		}
		return text, unusable("%s: %v", pointer, err)
	}
	text, err := v.Text()
	if err != nil {
		return "", unusable("%s: %v", pointer, err)
	}
	return text, nil
}

// content returns the hash of the body. If the body is JSON, the hash is over its
// canonical form without the excluded members, and for a multipart body over its parts; else it is over its
// bytes. An empty
// body has no ID, because many different requests have an empty body.
func (f finder) content() (item, error) {
	content, err := f.request.parsed.bytes(f.request.Body)
	if err != nil {
		return item{}, err
	}
	doc, err := f.request.Document()
	if err != nil {
		return item{}, err
	}
	if f.request.Content != nil {
		id, err := f.request.Content(doc)
		return item{kind: KindContent, id: id}, err
	}
	if doc != nil {
		hash := contentTuple("json")
		if err := doc.WriteCanonical(hash.hash, f.request.Exclude...); err == nil {
			return item{kind: KindContent, id: hash.sum()}, nil
		}
	}
	parts, err := f.request.Multipart(slices.Values([][]byte{content}))
	if err != nil {
		return item{}, err
	}
	if parts != "" {
		hash := contentTuple("multipart")
		hash.write([]byte(parts))
		return item{kind: KindContent, id: hash.sum()}, nil
	}
	hash := contentTuple("bytes")
	hash.hash.Write(content)
	return item{kind: KindContent, id: hash.sum()}, nil
}

// contentTuple returns the tuple for a body. The body is written last and without its length: the
// canonical form is hashed while it is generated.
func contentTuple(form string) tuple {
	hash := newTuple(contentVersion)
	hash.write([]byte(form))
	return hash
}
