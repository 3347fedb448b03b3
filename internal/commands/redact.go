package commands

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// placeholderPassword matches a URL whose password is one placeholder.
var placeholderPassword = regexp.MustCompile(`^[a-z]+://[^:@/]*:\{[^{}]+\}@`)

// redacted names servers without their passwords. What has none, or a placeholder in its
// place, is shown as it was given. A user alone is mostly a password without its colon, and the
// URL parser takes an unescaped / or # in a password for the end of the host.
func redacted(urls ...string) string {
	shown := slices.Clone(urls)
	for i, text := range urls {
		if u, err := url.Parse(text); err == nil && strings.Contains(u.User.String(), ":") {
			shown[i] = u.Redacted()
		} else if strings.Contains(text, "@") && !placeholderPassword.MatchString(text) {
			shown[i] = "the URL given"
		}
	}
	return strings.Join(shown, ", ")
}

// secretWords are followed by secrets, in the directive or in the global option.
var secretWords = []string{"store", "password", "sentinel_password", "verify", "secret", "encrypt", "namespace"}

// shownLine is a line of --dedup in an error. What may have a secret is shown by its first
// word alone: what has one of secretWords, or looks like a URL with a user.
func shownLine(line string) string {
	tokens, err := caddyfile.Tokenize([]byte(line), "")
	if err != nil {
		return "'…'"
	}
	secret := func(text string) bool { return strings.Contains(text, "://") || strings.Contains(text, "@") }
	hidden := slices.ContainsFunc(tokens, func(token caddyfile.Token) bool {
		return slices.Contains(secretWords, token.Text) || secret(token.Text)
	})
	switch {
	case !hidden:
		return fmt.Sprintf("%q", line)
	case secret(tokens[0].Text):
		return "'…'"
	default:
		return "'" + tokens[0].Text + " …'"
	}
}
