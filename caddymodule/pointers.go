package caddymodule

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/identify"
)

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

// checkMember checks the JSON pointer in a placeholder.
func checkMember(pointer string) error {
	return cmp.Or(
		delivery.CheckMember(pointer),
		checkPointerText(pointer),
		checkPointerText(pointer+"}"), // the brace that ended the outer placeholder
	)
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
