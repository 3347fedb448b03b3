package canonicaljson

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"
)

const (
	// maxDepth is how many levels of nesting a text may have.
	maxDepth = 10_000
	// levelSize is the stack, in bytes, that a level takes while the canonical form is written: three
	// times the frame of a call, because a growing stack is copied to one of twice the size.
	levelSize = 300
	// valueSize is the memory, in bytes, that a value takes beside its text: its node, and a flag
	// whether it is excluded. A member takes memberSize more while its object is sorted.
	valueSize  = 20 + 1
	memberSize = 4
)

// Parse reads a JSON text (RFC 8259), which may start with a byte order mark. These are errors: two
// members of one object with the same name, invalid UTF-8, anything after the value, more than 10,000
// levels of nesting, a text of 2 GiB or more. No error quotes the text, because it may be secret and
// errors are logged.
//
// Before Parse allocates anything, it calls reserve, unless that is nil, with the number of bytes that
// the document takes beside its text. If reserve returns an error, so does Parse. The bytes cover all
// methods of the document but [Value.Canonical], and are linear in the length of the text.
//
// An escape that is half of a surrogate pair, such as `\ud83d` alone, is JSON (RFC 8259, section 8.2):
// senders produce it when they cut a text within an emoji. Only methods that return that string fail.
// Two names with such an escape count as the same name.
func Parse(text []byte, reserve func(bytes int) error) (*Document, error) {
	return parse(text, reserve, false)
}

// ParseLast is [Parse] for a text in which the last of two members with the same name counts.
func ParseLast(text []byte, reserve func(bytes int) error) (*Document, error) {
	return parse(text, reserve, true)
}

func parse(text []byte, reserve func(bytes int) error, lastCounts bool) (*Document, error) {
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	if err := checkLength(text); err != nil {
		return nil, err
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
	p := parser{Document: &Document{text: text, nodes: make([]node, 0, size.values), longest: size.longest}, members: size.members, lastCounts: lastCounts}
	if err := p.parse(); err != nil {
		return nil, err
	}
	return p.Document, nil
}

// checkLength returns an error if a text is too long for the offsets of a [span].
func checkLength(text []byte) error {
	if len(text) > math.MaxInt32 {
		return fmt.Errorf("the text has %d bytes; it must have at most %d", len(text), math.MaxInt32)
	}
	return nil
}

// validBytes returns the offset of the first byte that is not valid UTF-8.
func validBytes(text []byte) (n int) {
	for {
		r, size := utf8.DecodeRune(text[n:])
		if r == utf8.RuneError && size <= 1 {
			return n
		}
		n += size
	}
}

// textSize has upper bounds for the content of a text. If the text is not JSON, they hold for the part
// that Parse reads before the error.
type textSize struct {
	values, members, depth int
	longest                int // bytes of a string, with its quotes, or of a number
	escapes                bool
}

// measure returns the size of a text, in one pass that allocates nothing.
func measure(text []byte) textSize {
	size := textSize{values: 1, escapes: bytes.IndexByte(text, '\\') >= 0}
	depth, start := 0, 0
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
		size.longest = max(size.longest, i-start)
		start = i + 1
	}
	size.longest = max(size.longest, len(text)-start)
	return size
}

// bytes returns the memory that a parsed text takes, in bytes: one copy of a string, for
// [Value.Text], and with escapes room for two more ([Document.scratch]).
func (s textSize) bytes() int {
	copies := 1
	if s.escapes {
		copies = 3
	}
	return s.values*valueSize + s.members*memberSize + s.depth*levelSize + copies*s.longest
}

// stringEnd returns the offset after the string that starts at an offset, or the length of the text.
func stringEnd(text []byte, start int) int {
	for from := start + 1; ; {
		n := bytes.IndexByte(text[from:], '"')
		if n < 0 {
			return len(text)
		}
		quote := from + n
		escaping := text[from:quote]
		if backslashes := len(escaping) - len(bytes.TrimRight(escaping, `\`)); backslashes%2 == 0 {
			return quote + 1
		}
		from = quote + 1
	}
}

// parser reads a text into a document.
type parser struct {
	*Document
	offset  int      // in the text
	members int      // upper bound of the members in the text
	sorted  []uint32 // the members of one object, sorted by name
	// lastCounts reports whether the last of two members with the same name counts.
	lastCounts bool
}

// none is no node: the parent of the root, and [node.sorted] of a member that does not count.
const none = math.MaxUint32

// parse reads the whole text. While an object or array is open, the end of its node is the number of
// its parent.
func (p *parser) parse() error {
	for parent := uint32(none); ; {
		var name span
		if parent != none && p.text[p.nodes[parent].value] == '{' {
			var err error
			if name, err = p.name(); err != nil {
				return err
			}
		}
		i, c := uint32(len(p.nodes)), p.skipSpace()
		p.nodes = append(p.nodes, node{name: name, value: uint32(p.offset), end: parent, sorted: i})
		if c == '{' || c == '[' {
			p.offset++
			parent = i
			if c := p.skipSpace(); c != '}' && c != ']' {
				continue
			}
		} else {
			if err := p.readScalar(c); err != nil {
				return err
			}
			p.nodes[i].end = uint32(p.offset)
		}
		for parent != none && p.skipSpace() != ',' {
			var err error
			if parent, err = p.closeNode(parent); err != nil {
				return err
			}
		}
		if parent == none {
			break
		}
		p.offset++
	}
	return p.end()
}

// name reads the name of a member and the colon after it.
func (p *parser) name() (span, error) {
	if p.skipSpace() != '"' {
		return span{}, p.syntaxError("the name of a member must start here, in quotes")
	}
	start := p.offset
	if err := p.readString(); err != nil {
		return span{}, err
	}
	name := span{uint32(start), uint32(p.offset)}
	if p.skipSpace() != ':' {
		return span{}, p.syntaxError("a colon must follow the name of a member")
	}
	p.offset++
	return name, nil
}

// closeNode closes an object or array, and returns its parent.
func (p *parser) closeNode(open uint32) (parent uint32, err error) {
	n := &p.nodes[open]
	if err := p.closing(p.text[n.value] + 2); err != nil { // in ASCII
		return none, err
	}
	parent, n.end = n.end, uint32(len(p.nodes))
	if p.text[n.value] == '{' {
		err = p.sortMembers(open)
	}
	return parent, err
}

// closing reads the bracket or brace that ends an object or array.
func (p *parser) closing(want byte) error {
	if p.skipSpace() != want {
		return p.syntaxError("a comma or a closing bracket or brace must follow a value")
	}
	p.offset++
	return nil
}

// end returns an error unless only white space follows.
func (p *parser) end() error {
	if p.skipSpace(); p.offset < len(p.text) {
		return p.syntaxError("more than one JSON value")
	}
	return nil
}

// sortMembers sets [node.sorted] of the members of an object. Two with the same name are an error,
// unless the last one counts.
func (p *parser) sortMembers(object uint32) error {
	p.sorted = p.sorted[:0]
	for member := range p.children(object) {
		if p.sorted == nil {
			p.sorted = make([]uint32, 0, p.members)
		}
		p.sorted = append(p.sorted, member)
	}
	slices.SortFunc(p.sorted, func(a, b uint32) int { return cmp.Or(p.compareNames(a, b), cmp.Compare(a, b)) })
	counted := p.sorted[:0]
	for i, member := range p.sorted {
		if i+1 < len(p.sorted) && p.compareNames(member, p.sorted[i+1]) == 0 {
			if !p.lastCounts {
				return fmt.Errorf("not JSON at byte %d: two members of the object have the same name", p.nodes[object].value)
			}
			continue
		}
		counted = append(counted, member)
	}
	i := 0
	for member := range p.children(object) {
		p.nodes[member].sorted = none
		if i < len(counted) {
			p.nodes[member].sorted = counted[i]
		}
		i++
	}
	return nil
}

// compareNames compares the names of two members.
func (p *parser) compareNames(a, b uint32) int {
	rawA, rawB := p.raw(p.nodes[a].name), p.raw(p.nodes[b].name)
	nameA, _ := p.unquote(rawA, 0) // half of a surrogate pair becomes U+FFFD
	nameB, _ := p.unquote(rawB, len(rawA))
	return compareUTF16(nameA, nameB)
}

// readScalar reads a value that starts with c and is neither an object nor an array.
func (p *parser) readScalar(c byte) error {
	switch c {
	case '"':
		return p.readString()
	case 't':
		return p.readLiteral("true")
	case 'f':
		return p.readLiteral("false")
	case 'n':
		return p.readLiteral("null")
	default:
		return p.readNumber()
	}
}

func (p *parser) readLiteral(text string) error {
	if !bytes.HasPrefix(p.text[p.offset:], []byte(text)) {
		return p.syntaxError("a value must start here")
	}
	p.offset += len(text)
	return nil
}

func (p *parser) readNumber() error {
	if p.peek() == '-' {
		p.offset++
	}
	if p.peek() == '0' {
		p.offset++
	} else if !p.skipDigits() {
		return p.syntaxError("a value must start here")
	}
	if p.peek() == '.' {
		p.offset++
		if !p.skipDigits() {
			return p.syntaxError("a digit must follow the decimal point")
		}
	}
	if c := p.peek(); c == 'e' || c == 'E' {
		p.offset++
		if c := p.peek(); c == '+' || c == '-' {
			p.offset++
		}
		if !p.skipDigits() {
			return p.syntaxError("an exponent must have a digit")
		}
	}
	return nil
}

// skipDigits skips digits, and reports whether there was one.
func (p *parser) skipDigits() bool {
	start := p.offset
	for '0' <= p.peek() && p.peek() <= '9' {
		p.offset++
	}
	return p.offset > start
}

func (p *parser) readString() error {
	for text, i := p.text, p.offset+1; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			p.offset = i + 1
			return nil
		case c == '\\':
			n := escapeLen(text[i:])
			if n == 0 {
				return p.syntaxError("a string has a wrong escape")
			}
			i += n - 1
		case c < ' ':
			return p.syntaxError("a string has a control character")
		}
	}
	return p.syntaxError("a string does not end")
}

// escapeLen returns the length of the escape at the beginning of a text, 0 if it is invalid.
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

// skipSpace skips white space, and returns the byte after it, 0 at the end of the text.
func (p *parser) skipSpace() byte {
	for ; p.offset < len(p.text); p.offset++ {
		switch c := p.text[p.offset]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// peek returns the byte at the offset, 0 at the end of the text.
func (p *parser) peek() byte {
	if p.offset < len(p.text) {
		return p.text[p.offset]
	}
	return 0
}

// syntaxError returns an error for the offset of the parser.
func (p *parser) syntaxError(what string) error {
	return fmt.Errorf("not JSON at byte %d: %s", p.offset, what)
}
