package caddymodule

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// notShown replaces a possible password in an error.
const notShown = "<not shown, it may hold a password>"

// withoutPassword returns a text of the configuration for use in an error. A misplaced Redis URL,
// or a part of one, is not shown: errors end up in logs, terminals and tickets.
func withoutPassword(text string) string {
	if mayHoldPassword(text) {
		return notShown
	}
	return text
}

// mayHoldPassword reports whether a text is, or ends, a URL that may contain a password. A web
// address contains one only with an @. A text that starts with an @ is the name of a matcher.
func mayHoldPassword(text string) bool {
	lower := strings.ToLower(text)
	web := strings.HasPrefix(lower, "https://") || strings.HasPrefix(lower, "http://")
	return strings.LastIndex(text, "@") > 0 || strings.Contains(text, "://") && !web
}

// hidden is a setting with one argument or several whose errors show nothing of its line: an argument may
// be a secret, or have a password. An unset variable leaves an empty argument.
func hidden[T any, V string | []string](what string, field func(*T) *V) word[T] {
	return setting(field, func(d *caddyfile.Dispenser) (v V, err error) {
		name := d.Val()
		args := d.RemainingArgs()
		switch to := any(&v).(type) {
		case *[]string:
			*to = args
		case *string:
			if *to = strings.Join(args, " "); len(args) > 1 {
				return v, errorAt(d, "%s takes %s; it has %d", name, what, len(args))
			}
		}
		if len(args) == 0 || slices.Contains(args, "") {
			return v, errorAt(d, "%s is empty; it takes %s", name, what)
		}
		return v, noBlock(d, name)
	}, anyValue)
}

// hidePasswords removes the words of a directive that may contain a password from an error,
// whichever check returned it.
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
	// Longest first: one may be a part of another.
	slices.SortFunc(hidden, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	return rewritten(err, func(text string) string {
		for _, word := range hidden {
			text = strings.ReplaceAll(text, word, notShown)
		}
		return text
	})
}

// hideArguments replaces the arguments of the current word and of its block that an error quotes by
// their positions.
func hideArguments(d caddyfile.Dispenser, err error) error {
	if err == nil {
		return nil
	}
	var positions []string
	for line, argument := d.Line(), 0; d.Next(); {
		if argument++; d.Line() != line {
			line, argument = d.Line(), 0
			continue
		}
		positions = append(positions, strconv.Quote(d.Val()), fmt.Sprintf("argument %d", argument))
	}
	return rewritten(err, strings.NewReplacer(positions...).Replace)
}

// rewritten returns an error with another text, if that differs, behind the same place.
func rewritten(err error, rewrite func(string) string) error {
	place, isPlaced := err.(placed) //nolint:errorlint // the outermost one
	if isPlaced {
		err = place.error
	}
	if shown := rewrite(err.Error()); shown != err.Error() {
		err = errors.New(shown)
	}
	if isPlaced {
		return placed{place.place, err}
	}
	return err
}
