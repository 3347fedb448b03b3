package caddymodule

import "strings"

// notShown stands in an error for a text that may hold a password.
const notShown = "<not shown, it may hold a password>"

// withoutPasswords returns texts of a configuration as an error may show them. A Redis
// URL that stands in a wrong place, or a part of one, is not shown: errors go to logs,
// terminals and tickets.
func withoutPasswords(texts ...string) []string {
	shown := make([]string, len(texts))
	for i, text := range texts {
		shown[i] = text
		if mayHoldPassword(text) {
			shown[i] = notShown
		}
	}
	return shown
}

// withoutPassword is withoutPasswords for one text.
func withoutPassword(text string) string { return withoutPasswords(text)[0] }

// mayHoldPassword reports whether a text is a URL that may have a password in it, or the
// end of one. A web address has none unless it has an @; what begins with an @ is the name
// of a matcher.
func mayHoldPassword(text string) bool {
	web := strings.HasPrefix(text, "https://") || strings.HasPrefix(text, "http://")
	return strings.LastIndex(text, "@") > 0 || strings.Contains(text, "://") && !web
}
