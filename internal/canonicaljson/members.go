package canonicaljson

import (
	"bytes"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"
)

// Members calls each for the members of a JSON object, in order, with the name as written, and the
// offsets at which the value starts and ends. A name may occur more than once. Members checks the
// grammar of RFC 8259 and that there are at most 10,000 levels of nesting, but not whether the text is
// UTF-8.
//
// Members allocates nothing. Unlike jsontext's Decoder, it does not change the text, so that concurrent
// replays can read it.
//
// If the text is not a JSON object, or is cut off, Members returns an error after it has called each for
// the members before the error. The value of the member that has the error extends to the end of the
// text.
func Members(text []byte, each func(name []byte, begin, end int)) error {
	if err := checkLength(text); err != nil {
		return err
	}
	p := parser{Document: &Document{text: text}}
	if p.skipSpace() != '{' {
		return p.syntaxError("an object must begin here")
	}
	p.offset++
	if p.skipSpace() == '}' {
		p.offset++
		return p.end()
	}
	for {
		name, err := p.name()
		if err != nil {
			return err
		}
		p.skipSpace()
		begin := p.offset
		if err := p.skip(); err != nil {
			each(p.raw(name), begin, len(text))
			return err
		}
		each(p.raw(name), begin, p.offset)
		if p.skipSpace() != ',' {
			break
		}
		p.offset++
	}
	if err := p.closing('}'); err != nil {
		return err
	}
	return p.end()
}

// skip reads a value within an object. It needs no memory for the levels of nesting, unlike
// [parser.parse], which keeps nodes.
func (p *parser) skip() error {
	var objects [maxDepth/64 + 1]uint64 // one bit for each level: whether it is an object
	isObject := func(level int) bool { return objects[level/64]>>(level%64)&1 == 1 }
	for depth := 0; ; {
		if depth > 0 && isObject(depth) {
			if _, err := p.name(); err != nil {
				return err
			}
		}
		c := p.skipSpace()
		if c == '{' || c == '[' {
			p.offset++
			if depth++; depth >= maxDepth {
				return fmt.Errorf("not JSON with at most %d levels of nesting", maxDepth)
			}
			objects[depth/64] &^= 1 << (depth % 64)
			if c == '{' {
				objects[depth/64] |= 1 << (depth % 64)
			}
			if c := p.skipSpace(); c != '}' && c != ']' {
				continue
			}
		} else if err := p.readScalar(c); err != nil {
			return err
		}
		for depth > 0 && p.skipSpace() != ',' {
			want := byte(']')
			if isObject(depth) {
				want = '}'
			}
			if err := p.closing(want); err != nil {
				return err
			}
			depth--
		}
		if depth == 0 {
			return nil
		}
		p.offset++
	}
}

// IsString reports whether a JSON value is the string with this text, regardless of escapes.
func IsString(value []byte, text string) bool {
	const longest = len(`\u0000`) // form of a byte of the text
	if last := len(value) - 1; last < 1 || value[0] != '"' || value[last] != '"' || last > longest*len(text)+1 {
		return false
	}
	if bytes.IndexByte(value, '\\') < 0 {
		return string(value[1:len(value)-1]) == text
	}
	unquoted, err := jsontext.AppendUnquote(nil, value)
	return err == nil && string(unquoted) == text
}
