// Package canonicaljson reads a JSON text once, and writes it in the canonical
// form of RFC 8785: texts that differ only in the order of members, in white
// space or in the way a string or a number is written become the same bytes. The
// texts come from clients, so nothing here may cost more than the length of the
// text explains.
//
// It uses go-json-experiment/json for the escapes of strings, and neither that library's Decoder nor
// its Value.Canonicalize, for these reasons:
//
//   - What a text takes in memory must be known before it is allocated. The Decoder has a map of
//     the names of large objects, and its errors copy names, several times. To read 1 MiB of members
//     took 25 MB with it, and takes 2 MB here. A webhook's first delivery takes a tenth less CPU.
//   - Integers must keep their digits, because IDs are often larger than 2^53. A
//     number that no double can hold must be an error: the library writes the
//     largest double for 1e400 and for 2e400, so that two different requests
//     would look the same.
//   - The library sorts the members of an inner object, and then moves the whole
//     text of that object again for each unsorted object around it. The time is
//     quadratic in the depth: 1 MiB of objects, 10,000 deep, took 0.4 s with the
//     library and takes 0.01 s here.
//   - Users leave out members that change with every retry, such as the time of
//     sending. They name them by JSON pointers. The library has nothing for that.
//   - A delivery ID is read from the same [Document] from which the canonical
//     form is written, so that a body is parsed once.
//
// A fuzz target compares the two.
//
// The other Go library for RFC 8785, gowebpki/jcs v1.0.1, has no limit of depth:
// 160 KB of nested arrays took it 7.5 s.
package canonicaljson

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Canonicalize returns a JSON text in its canonical form, without what the JSON pointers in exclude
// name: see [Document.WriteCanonical]. A text that [Parse] refuses is an error. Canonicalize does
// not change the input.
func Canonicalize(text []byte, exclude ...string) ([]byte, error) {
	doc, err := Parse(text, nil)
	if err != nil {
		return nil, err
	}
	var form bytes.Buffer
	if err := doc.WriteCanonical(&form, exclude...); err != nil {
		return nil, err
	}
	return form.Bytes(), nil
}

// WriteCanonical writes the canonical form of RFC 8785, without the members and elements that the
// JSON pointers in exclude name, in which the token * names every member or element of one level.
// It differs from the RFC in one thing: integers keep their digits. By the RFC, integers beyond 2^53
// are rounded to a double, and two different IDs can become one.
//
// An error is that of the writer, or says that there is no canonical form, and what was written is
// the beginning of none: because of a number with a fraction or an exponent that is too large for a
// double, or a string with half of a surrogate pair ([ErrHalfPair]; RFC 8785, section 3.2.2.2). Both
// may be in what is excluded.
func (d *Document) WriteCanonical(to io.Writer, exclude ...string) error {
	var excluded []bool
	for _, pointer := range exclude {
		if pointer == "" {
			return errors.New(`JSON pointer "" would exclude the whole document; it must name a member, such as /sent_at`)
		}
		if CheckPointer(pointer) == nil {
			if excluded == nil {
				excluded = make([]bool, len(d.nodes))
			}
			d.exclude(excluded, d.Root(), slices.Collect(jsontext.Pointer(pointer).Tokens()))
		}
	}
	return d.write(to, 0, excluded)
}

// exclude marks the nodes that the tokens of a JSON pointer name, starting from v.
func (d *Document) exclude(excluded []bool, v Value, tokens []string) {
	if len(tokens) == 0 {
		excluded[v.node] = true
		return
	}
	if tokens[0] == "*" {
		for child := range d.children(v.node) {
			d.exclude(excluded, Value{d, child}, tokens[1:])
		}
	} else if child, ok := v.child(tokens[0]); ok {
		d.exclude(excluded, child, tokens[1:])
	}
}

// Canonical is what [Document.WriteCanonical] writes of a part of a document, with nothing excluded.
// It asks reserve for the room of the text, and returns its error, as [Parse] does.
func (v Value) Canonical(reserve func(bytes int) error) (string, error) {
	var size byteCount
	if err := v.doc.write(&size, v.node, nil); err != nil {
		return "", err
	}
	if err := reserve(int(size)); err != nil {
		return "", err
	}
	var text strings.Builder
	text.Grow(int(size))
	err := v.doc.write(&text, v.node, nil)
	return text.String(), err
}

// byteCount counts what is written to it.
type byteCount int

func (c *byteCount) Write(p []byte) (int, error) {
	*c += byteCount(len(p))
	return len(p), nil
}

func (d *Document) write(to io.Writer, node uint32, excluded []bool) error {
	c := canonicalWriter{doc: d, excluded: excluded, out: bufio.NewWriterSize(to, min(maxBuffer, len(d.text)))}
	if err := c.write(node); err != nil {
		return err
	}
	return c.out.Flush()
}

// maxBuffer is how much is written at a time, in bytes.
const maxBuffer = 4 << 10

type canonicalWriter struct {
	doc      *Document
	excluded []bool        // by the number of the node; nil for none
	out      *bufio.Writer // of which Flush returns the error
}

// write calls itself for each level of nesting. Parse limits how many there are.
func (c *canonicalWriter) write(i uint32) error {
	d := c.doc
	switch kind := d.kind(i); kind {
	case jsontext.KindString:
		return c.writeString(Value{d, i}.scalar())
	case jsontext.KindNumber:
		return c.writeNumber(Value{d, i}.scalar())
	case jsontext.KindBeginObject, jsontext.KindBeginArray:
		c.out.WriteByte(byte(kind))
		first := true
		for place, end := i+1, d.nodes[i].end; place < end; place = d.after(place) {
			child := d.nodes[place].sorted
			if c.excluded != nil && c.excluded[child] {
				continue
			}
			if !first {
				c.out.WriteByte(',')
			}
			first = false
			if kind == jsontext.KindBeginObject {
				if err := c.writeString(d.raw(d.nodes[child].name)); err != nil {
					return err
				}
				c.out.WriteByte(':')
			}
			if err := c.write(child); err != nil {
				return err
			}
		}
		c.out.WriteByte(byte(kind) + 2) // in ASCII
	default:
		c.out.Write(Value{d, i}.scalar())
	}
	return nil
}

// writeString copies a string that has no escapes as it is: JSON requires an
// escape for exactly those characters for which RFC 8785 requires one.
func (c *canonicalWriter) writeString(raw []byte) error {
	if bytes.IndexByte(raw, '\\') < 0 {
		c.out.Write(raw)
		return nil
	}
	text, err := c.doc.unquote(raw, 0)
	if err != nil {
		return err
	}
	quoted, err := jsontext.AppendQuote(c.doc.scratch[len(raw):len(raw)], text)
	if err != nil {
		panic(fmt.Sprintf("a string that was read cannot be written: %v", err))
	}
	c.out.Write(quoted)
	return nil
}

func (c *canonicalWriter) writeNumber(raw []byte) error {
	if !bytes.ContainsAny(raw, ".eE") {
		if string(raw) == "-0" {
			raw = raw[1:]
		}
		c.out.Write(raw)
		return nil
	}
	value, err := strconv.ParseFloat(string(raw), 64)
	if err != nil {
		return fmt.Errorf("number %.40s is out of the range of a double (RFC 8785, section 3.2.2.3)", raw)
	}
	c.writeFloat(value)
	return nil
}

// writeFloat writes a double as ECMAScript does (RFC 8785, section 3.2.2.3): from
// 1e-6 up to 1e21 without an exponent. Go writes 1e-07 where ECMAScript writes
// 1e-7, so that zero is taken out.
func (c *canonicalWriter) writeFloat(value float64) {
	size := math.Abs(value)
	switch {
	case value == 0: // minus zero too
		c.out.WriteByte('0')
	case 1e-6 <= size && size < 1e21:
		c.out.Write(strconv.AppendFloat(c.out.AvailableBuffer(), value, 'f', -1, 64))
	default:
		text := strconv.FormatFloat(value, 'e', -1, 64)
		c.out.WriteString(strings.Replace(text, "e-0", "e-", 1))
	}
}

// compareUTF16 orders names as RFC 8785, section 3.2.3, requires: by UTF-16 code
// units. This is the order of code points, with one exception: in UTF-16, a
// character beyond U+FFFF begins with a surrogate (0xD800 to 0xDBFF), and so it
// comes before the characters from U+E000 to U+FFFF.
func compareUTF16(a, b []byte) int {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	for i > 0 && i < len(a) && !utf8.RuneStart(a[i]) { // back to where the character begins
		i--
	}
	runeA, sizeA := utf8.DecodeRune(a[i:])
	runeB, sizeB := utf8.DecodeRune(b[i:])
	switch {
	case sizeA == 0 || sizeB == 0:
		return cmp.Compare(sizeA, sizeB)
	case runeA > 0xffff && runeB > 0xffff, runeA <= 0xffff && runeB <= 0xffff:
		return cmp.Compare(runeA, runeB)
	case runeA > 0xffff:
		return cmp.Compare(0xd800, runeB)
	default:
		return cmp.Compare(runeA, 0xd800)
	}
}
