package caddymodule

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// notShown replaces a text that may hold a password in an error.
const notShown = "<not shown, it may hold a password>"

// withoutPassword returns a text of a configuration as an error may show it. A Redis URL in a
// wrong place, or a part of one, is not shown: errors go to logs, terminals and tickets.
func withoutPassword(text string) string {
	if mayHoldPassword(text) {
		return notShown
	}
	return text
}

// mayHoldPassword reports whether a text is a URL that may have a password in it, or the
// end of one. A web address has none unless it has an @; what begins with an @ is the name
// of a matcher.
func mayHoldPassword(text string) bool {
	lower := strings.ToLower(text)
	web := strings.HasPrefix(lower, "https://") || strings.HasPrefix(lower, "http://")
	return strings.LastIndex(text, "@") > 0 || strings.Contains(text, "://") && !web
}

// hidePasswords returns an error about a directive without those of its words that may hold
// a password, whichever check has found the mistake and wherever the word is.
func hidePasswords(d caddyfile.Dispenser, err error) error {
	if err == nil {
		return nil
	}
	var hidden []string
	for d.Reset(); d.Next(); {
		if word := d.Val(); mayHoldPassword(word) {
			quoted := strconv.Quote(word)
			hidden = append(hidden, quoted[1:len(quoted)-1], word)
		}
	}
	// One of them may be a part of another.
	slices.SortFunc(hidden, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	shown := err.Error()
	for _, word := range hidden {
		shown = strings.ReplaceAll(shown, word, notShown)
	}
	if shown == err.Error() {
		return err
	}
	return errors.New(shown)
}
