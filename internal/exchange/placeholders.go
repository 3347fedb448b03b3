package exchange

import (
	"strings"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
)

// PlaceholdersIn returns the names of the placeholders of a text, as Caddy's replacer
// finds them: a brace behind a backslash is a brace. unclosed says that a brace opens
// and none closes it; the replacer would take it as it stands.
func PlaceholdersIn(text string) (names []string, unclosed bool) {
	for i := 0; i < len(text); i++ {
		if text[i] != '{' || i > 0 && text[i-1] == '\\' {
			continue
		}
		end := closingBrace(text, i)
		if end < 0 {
			unclosed = true
			continue
		}
		names = append(names, text[i+1:end])
		i = end
	}
	return names, unclosed
}

// closingBrace returns the place of the first brace behind i that closes, -1 for none.
func closingBrace(text string, i int) int {
	for end := i + 1; end < len(text); end++ {
		if text[end] == '}' && text[end-1] != '\\' {
			return end
		}
	}
	return -1
}

// TrimLineEnd returns the value of a placeholder without the line end that a variable of the
// environment often ends with by accident. Caddy trims that of a {file.*}.
func TrimLineEnd(placeholder string, value any) any {
	text, is := value.(string)
	if !is || !strings.HasPrefix(placeholder, "env.") || !strings.HasSuffix(text, "\n") {
		return value
	}
	return strings.TrimSuffix(strings.TrimSuffix(text, "\n"), "\r")
}

// unknownPlaceholders are those that a handler has warned of.
type unknownPlaceholders struct{ warned sync.Map }

// warnOf logs the placeholders of a text that Caddy does not know, each once. Only a
// request can show it: modules and handlers in front bring placeholders of their own.
func (u *unknownPlaceholders) warnOf(text string, repl *caddy.Replacer, logger *zap.Logger) {
	names, _ := PlaceholdersIn(text)
	for _, name := range names {
		if _, known := repl.Get(name); known {
			continue
		}
		if _, before := u.warned.LoadOrStore(name, true); !before {
			logger.Warn("a placeholder is unknown and counts as empty; check its name",
				zap.String("placeholder", "{"+name+"}"), zap.String("text", text))
		}
	}
}
