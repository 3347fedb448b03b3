package delivery

import (
	"github.com/go-json-experiment/json/jsontext"

	"github.com/caddy-dedup/caddy-dedup/internal/canonicaljson"
)

// contentVersion labels the hash of a content. Whoever changes how a content is
// hashed must change the label too.
const contentVersion = "caddy-dedup content v1"

// parsedBody is a request's body, read and parsed at most once.
type parsedBody struct {
	read, parsed    bool
	body            []byte
	doc             *canonicaljson.Document
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

// bytes returns the body. If the body is empty, the error is an absentError.
func (p *parsedBody) bytes(read func() ([]byte, error)) ([]byte, error) {
	if !p.read {
		p.read = true
		if read != nil {
			p.body, p.bodyErr = read()
		}
		if p.bodyErr == nil && len(p.body) == 0 {
			p.bodyErr = absentError("the body is empty")
		}
	}
	return p.body, p.bodyErr
}

// document returns the body as JSON. If the body is empty, the error is an absentError,
// and if it is not JSON an unusableError: any member may be in it.
func (p *parsedBody) document(read func() ([]byte, error)) (*canonicaljson.Document, error) {
	body, err := p.bytes(read)
	if err != nil {
		return nil, err
	}
	if !p.parsed {
		p.parsed = true
		if p.doc, err = canonicaljson.Parse(body); err != nil {
			p.docErr = unusable("the body is %v", err)
		}
	}
	return p.doc, p.docErr
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
			return item{}, unusable("%s is a number with an exponent that is too large", pointer)
		}
		return item{kind: kindJSONNumber, id: number}, nil
	case jsontext.KindNull:
		return item{}, absent("%s is null, neither a string nor a number", pointer)
	default:
		return item{}, unusable("%s is neither a string nor a number", pointer)
	}
}

// content returns the hash of the body. If the body is JSON, the hash is over its
// canonical form without the excluded members; else it is over its bytes. An empty
// body has no ID, because many different requests have an empty body.
func (f finder) content() (item, error) {
	content, err := f.request.parsed.bytes(f.request.Body)
	if err != nil {
		return item{}, err
	}
	form := "bytes"
	if doc, err := f.request.parsed.document(f.request.Body); err == nil {
		if canonical, err := doc.Canonical(f.request.Exclude...); err == nil {
			form, content = "json", canonical
		}
	}
	hash := newTuple(contentVersion)
	hash.write([]byte(form))
	hash.write(content)
	return item{kind: KindContent, id: hash.sum()}, nil
}
