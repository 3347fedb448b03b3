package signature

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// inRFC3339 is stricter than [time.Parse], which accepts hours of one digit. In a signature over an ID,
// a timestamp and a body, only the fixed form of the timestamp separates them.
var inRFC3339 = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)$`)

// parseTimestamp parses a timestamp: ten digits of seconds, thirteen of milliseconds, or RFC 3339.
func parseTimestamp(text, unit string) (time.Time, bool) {
	if unit == "rfc3339" {
		t, err := time.Parse(time.RFC3339, text)
		return t, err == nil && inRFC3339.MatchString(text)
	}
	digits := 10
	if unit == "ms" {
		digits = 13
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || len(text) != digits || !isDigits(text) {
		return time.Time{}, false
	}
	if unit == "ms" {
		return time.UnixMilli(n), true
	}
	return time.Unix(n, 0), true
}

func isDigits(text string) bool { return strings.Trim(text, "0123456789") == "" }

// checkTimestamp returns why a timestamp is invalid, or "". With a tolerance of 0 any age is valid, but
// the timestamp must be well-formed.
func checkTimestamp(text, unit string, now time.Time, within time.Duration) string {
	t, ok := parseTimestamp(text, unit)
	switch age := now.Sub(t); {
	case !ok && unit == "rfc3339":
		return "the timestamp is not in the form of RFC 3339"
	case !ok && unit == "ms":
		return "the timestamp is not thirteen digits, milliseconds since 1970"
	case !ok:
		return "the timestamp is not ten digits, seconds since 1970"
	case within > 0 && age > within:
		return fmt.Sprintf("the timestamp is %s old, which is more than %s", age.Round(time.Second), within)
	case within > 0 && -age > within:
		return fmt.Sprintf("the timestamp is %s ahead, which is more than %s", (-age).Round(time.Second), within)
	}
	return ""
}
