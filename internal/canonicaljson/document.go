package canonicaljson

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Document is a JSON text that has been read. It refers to the bytes of the text,
// so these must not change while the document is in use.
type Document struct {
	text  []byte
	nodes []jsonNode
}

// jsonNode is one value of a document. The nodes lie in the order of the text: the
// members or elements of a value come right after it, and next is the number of
// the first node that is not part of it.
type jsonNode struct {
	kind        jsontext.Kind
	value, name jsonSpan // value: empty for an object or array; name: empty unless it is a member
	next        uint32
}

// jsonSpan is a piece of the text: a string with its quotes and escapes, for
// example.
type jsonSpan struct{ start, end uint32 }

// Parse reads a JSON text (RFC 8259), behind a byte order mark or not. These are errors: two members of one object
// with the same name, invalid UTF-8, anything after the value, more than 10,000
// levels of nesting, a text of 2 GiB or more. Time and memory grow linearly with
// the text, whatever is in it. No error quotes the text, because it may be secret
// and errors are logged.
//
// An escape that is half of a surrogate pair, such as `\ud83d` alone, is JSON (RFC
// 8259, section 8.2): senders write it where they cut a text in the middle of an emoji.
// Only what needs that very string cannot have it. Two names with such an escape count
// as the same.
func Parse(text []byte) (*Document, error) {
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	if len(text) > math.MaxInt32 {
		return nil, fmt.Errorf("the text has %d bytes; it must have at most %d", len(text), math.MaxInt32)
	}
	if !utf8.Valid(text) {
		return nil, fmt.Errorf("not JSON at byte %d: invalid UTF-8", validBytes(text))
	}
	d := jsontext.NewDecoder(bytes.NewBuffer(text), jsontext.AllowInvalidUTF8(true)) // for the halves of pairs alone
	doc := &Document{text: text}
	var open []uint32 // the objects and arrays around the next value
	var name jsonSpan // the name of the next value; empty until the name is read
	for first := true; first || len(open) > 0; first = false {
		switch kind := d.PeekKind(); kind {
		case jsontext.KindBeginObject, jsontext.KindBeginArray:
			if _, err := d.ReadToken(); err != nil {
				return nil, jsonError(err)
			}
			open = append(open, uint32(len(doc.nodes)))
			doc.nodes = append(doc.nodes, jsonNode{kind: kind, name: name})
			name = jsonSpan{}
		case jsontext.KindEndObject, jsontext.KindEndArray:
			if _, err := d.ReadToken(); err != nil {
				return nil, jsonError(err)
			}
			doc.nodes[open[len(open)-1]].next = uint32(len(doc.nodes))
			open = open[:len(open)-1]
		default:
			raw, err := d.ReadValue()
			if err != nil {
				return nil, jsonError(err)
			}
			end := uint32(d.InputOffset())
			span := jsonSpan{end - uint32(len(raw)), end}
			inObject := len(open) > 0 && doc.nodes[open[len(open)-1]].kind == jsontext.KindBeginObject
			if inObject && name == (jsonSpan{}) {
				name = span
				continue
			}
			next := uint32(len(doc.nodes)) + 1
			doc.nodes = append(doc.nodes, jsonNode{kind: kind, value: span, name: name, next: next})
			name = jsonSpan{}
		}
	}
	switch _, err := d.ReadToken(); {
	case err == nil:
		return nil, errors.New("more than one JSON value")
	case !errors.Is(err, io.EOF):
		return nil, jsonError(err)
	}
	return doc, nil
}

// validBytes returns how many bytes a text has before the first that is not UTF-8.
func validBytes(text []byte) (n int) {
	for {
		r, size := utf8.DecodeRune(text[n:])
		if r == utf8.RuneError && size <= 1 {
			return n
		}
		n += size
	}
}

// jsonError says at which byte the error is. The library also says at which JSON
// pointer, but that quotes member names, which may be long or secret.
func jsonError(err error) error {
	var syntax *jsontext.SyntacticError
	if errors.As(err, &syntax) {
		return fmt.Errorf("not JSON at byte %d: %w", syntax.ByteOffset, syntax.Err)
	}
	return fmt.Errorf("not JSON: %w", err)
}

// Value is a value within a document.
type Value struct {
	doc  *Document
	node uint32
}

// Root returns the whole document.
func (d *Document) Root() Value { return Value{d, 0} }

// At returns the value that a JSON pointer (RFC 6901) names, starting from this
// value, and whether there is one. A text that is not a JSON pointer names no
// value.
func (v Value) At(pointer string) (Value, bool) {
	if CheckPointer(pointer) != nil {
		return Value{}, false
	}
	for token := range jsontext.Pointer(pointer).Tokens() {
		child, ok := v.child(token)
		if !ok {
			return Value{}, false
		}
		v = child
	}
	return v, true
}

// child returns the member with this name or the element with this index.
func (v Value) child(token string) (Value, bool) {
	switch v.Kind() {
	case jsontext.KindBeginObject:
		for member := range v.children() {
			if name, err := v.doc.unquoted(v.doc.nodes[member.node].name); err == nil && string(name) == token {
				return member, true
			}
		}
	case jsontext.KindBeginArray:
		// RFC 6901, section 4: no leading zeros, and no sign.
		index, err := strconv.ParseUint(token, 10, 32)
		if err != nil || token != strconv.FormatUint(index, 10) {
			return Value{}, false
		}
		for element := range v.children() {
			if index == 0 {
				return element, true
			}
			index--
		}
	}
	return Value{}, false
}

// Kind returns whether the value is an object, an array, a string, a number, true,
// false or null.
func (v Value) Kind() jsontext.Kind { return v.doc.nodes[v.node].kind }

// Text returns a string without its quotes and escapes; a number, true, false or
// null as the document writes it; and an empty text for an object or array. The error
// is [ErrHalfPair].
func (v Value) Text() (string, error) {
	n := v.doc.nodes[v.node]
	if n.kind == jsontext.KindString {
		text, err := v.doc.unquoted(n.value)
		return string(text), err
	}
	return string(v.doc.text[n.value.start:n.value.end]), nil
}

// Elements yields the elements of an array, in order. For any other value it
// yields nothing.
func (v Value) Elements() iter.Seq[Value] {
	if v.Kind() != jsontext.KindBeginArray {
		return func(func(Value) bool) {}
	}
	return v.children()
}

// children yields the members of an object or the elements of an array.
func (v Value) children() iter.Seq[Value] {
	return func(yield func(Value) bool) {
		nodes := v.doc.nodes
		for i := v.node + 1; i < nodes[v.node].next; i = nodes[i].next {
			if !yield(Value{v.doc, i}) {
				return
			}
		}
	}
}

// ErrHalfPair is the error of a string with an escape that is half of a surrogate pair:
// no text in UTF-8 is equal to it, and different ones must not become one.
var ErrHalfPair = errors.New(`a string has an escape that is half of a surrogate pair`)

// unquoted returns the text of a string, or [ErrHalfPair]. If the string has no escapes,
// the result is part of the document's text, and must not be changed.
func (d *Document) unquoted(span jsonSpan) ([]byte, error) {
	raw := d.text[span.start:span.end]
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw[1 : len(raw)-1], nil
	}
	text, err := jsontext.AppendUnquote(nil, raw)
	if err != nil { // all else that is wrong with a string ended the reading
		return nil, ErrHalfPair
	}
	return text, nil
}

// CheckPointer says what is wrong with a JSON pointer (RFC 6901); nil means
// nothing. The empty pointer is valid: it names the whole document.
func CheckPointer(pointer string) error {
	switch {
	case jsontext.Pointer(pointer).IsValid():
		return nil
	case pointer[0] != '/':
		return fmt.Errorf("JSON pointer %q must start with a slash, such as /id or /data/0/id", pointer)
	default:
		return fmt.Errorf("JSON pointer %q must be UTF-8, and write ~ in a name as ~0 and / as ~1", pointer)
	}
}
