package delivery

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// Seconds returns the number of seconds that a request asks for in a source of kind
// header or json, as a duration; 0 if it asks for none. Fractions are rounded up, so that no
// request gets less than it asked for. A number that overflows becomes the longest duration.
//
// A request asks for none if the field or member is absent, empty or null, or the body
// is not JSON. Errors:
//   - Why anything else is not a positive number, in one line of printable ASCII.
//   - [ErrBodyTooLarge], or the error of [Request.Body], if the source needs the body.
func Seconds(source Source, request Request) (time.Duration, error) {
	var text string
	if source.Kind == KindHeader {
		lines := request.Header.Values(source.Header)
		if slices.ContainsFunc(lines, func(line string) bool { return line != lines[0] }) {
			return 0, notSeconds(lines[0], "is one of several lines that differ")
		}
		text = request.Header.Get(source.Header)
	} else {
		var err error
		text, err = request.Remember().Member(source.Pointer)
		switch {
		case errors.Is(err, ErrUnusable):
			return 0, notSeconds(text, "is not a number")
		case isMissing(err):
			return 0, nil
		case err != nil:
			return 0, err
		}
	}
	if text == "" {
		return 0, nil
	}
	return parseSeconds(text)
}

// decimal is a number as JSON writes it; leading zeros do no harm.
var decimal = regexp.MustCompile(`^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)

func parseSeconds(text string) (time.Duration, error) {
	if !decimal.MatchString(text) {
		return 0, notSeconds(text, "is not a number")
	}
	seconds, _ := strconv.ParseFloat(text, 64) // infinite, if it is out of range
	switch {
	case seconds == 0:
		return 0, notSeconds(text, "is zero")
	case seconds < 0:
		return 0, notSeconds(text, "is negative")
	case seconds >= float64(math.MaxInt64/time.Second):
		return math.MaxInt64, nil
	}
	return time.Duration(math.Ceil(seconds)) * time.Second, nil
}

func notSeconds(value, reason string) error {
	return fmt.Errorf("value %+q %s; it must be a number of seconds that is more than 0", value[:min(len(value), maxShownValue)], reason)
}
