package caddymodule

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/caddy-dedup/caddy-dedup/internal/identify"
	"github.com/caddyserver/caddy/v2"
)

// checkKeyText refuses the text of a key that is the same for all requests.
func checkKeyText(text string) error {
	if err := checkPlaceholders(text); err != nil {
		return named("value", err)
	}
	if names, _ := identify.PlaceholdersIn(text); len(names) == 0 {
		return fmt.Errorf("value: %q has no placeholder, so all requests would share one key; use one such as %s", text, examplePlaceholder)
	}
	return nil
}

// isConstant reports whether the source has the same value in all requests.
func (k KeySource) isConstant() bool {
	names, _ := identify.PlaceholdersIn(k.Value)
	differs := func(name string) bool { return !isConstantPlaceholder(name) }
	return k.Value != "" && !slices.ContainsFunc(names, differs) ||
		len(k.Parts) > 0 && !slices.ContainsFunc(k.Parts, func(part KeySource) bool { return !part.isConstant() })
}

// isConstantPlaceholder reports whether a placeholder has the same value in all requests.
func isConstantPlaceholder(name string) bool {
	return slices.ContainsFunc([]string{"env.", "file.", "system."}, func(start string) bool { return strings.HasPrefix(name, start) })
}

// changingPlaceholder finds a placeholder whose value changes with every request, even a retry.
func changingPlaceholder(text string) (name string, ok bool) {
	names, _ := identify.PlaceholdersIn(text)
	for _, name := range names {
		switch name {
		case "http.request.uuid", "http.request.duration", "http.request.duration_ms",
			"http.request.remote", "http.request.remote.port", // includes the port, which changes with the connection
			"time.now", "time.now.http", "time.now.rfc3339", "time.now.common_log", "time.now.unix", "time.now.unix_ms":
			return name, true
		}
	}
	return "", false
}

// replacePlaceholders replaces the placeholders of a text when the configuration is loaded. An
// empty or unknown placeholder is an error: without it the text would mean something else. The
// error names an empty placeholder and shows nothing else of the text. It does not name an unknown
// one, which may be part of a password with braces.
func replacePlaceholders(text string) (string, error) {
	return caddy.NewReplacer().ReplaceFunc(text, func(name string, value any) (any, error) {
		switch value = identify.TrimLineEnd(name, value); {
		case caddy.ToString(value) != "":
			return value, nil
		case value == nil && !strings.HasPrefix(name, "file."): // which has no value if the file does not exist
			return nil, errors.New(`it has a placeholder that is unknown; use one such as {env.NAME} or {file./path}, and write \{ for a brace`)
		}
		return nil, fmt.Errorf("{%s} is empty; it needs a value", name)
	})
}

// checkBraces refuses an unclosed placeholder, which Caddy would keep as literal text: a value that
// should be secret, or differ between machines, would be the same everywhere. The error does not
// show the text.
func checkBraces(text string) error {
	if _, unclosed := identify.PlaceholdersIn(text); unclosed {
		return errors.New(`a placeholder in it lacks its closing brace; write it whole, such as {env.NAME}, or \{ for a brace`)
	}
	return nil
}

// keepPlaceholders replaces nothing: the values are not known yet.
func keepPlaceholders(text string) (string, error) { return text, nil }
