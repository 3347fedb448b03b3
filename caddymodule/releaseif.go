package caddymodule

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

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
			return d.Err("release_if lacks its arguments; it takes a JSON pointer such as /errors, and values behind it if only they say that the request failed, as in release_if /status RETRY")
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
		case slices.ContainsFunc(condition.Values, isNoValue):
			value := condition.Values[slices.IndexFunc(condition.Values, isNoValue)]
			return fmt.Errorf("%q is no value; %s", value, noValues[value[0]])
		case slices.ContainsFunc(s.ReleaseIf[:i], same):
			return fmt.Errorf("%s is named twice; write all its values on one line", condition.JSON)
		}
		err := cmp.Or(delivery.CheckMember(condition.JSON), checkPointerText(condition.JSON), checkUnique(condition.Values))
		if err != nil {
			return err
		}
	}
	return nil
}

// noValues says what is wrong with a value by its first byte. Compared as it is written, it would match
// no response, and each failure would be kept.
var noValues = map[byte]string{
	'/': "each JSON pointer has a line of its own",
	'!': "name the values after which a retry runs",
	'{': "no placeholder is replaced there",
}

func isNoValue(value string) bool { return noValues[value[0]] != "" }
