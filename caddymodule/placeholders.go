package caddymodule

import (
	"fmt"
	"strings"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
)

// placeholdersIn returns the names of the placeholders of a text, as Caddy's replacer
// finds them: a brace behind a backslash is a brace. unclosed says that a brace opens
// and none closes it; the replacer would take it as it stands.
func placeholdersIn(text string) (names []string, unclosed bool) {
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

const examplePlaceholder = "{http.request.uri.query.id}"

// checkKeyText refuses the text of a key that is the same for all requests.
func checkKeyText(text string) error {
	if err := checkPlaceholders("value", text); err != nil {
		return err
	}
	if names, _ := placeholdersIn(text); len(names) == 0 {
		return fmt.Errorf("value: %q has no placeholder and would be one key for all requests; use one such as %s", text, examplePlaceholder)
	}
	return nil
}

// checkPlaceholders refuses a placeholder that is not closed, and those that read the
// body: Caddy reads it without a limit, and takes a body that was cut off for a whole
// one.
func checkPlaceholders(setting, text string) error {
	if _, unclosed := placeholdersIn(text); unclosed {
		return fmt.Errorf(`%s: %q has a placeholder without its closing brace; write %s, or \{ for a brace`, setting, text, examplePlaceholder)
	}
	if strings.Contains(text, "{http.request.body") {
		return fmt.Errorf("%s: %s would read the body without a limit; use key json or key content", setting, text)
	}
	return nil
}

// unknownPlaceholders are those that a handler has warned of.
type unknownPlaceholders struct{ warned sync.Map }

// warnOf logs the placeholders of a text that Caddy does not know, each once. Only a
// request can show it: modules and handlers in front bring placeholders of their own.
func (u *unknownPlaceholders) warnOf(text string, repl *caddy.Replacer, logger *zap.Logger) {
	names, _ := placeholdersIn(text)
	for _, name := range names {
		if _, known := repl.Get(name); known {
			continue
		}
		if _, before := u.warned.LoadOrStore(name, true); !before {
			logger.Warn("a request has shown that a placeholder is unknown; it counts as empty: is its name right?",
				zap.String("placeholder", "{"+name+"}"), zap.String("text", text))
		}
	}
}
