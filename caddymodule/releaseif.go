package caddymodule

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

// ReleaseIf is a member of the JSON of a response that says that the request failed.
type ReleaseIf struct {
	// The JSON pointer (RFC 6901) to the member.
	JSON string `json:"json,omitempty"`

	// The values of the member after which a retry runs: strings, or numbers, `true`, `false`
	// and `null` as they are written in the response. Default: any but null, false, 0, "", []
	// and {}.
	Values []string `json:"values,omitempty"`
}

// releaseIfWord adds a condition.
var releaseIfWord = word[Settings]{
	parse: func(s *Settings, d *caddyfile.Dispenser) error {
		args := d.RemainingArgs()
		if len(args) == 0 {
			return errorAt(d, "release_if lacks its arguments; it takes a JSON pointer such as /errors, and values behind it if only they say that the request failed, as in release_if /status RETRY")
		}
		condition := ReleaseIf{JSON: args[0]}
		if len(args) > 1 { // else nil, as in JSON
			condition.Values = args[1:]
		}
		s.ReleaseIf = append(s.ReleaseIf, condition)
		return noBlock(d, "release_if")
	},
	check:   (*Settings).checkReleaseIf,
	isUnset: func(s *Settings) bool { return len(s.ReleaseIf) == 0 },
	repeats: true,
}

// checkReleaseIf returns what is wrong with the conditions.
func (s *Settings) checkReleaseIf() error {
	for i, condition := range s.ReleaseIf {
		same := func(before ReleaseIf) bool { return before.JSON == condition.JSON }
		switch {
		case condition.JSON == "":
			return errors.New("the JSON pointer is empty; it must name a member, such as /errors")
		case slices.Contains(condition.Values, ""):
			return errors.New("a value is empty; write one such as RETRY, or none for any but null, false, 0, \"\", [] and {}")
		case slices.ContainsFunc(s.ReleaseIf[:i], same):
			return fmt.Errorf("%s is named twice; write all its values on one line", condition.JSON)
		}
		err := cmp.Or(delivery.CheckMember(condition.JSON), checkPointerText(condition.JSON), checkUnique(condition.Values))
		if err != nil {
			return err
		}
		for _, value := range condition.Values {
			if err := checkValue(value); err != nil {
				return err
			}
		}
	}
	return nil
}

var (
	listOfValues  = regexp.MustCompile(`^[^\s,]+(,[^\s,]+)*,?$`)
	statusOfClass = regexp.MustCompile(`^[1-5][xX][xX]$`)
)

// checkValue refuses a value that is meant as something else. Compared as it is written, it would match
// no response, and each failure would be kept.
func checkValue(value string) error {
	var meant string
	switch {
	case value[0] == '/':
		meant = "each JSON pointer has a line of its own"
	case value[0] == '!':
		meant = "name the values after which a retry runs"
	case value[0] == '{':
		meant = "no placeholder is replaced there"
	case strings.Contains(value, ",") && listOfValues.MatchString(value):
		meant = "write the values apart, as in " + strings.TrimSpace(strings.ReplaceAll(value, ",", " "))
	case statusOfClass.MatchString(value):
		meant = "a class of statuses is a word of release_on; a member's value is compared as it is written, such as 503"
	default:
		return nil
	}
	return fmt.Errorf("%q is no value; %s", value, meant)
}
