package delivery

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"
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
	text, err := asked(source, request.Remember())
	switch {
	case isMissing(err):
		return 0, nil
	case err != nil:
		return 0, err
	}
	return parseSeconds(text)
}

// asked returns the value of the source in a request.
func asked(source Source, request Request) (text string, err error) {
	if source.Kind == KindHeader {
		lines := request.Header.Values(source.Header)
		switch {
		case len(lines) == 0 || lines[0] == "" && len(lines) == 1:
			return "", errNoField
		case slices.ContainsFunc(lines, func(line string) bool { return line != lines[0] }):
			return "", notSeconds(lines[0], "is one of several lines that differ")
		}
		return lines[0], nil
	}
	doc, err := request.document()
	if err != nil {
		return "", err
	}
	v, ok := doc.Root().At(source.Pointer)
	if !ok || v.Kind() == jsontext.KindNull {
		return "", absent("%s is not in the body", source.Pointer)
	}
	text, err = v.Text()
	switch {
	case err != nil:
		return "", notSeconds("", "is no text: "+err.Error())
	case text == "" && v.Kind() == jsontext.KindString:
		return "", absent("%s is not in the body", source.Pointer)
	case v.Kind() == jsontext.KindBeginObject:
		return "", notSeconds("{", "is an object")
	case v.Kind() == jsontext.KindBeginArray:
		return "", notSeconds("[", "is an array")
	}
	return text, nil // true and false are not numbers
}

// decimal is a number as JSON writes it; leading zeros do no harm.
var decimal = regexp.MustCompile(`^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)

func parseSeconds(text string) (time.Duration, error) {
	if !decimal.MatchString(text) {
		return 0, notSeconds(text, "is not a number")
	}
	seconds, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil && !errors.Is(err, strconv.ErrRange): // out of range: infinite
		return 0, notSeconds(text, "is not a number")
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
