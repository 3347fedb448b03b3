package canonicaljson

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// Document is a parsed JSON text. It refers to the bytes of the text, which must not change while the
// document is in use. It is not safe for concurrent use.
type Document struct {
	text    []byte
	nodes   []node
	scratch []byte // for strings with escapes; nil until there is one
	longest int    // upper bound of the length of a string, in bytes
}

// node is one value of a document. Nodes are in the order of the text: the members or elements of a
// value follow it.
type node struct {
	name  span   // empty unless it is a member
	value uint32 // where it starts in the text
	// end is, for an object or array, the number of the first node after its members or elements. For
	// another value it is the offset in the text at which the value ends.
	end uint32
	// sorted is the number of the member that takes this member's position when the members are
	// sorted by name, none if no member does: of two with the same name, only the last counts. For a
	// value that is not a member it is the value's own number.
	sorted uint32
}

// span is a part of the text, such as a string with its quotes and escapes.
type span struct{ start, end uint32 }

func (d *Document) raw(s span) []byte { return d.text[s.start:s.end] }

// kind returns the kind of a node.
func (d *Document) kind(i uint32) jsontext.Kind {
	if c := d.text[d.nodes[i].value]; c != '-' && (c < '0' || '9' < c) {
		return jsontext.Kind(c)
	}
	return jsontext.KindNumber
}

// isScalar reports whether a node is neither an object nor an array.
func (d *Document) isScalar(i uint32) bool {
	c := d.text[d.nodes[i].value]
	return c != '{' && c != '['
}

// children yields the members of an object or the elements of an array.
func (d *Document) children(of uint32) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		if d.isScalar(of) {
			return
		}
		for i, end := of+1, d.nodes[of].end; i < end; i = d.after(i) {
			if !yield(i) {
				return
			}
		}
	}
}

// after returns the number of the first node after a node and its members or elements.
func (d *Document) after(i uint32) uint32 {
	if d.isScalar(i) {
		return i + 1
	}
	return d.nodes[i].end
}

// Value is a value within a document.
type Value struct {
	doc  *Document
	node uint32
}

// Root returns the whole document.
func (d *Document) Root() Value { return Value{d, 0} }

// At returns the value that a JSON pointer (RFC 6901) names, relative to this value. ok is false if
// there is none, or the pointer is invalid.
func (v Value) At(pointer string) (_ Value, ok bool) {
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
		found, ok := Value{}, false
		for member := range v.doc.children(v.node) {
			if name, err := v.doc.unquote(v.doc.raw(v.doc.nodes[member].name), 0); err == nil && string(name) == token {
				found, ok = Value{v.doc, member}, true
			}
		}
		return found, ok
	case jsontext.KindBeginArray:
		// RFC 6901, section 4: no leading zeros, and no sign.
		index, err := strconv.ParseUint(token, 10, 32)
		if err != nil || token != strconv.FormatUint(index, 10) {
			return Value{}, false
		}
		for element := range v.Elements() {
			if index == 0 {
				return element, true
			}
			index--
		}
	}
	return Value{}, false
}

// Kind returns the kind of the value.
func (v Value) Kind() jsontext.Kind { return v.doc.kind(v.node) }

// Text returns a string without its quotes and escapes; a number, true, false or null as it is in the
// text; and "" for an object or array. The only error is [ErrHalfPair].
func (v Value) Text() (string, error) {
	switch v.Kind() {
	case jsontext.KindBeginObject, jsontext.KindBeginArray:
		return "", nil
	case jsontext.KindString:
		text, err := v.doc.unquote(v.scalar(), 0)
		if err != nil {
			return "", err
		}
		return string(text), nil
	}
	return string(v.scalar()), nil
}

// IsZero reports whether the value is null, false, 0 in any form, "", [] or {}.
func (v Value) IsZero() bool {
	switch v.Kind() {
	case jsontext.KindBeginObject, jsontext.KindBeginArray:
		return v.doc.nodes[v.node].end == v.node+1
	case jsontext.KindString:
		return len(v.scalar()) == len(`""`)
	case jsontext.KindNumber:
		rest := bytes.TrimLeft(v.scalar(), "-0.")
		return len(rest) == 0 || rest[0] == 'e' || rest[0] == 'E'
	case jsontext.KindTrue:
		return false
	default:
		return true
	}
}

// scalar returns the text of a value that is neither an object nor an array.
func (v Value) scalar() []byte {
	n := v.doc.nodes[v.node]
	return v.doc.text[n.value:n.end]
}

// Names yields the names of an object's members, in order, except names with half of a surrogate pair.
// For any other value it yields nothing.
func (v Value) Names() iter.Seq[string] {
	return func(yield func(string) bool) {
		if v.Kind() != jsontext.KindBeginObject {
			return
		}
		for member := range v.doc.children(v.node) {
			if name, err := v.doc.unquote(v.doc.raw(v.doc.nodes[member].name), 0); err == nil && !yield(string(name)) {
				return
			}
		}
	}
}

// Elements yields the elements of an array, in order. For any other value it
// yields nothing.
func (v Value) Elements() iter.Seq[Value] {
	return func(yield func(Value) bool) {
		if v.Kind() != jsontext.KindBeginArray {
			return
		}
		for element := range v.doc.children(v.node) {
			if !yield(Value{v.doc, element}) {
				return
			}
		}
	}
}

// ErrHalfPair is the error for a string with an escape that is half of a surrogate pair. No text in
// UTF-8 is equal to such a string, and two different ones must not become the same text.
var ErrHalfPair = errors.New(`a string has an escape that is half of a surrogate pair`)

// unquote returns the text of a string, which the caller must not change. If the string has no escapes,
// the result is part of the document's text. Otherwise it is in the scratch, after the first used
// bytes. With [ErrHalfPair], U+FFFD replaces the half.
func (d *Document) unquote(raw []byte, used int) ([]byte, error) {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw[1 : len(raw)-1], nil
	}
	if d.scratch == nil {
		d.scratch = make([]byte, 0, 2*d.longest)
	}
	text, err := jsontext.AppendUnquote(d.scratch[used:used], raw)
	if err != nil { // Parse refuses a string with any other error
		return text, ErrHalfPair
	}
	return text, nil
}

// CheckPointer returns an error if a JSON pointer (RFC 6901) is invalid. The empty pointer is valid: it
// names the whole document.
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
