package commands

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// hasPassword reports whether a URL has a password that is not a placeholder.
func hasPassword(urls []string) bool {
	return slices.ContainsFunc(urls, func(text string) bool {
		u, err := url.Parse(text)
		if err != nil || u.User == nil {
			return false
		}
		password, _ := u.User.Password()
		return password != "" && !strings.HasPrefix(password, "{")
	})
}

// placeholderPassword matches a URL whose password is one placeholder.
var placeholderPassword = regexp.MustCompile(`^[a-z]+://[^:@/]*:\{[^{}]+\}@`)

// urlPassword and the others match what stands before a password, and a password that is no
// placeholder.
var (
	urlPassword          = regexp.MustCompile(`((?:redis|rediss|unix)://[^\s:@/]*:)[^\s{@][^\s]*@`)
	passwordLine         = regexp.MustCompile(`(?m)^(\s*password\s+)[^\s{].*$`)
	sentinelPasswordLine = regexp.MustCompile(`(?m)^(\s*sentinel_password\s+)[^\s{].*$`)
)

// beforeAt matches a text with something before an @ that may end in a password, as the URL
// parser does not see it: it takes an unescaped / or # in a password for the host's end.
var beforeAt = regexp.MustCompile(`:.*@`)

// redacted names servers without their passwords. What has none, or a placeholder
// in its place, is shown as it was given.
func redacted(urls []string) string {
	shown := make([]string, len(urls))
	for i, text := range urls {
		u, err := url.Parse(text)
		switch {
		case (err != nil || u.User == nil) && beforeAt.MatchString(text) && !placeholderPassword.MatchString(text):
			shown[i] = "the URL given"
		case hasPassword([]string{text}):
			shown[i] = u.Redacted()
		default:
			shown[i] = text
		}
	}
	return strings.Join(shown, ", ")
}

// shownLine is a line of --dedup in an error. What may have a password is shown by its
// first word alone: all about a store, and what looks like a URL with a user.
func shownLine(line string) string {
	tokens, err := caddyfile.Tokenize([]byte(line), "")
	if err != nil {
		return "'…'"
	}
	secret := func(text string) bool { return strings.Contains(text, "://") || strings.Contains(text, "@") }
	hidden := slices.ContainsFunc(tokens, func(token caddyfile.Token) bool { return token.Text == "store" || secret(token.Text) })
	switch {
	case !hidden:
		return fmt.Sprintf("%q", line)
	case secret(tokens[0].Text):
		return "'…'"
	default:
		return "'" + tokens[0].Text + " …'"
	}
}
