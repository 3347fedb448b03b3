package delivery

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/dunglas/httpsfv"
)

// maxShownValue is how much of a wrong value an error shows, in bytes.
const maxShownValue = 64

// InvalidError is the error for a request whose header field has an invalid delivery ID. It is one line of
// printable ASCII, whatever the client sent.
type InvalidError string

// Error implements error.
func (e InvalidError) Error() string { return string(e) }

// headerID returns the ID in a field. All lines of the field must carry the same ID.
func headerID(name string, lines []string, maxLength int) (string, error) {
	invalid := func(value, reason string) error {
		return InvalidError(fmt.Sprintf("header %s: value %+q %s; it must be 1 to %d characters of printable ASCII, bare or as a string in double quotes",
			http.CanonicalHeaderKey(name), value[:min(len(value), maxShownValue)], reason, maxLength))
	}
	var first string
	for i, line := range lines {
		id, ok := unquote(line)
		if !ok {
			return "", invalid(line, "starts with a double quote but is not a structured field string (RFC 9651)")
		}
		if reason := invalidReason(id, maxLength); reason != "" {
			return "", invalid(line, reason)
		}
		if i > 0 && id != first {
			return "", invalid(line, "differs from that of another line of the same field")
		}
		first = id
	}
	return first, nil
}

// unquote returns the text of a structured field string (RFC 9651, section 3.3.3),
// without its parameters. It returns a value that does not start with a quote as it
// is: most clients send a bare ID, and a bare UUID often is not a valid structured
// item. White space around a value is not part of it (RFC 9110, section 5.5).
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

// invalidReason returns why an ID is invalid, or "".
func invalidReason(id string, maxLength int) string {
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

// headerScope returns the part of the scope for these fields, see [Found.Scope].
func headerScope(header http.Header, names []string) []string {
	var scope []string
	for _, name := range names {
		lines := header.Values(name)
		scope = append(scope, strings.ToLower(name), strconv.Itoa(len(lines)))
		scope = append(scope, lines...)
	}
	return scope
}
