package delivery

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/dunglas/httpsfv"
)

// shownValue is how many bytes of an invalid value an [InvalidError] holds.
const shownValue = 64

// InvalidError says that the header field which should carry the delivery ID
// is present but carries none.
type InvalidError struct {
	// Header is the field's canonical name.
	Header string
	// Value is the value as it was sent, cut off after 64 bytes.
	Value string
	// Reason says what is wrong with the value.
	Reason string
	// Right says what would be right.
	Right string
}

// Error implements error. It is one line of printable ASCII whatever the value.
func (e *InvalidError) Error() string {
	return fmt.Sprintf("header %s: value %+q %s; it must be %s", e.Header, e.Value, e.Reason, e.Right)
}

// headerLines returns the values of all lines of a field. Beside the canonical
// name it looks under the name in lower case: a handler in front moves an
// idempotency key there, because Go's transport sends a request a second time
// that has the key under its canonical name.
func headerLines(header http.Header, name string) []string {
	canonical, lower := http.CanonicalHeaderKey(name), strings.ToLower(name)
	lines, moved := header[canonical], header[lower]
	if len(moved) == 0 || lower == canonical {
		return lines
	}
	return append(lines[:len(lines):len(lines)], moved...)
}

// headerID returns the one ID that all lines of a field carry.
func headerID(name string, lines []string, maxLength int) (string, error) {
	invalid := func(value, reason string) error {
		return &InvalidError{
			Header: http.CanonicalHeaderKey(name),
			Value:  value[:min(len(value), shownValue)],
			Reason: reason,
			Right:  fmt.Sprintf("1 to %d characters of printable ASCII, bare or as a string in double quotes", maxLength),
		}
	}
	var first string
	for i, line := range lines {
		id, ok := unquote(line)
		if !ok {
			return "", invalid(line, "starts with a double quote but is not a structured field string (RFC 9651)")
		}
		if reason := wrongWith(id, maxLength); reason != "" {
			return "", invalid(line, reason)
		}
		if i > 0 && id != first {
			return "", invalid(line, "differs from that of another line of the same field")
		}
		first = id
	}
	return first, nil
}

// unquote returns the text of a structured field string (RFC 9651, section
// 3.3.3), whose parameters say nothing here, and any other value as it is: most
// clients send a bare ID, which often would not parse as a structured item. The
// white space around a value is not part of it (RFC 9110, section 5.5).
func unquote(line string) (id string, ok bool) {
	value := strings.Trim(line, " \t")
	if !strings.HasPrefix(value, `"`) {
		return value, true
	}
	item, err := httpsfv.UnmarshalItem([]string{value})
	if err != nil {
		return "", false
	}
	id, ok = item.Value.(string)
	return id, ok
}

// wrongWith says why an ID is invalid; it is empty for a valid one.
func wrongWith(id string, maxLength int) string {
	switch {
	case id == "":
		return "is empty"
	case len(id) > maxLength:
		return fmt.Sprintf("has %d bytes", len(id))
	}
	for i := range len(id) {
		if id[i] < 0x20 || id[i] > 0x7e {
			return fmt.Sprintf("has the byte 0x%02X at offset %d", id[i], i)
		}
	}
	return ""
}

// headerScope returns the scope that the fields of a preset make, in the form
// that [Found] describes.
func headerScope(header http.Header, names []string) []string {
	var scope []string
	for _, name := range names {
		lines := headerLines(header, name)
		scope = append(scope, strings.ToLower(name), strconv.Itoa(len(lines)))
		scope = append(scope, lines...)
	}
	return scope
}
