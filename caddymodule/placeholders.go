package caddymodule

import (
	"errors"
	"fmt"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-dedup/caddy-dedup/internal/exchange"
)

// replacePlaceholders replaces the placeholders of a text when the configuration is
// loaded. One that is empty or unknown is an error: without one of its parts the text
// would mean something else. The error names the placeholder, and shows nothing else of
// the text; one that is unknown may be a part of a password with braces in it.
func replacePlaceholders(text string) (string, error) {
	return caddy.NewReplacer().ReplaceFunc(text, func(name string, value any) (any, error) {
		switch {
		case caddy.ToString(value) != "":
			return value, nil
		case value == nil && !strings.HasPrefix(name, "file."): // which has no value if there is no such file
			return nil, errors.New(`it has a placeholder that is unknown; use such as {env.NAME} or {file./path}, and write \{ for a brace`)
		}
		return nil, fmt.Errorf("{%s} is empty; it needs a value", name)
	})
}

// checkClosed refuses a placeholder that is not closed, which Caddy would take as it
// stands: a text that was to be secret, or another one on each machine, would be the same
// everywhere. The error does not show it.
func checkClosed(setting, text string) error {
	if _, unclosed := exchange.PlaceholdersIn(text); unclosed {
		return fmt.Errorf(`%s: a placeholder in it lacks its closing brace; write it whole, such as {env.NAME}, or \{ for a brace`, setting)
	}
	return nil
}

// noReplace replaces nothing: what placeholders stand for is not known yet.
func noReplace(text string) (string, error) { return text, nil }
