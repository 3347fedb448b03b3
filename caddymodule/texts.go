package caddymodule

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/httpfield"
	"github.com/caddy-dedup/caddy-dedup/internal/identify"
)

const examplePlaceholder = "{http.request.uri.query.id}"

// checkPlaceholders refuses an unclosed placeholder, one whose value a retry never repeats, and
// one of the body, which Caddy reads without a limit and without noticing that it was cut off. It
// also refuses one of a field that is removed from requests and so is always empty.
func checkPlaceholders(text string) error {
	names, unclosed := identify.PlaceholdersIn(text)
	if unclosed {
		return fmt.Errorf(`%q has a placeholder without its closing brace; write %s, or \{ for a brace`, text, examplePlaceholder)
	}
	if i := slices.IndexFunc(names, isChanging); i >= 0 {
		return fmt.Errorf("{%s} changes with every request, so a retry would never match; use a value that a retry repeats, such as %s", names[i], examplePlaceholder)
	}
	if strings.Contains(text, "{http.request.body") {
		return fmt.Errorf("%s would read the body without a limit; write {http.dedup.json./tenant} for a member of it, or key content", text)
	}
	for _, name := range names {
		if pointer, ok := identify.MemberPointer(name); ok {
			// The second time with the brace that ended the placeholder.
			if err := cmp.Or(delivery.CheckMember(pointer), checkPointerText(pointer), checkPointerText(pointer+"}")); err != nil {
				return fmt.Errorf("{%s}: %w", name, err)
			}
		}
		field, isField := strings.CutPrefix(name, "http.request.header.")
		switch {
		case isField && strings.EqualFold(field, "Host"):
			return fmt.Errorf("{%s} is always empty; write {http.request.host}", name)
		case isField && httpfield.IsDedup(field):
			return fmt.Errorf("{%s} is always empty: fields that start with %s are removed from requests; use a field that the sender chooses", name, httpfield.DedupPrefix)
		}
	}
	return nil
}

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

// isChanging reports whether a placeholder has another value in every request, even in a retry. A
// remote address includes the port of its connection.
func isChanging(name string) bool {
	switch name {
	case "http.request.uuid", "http.request.duration", "http.request.duration_ms", "http.request.remote", "http.request.remote.port",
		"time.now", "time.now.http", "time.now.rfc3339", "time.now.common_log", "time.now.unix", "time.now.unix_ms":
		return true
	}
	return false
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

// checkPrefix refuses a prefix that its author expects to be more than a word: a placeholder would
// not be replaced, and a second pointer would not be read.
func checkPrefix(prefix string) error {
	if strings.HasPrefix(prefix, "/") {
		return fmt.Errorf("prefix: %q looks like a JSON pointer, and none is read there; write a key line for each pointer, or key parts if all together are the key", prefix)
	}
	names, _ := identify.PlaceholdersIn(prefix)
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("prefix: %q has the placeholder {%s}, and none is replaced there; use a word such as orders, and key parts or scope for values that differ between requests", prefix, names[0])
}

// placeholderPrefixes are the prefixes of common placeholders.
var placeholderPrefixes = []string{"env.", "file.", "http.", "system.", "time."}

// checkPointerText refuses a valid JSON pointer that its author expects to mean something else. Braces
// may be part of a member's name, but not as a common placeholder of Caddy.
func checkPointerText(pointer string) error {
	switch index, _ := strings.CutPrefix(strings.NewReplacer("[", "/", "]", "").Replace(pointer), "/"); {
	case strings.Contains(pointer, ",/"), strings.HasSuffix(pointer, ","):
		return fmt.Errorf("JSON pointer %q has a comma in front of a slash or at its end, as between two pointers; write each of them by itself", pointer)
	case strings.Contains(pointer, " "):
		return fmt.Errorf("JSON pointer %q has a space; write each pointer by itself, without quotes", pointer)
	case strings.Contains(pointer, "["):
		return fmt.Errorf("JSON pointer %q has a bracket; write the number of an element between slashes, as in /%s", pointer, index)
	case strings.HasSuffix(pointer, "/"):
		return fmt.Errorf("JSON pointer %q ends with a slash, and so names a member without a name; leave the slash out", pointer)
	}
	names, _ := identify.PlaceholdersIn(pointer)
	for _, name := range names {
		if slices.ContainsFunc(placeholderPrefixes, func(start string) bool { return strings.HasPrefix(name, start) }) {
			return fmt.Errorf("JSON pointer %q has the placeholder {%s}, and none is replaced there; write the names of the members, such as /data/id", pointer, name)
		}
	}
	return nil
}

// pointers returns the JSON pointers of the settings.
func (s *Settings) pointers() (pointers []string) {
	texts := slices.Concat(s.Scope, s.Caller)
	for _, source := range s.Keys {
		for _, part := range append(source.Parts, source) {
			pointers, texts = append(pointers, part.JSON), append(texts, part.Value)
		}
	}
	for _, condition := range s.ReleaseIf {
		pointers = append(pointers, condition.JSON)
	}
	for _, excluded := range s.Exclude {
		if !strings.HasPrefix(excluded, "?") {
			pointers = append(pointers, excluded)
		}
	}
	if s.RetentionFrom != nil {
		pointers = append(pointers, s.RetentionFrom.JSON)
	}
	return append(pointers, identify.MembersIn(texts...)...)
}

// warnOfPointers logs JSON pointers with a full stop or a comma in a name. Few members have such a
// name; more often, a path or a list is meant.
func (s *Settings) warnOfPointers(logger *zap.Logger) {
	meant := strings.NewReplacer(".", "/", ",", " /")
	for _, pointer := range s.pointers() {
		if other := meant.Replace(pointer); other != pointer {
			logger.Warn("a JSON pointer names a member whose name has a full stop or a comma in it; only slashes lead from a member to those inside it",
				zap.String("pointer", pointer), zap.String("did_you_mean", other))
		}
	}
}
