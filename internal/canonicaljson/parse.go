package canonicaljson

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"
)

const (
	// maxDepth is how many levels of nesting a text may have.
	maxDepth = 10_000
	// levelSize is the stack that a level takes while the canonical form is written, in bytes:
	// three times a call's frame, because a stack doubles, and is copied for that.
	levelSize = 300
	// valueSize is what a value takes beside its text, in bytes: its node, and whether it is
	// excluded. A member takes memberSize more while the members of its object are sorted.
	valueSize  = 20 + 1
	memberSize = 4
)

// Parse reads a JSON text (RFC 8259), behind a byte order mark or not. These are errors: two members
// of one object with the same name, invalid UTF-8, anything after the value, more than 10,000 levels
// of nesting, a text of 2 GiB or more. No error quotes the text, because it may be secret and errors
// are logged.
//
// Before Parse allocates anything, it asks reserve, which may be nil, for the bytes that the document
// takes beside its text, and returns its error as it is. They cover all that is asked of the document
// but [Value.Canonical], and grow linearly with the text, whatever is in it.
//
// An escape that is half of a surrogate pair, such as `\ud83d` alone, is JSON (RFC
// 8259, section 8.2): senders write it where they cut a text in the middle of an emoji.
// Only what needs that very string cannot have it. Two names with such an escape count
// as the same.
func Parse(text []byte, reserve func(bytes int) error) (*Document, error) {
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	if len(text) > math.MaxInt32 {
		return nil, fmt.Errorf("the text has %d bytes; it must have at most %d", len(text), math.MaxInt32)
	}
	if !utf8.Valid(text) {
		return nil, fmt.Errorf("not JSON at byte %d: invalid UTF-8", validBytes(text))
	}
	size := measure(text)
	if size.depth > maxDepth {
		return nil, fmt.Errorf("not JSON with at most %d levels of nesting", maxDepth)
	}
	if reserve != nil {
		if err := reserve(size.bytes()); err != nil {
			return nil, err
		}
	}
	p := parser{Document: &Document{text: text, nodes: make([]node, 0, size.values), longest: size.longest}, members: size.members}
	if err := p.parse(); err != nil {
		return nil, err
	}
	return p.Document, nil
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

// textSize is how much there is in a text at most: of one that is not JSON, the beginning that
// could be has no more.
type textSize struct {
	values, members, depth int
	longest                int // bytes of a string, with its quotes, or of a number
	escapes                bool
}

// measure returns the size of a text, in one pass that allocates nothing.
func measure(text []byte) textSize {
	size := textSize{values: 1, escapes: bytes.IndexByte(text, '\\') >= 0}
	depth, begin := 0, 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			i = stringEnd(text, i) - 1
			continue
		case ',':
			size.values++
		case ':':
			size.members++
		case '[', '{':
			size.values++
			depth++
			size.depth = max(size.depth, depth)
		case ']', '}':
			depth--
		default:
			continue
		}
		size.longest = max(size.longest, i-begin)
		begin = i + 1
	}
	size.longest = max(size.longest, len(text)-begin)
	return size
}

// bytes returns what a text takes that is parsed. A string is read into one more, and with escapes
// there is room for two ([Document.scratch]).
func (s textSize) bytes() int {
	copies := 1
	if s.escapes {
		copies = 3
	}
	return s.values*valueSize + s.members*memberSize + s.depth*levelSize + copies*s.longest
}

// stringEnd returns the offset behind the string that begins at an offset, or the end of the text.
func stringEnd(text []byte, at int) int {
	for begin := at + 1; ; {
		n := bytes.IndexByte(text[begin:], '"')
		if n < 0 {
			return len(text)
		}
		quote := begin + n
		escaping := text[begin:quote]
		if backslashes := len(escaping) - len(bytes.TrimRight(escaping, `\`)); backslashes%2 == 0 {
			return quote + 1
		}
		begin = quote + 1
	}
}

// parser reads a text into a document.
type parser struct {
	*Document
	at      int      // in the text
	members int      // in the whole text, at most
	sorted  []uint32 // the members of one object, in the order of their names
}

// none is the parent of the root.
const none = math.MaxUint32

// parse reads the whole text. While an object or array is open, its node's end is the node that
// it is in.
func (p *parser) parse() error {
	for parent := uint32(none); ; {
		var name span
		if parent != none && p.text[p.nodes[parent].value] == '{' {
			if p.next() != '"' {
				return p.wrong("the name of a member must begin here, in quotes")
			}
			begin := p.at
			if err := p.string(); err != nil {
				return err
			}
			name = span{uint32(begin), uint32(p.at)}
			if p.next() != ':' {
				return p.wrong("a colon must follow the name of a member")
			}
			p.at++
		}
		i, c := uint32(len(p.nodes)), p.next()
		p.nodes = append(p.nodes, node{name: name, value: uint32(p.at), end: parent, sorted: i})
		if c == '{' || c == '[' {
			p.at++
			parent = i
			if c := p.next(); c != '}' && c != ']' {
				continue
			}
		} else {
			if err := p.scalar(c); err != nil {
				return err
			}
			p.nodes[i].end = uint32(p.at)
		}
		for parent != none && p.next() != ',' {
			var err error
			if parent, err = p.close(parent); err != nil {
				return err
			}
		}
		if parent == none {
			break
		}
		p.at++
	}
	if p.next(); p.at < len(p.text) {
		return p.wrong("more than one JSON value")
	}
	return nil
}

// close ends an object or array, and returns the one that it is in.
func (p *parser) close(open uint32) (parent uint32, err error) {
	n := &p.nodes[open]
	if want := p.text[n.value] + 2; p.next() != want { // in ASCII
		return none, p.wrong("a comma or a closing bracket or brace must follow a value")
	}
	p.at++
	parent, n.end = n.end, uint32(len(p.nodes))
	if p.text[n.value] == '{' {
		err = p.sort(open)
	}
	return parent, err
}

// sort orders the members of an object as [node.sorted] says. Two with the same name are an error.
func (p *parser) sort(object uint32) error {
	p.sorted = p.sorted[:0]
	for member := range p.children(object) {
		if p.sorted == nil {
			p.sorted = make([]uint32, 0, p.members)
		}
		p.sorted = append(p.sorted, member)
	}
	slices.SortFunc(p.sorted, p.compareNames)
	i := 0
	for member := range p.children(object) {
		if i > 0 && p.compareNames(p.sorted[i-1], p.sorted[i]) == 0 {
			return fmt.Errorf("not JSON at byte %d: two members of the object have the same name", p.nodes[object].value)
		}
		p.nodes[member].sorted = p.sorted[i]
		i++
	}
	return nil
}

// compareNames compares the names of two members.
func (p *parser) compareNames(a, b uint32) int {
	rawA, rawB := p.raw(p.nodes[a].name), p.raw(p.nodes[b].name)
	nameA, _ := p.unquote(rawA, 0) // of half of a surrogate pair it is U+FFFD
	nameB, _ := p.unquote(rawB, len(rawA))
	return compareUTF16(nameA, nameB)
}

// scalar reads the value that begins with c, and is no object or array.
func (p *parser) scalar(c byte) error {
	switch c {
	case '"':
		return p.string()
	case 't':
		return p.literal("true")
	case 'f':
		return p.literal("false")
	case 'n':
		return p.literal("null")
	default:
		return p.number()
	}
}

func (p *parser) literal(text string) error {
	if !bytes.HasPrefix(p.text[p.at:], []byte(text)) {
		return p.wrong("a value must begin here")
	}
	p.at += len(text)
	return nil
}

func (p *parser) number() error {
	if p.here() == '-' {
		p.at++
	}
	if p.here() == '0' {
		p.at++
	} else if !p.digits() {
		return p.wrong("a value must begin here")
	}
	if p.here() == '.' {
		p.at++
		if !p.digits() {
			return p.wrong("a digit must follow the point of a number")
		}
	}
	if c := p.here(); c == 'e' || c == 'E' {
		p.at++
		if c := p.here(); c == '+' || c == '-' {
			p.at++
		}
		if !p.digits() {
			return p.wrong("a digit must be in the exponent of a number")
		}
	}
	return nil
}

// digits reports whether there is a digit, and passes over all.
func (p *parser) digits() bool {
	begin := p.at
	for '0' <= p.here() && p.here() <= '9' {
		p.at++
	}
	return p.at > begin
}

func (p *parser) string() error {
	for text, i := p.text, p.at+1; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			p.at = i + 1
			return nil
		case c == '\\':
			n := escapeLen(text[i:])
			if n == 0 {
				return p.wrong("a string has a wrong escape")
			}
			i += n - 1
		case c < ' ':
			return p.wrong("a string has a control character")
		}
	}
	return p.wrong("a string does not end")
}

// escapeLen returns the length of the escape with which a text begins, 0 if it is none.
func escapeLen(text []byte) int {
	if len(text) < 2 {
		return 0
	}
	switch text[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if len(text) >= 6 && isHex(text[2]) && isHex(text[3]) && isHex(text[4]) && isHex(text[5]) {
			return 6
		}
	}
	return 0
}

func isHex(c byte) bool {
	lower := c | 0x20
	return '0' <= c && c <= '9' || 'a' <= lower && lower <= 'f'
}

// next passes over white space, and returns the byte behind it, 0 at the end of the text.
func (p *parser) next() byte {
	for ; p.at < len(p.text); p.at++ {
		switch c := p.text[p.at]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// here returns the next byte, 0 at the end of the text.
func (p *parser) here() byte {
	if p.at < len(p.text) {
		return p.text[p.at]
	}
	return 0
}

// wrong says what is wrong where the parser is.
func (p *parser) wrong(what string) error { return fmt.Errorf("not JSON at byte %d: %s", p.at, what) }
