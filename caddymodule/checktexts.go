package caddymodule

import (
	"fmt"
	"slices"
	"strings"
)

// checkPrefix refuses a prefix with a placeholder: it would stand in the keys as it is, the
// same for all requests, where its author counts on another one for each tenant.
func checkPrefix(prefix string) error {
	names, _ := placeholdersIn(prefix)
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("prefix: %q has the placeholder {%s}, and none is replaced there; use a word such as orders, and key parts or scope for what differs from request to request", prefix, names[0])
}

// caddysPlaceholders is how the placeholders begin that a Caddyfile mostly has.
var caddysPlaceholders = []string{"env.", "file.", "http.", "system.", "time."}

// checkPointerText refuses a JSON pointer with one of Caddy's placeholders. Other braces may
// be a part of a member's name.
func checkPointerText(pointer string) error {
	names, _ := placeholdersIn(pointer)
	for _, name := range names {
		if slices.ContainsFunc(caddysPlaceholders, func(start string) bool { return strings.HasPrefix(name, start) }) {
			return fmt.Errorf("JSON pointer %q has the placeholder {%s}, and none is replaced there; write the names of the members, such as /data/id", pointer, name)
		}
	}
	return nil
}
