package caddymodule

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/identify"
)

// scopeWords has what to write instead of words that look like settings. As texts of a scope they
// would be the same in every request.
var scopeWords = map[string]string{
	"method":  "write {http.request.method}",
	"host":    "write {http.request.host}",
	"path":    "write {http.request.orig_uri.path}",
	"query":   "write {http.request.orig_uri.query}",
	"user":    "write {http.auth.user.id}",
	"caller":  "leave scope out for the default, which has the caller, or write the caller's own placeholder, such as {http.request.header.Authorization}",
	"default": "leave scope out for the default",
	"off":     wantsShared,
	"none":    wantsShared,
	"any":     wantsShared,
	"all":     wantsShared,
}

const wantsShared = "write scope shared if all requests share their keys"

// callerFields are the header fields by which callers are known.
var callerFields = slices.Concat(identify.CredentialFields, identify.UserFields, identify.AccountFields)

// checkScope refuses texts that separate no requests.
func checkScope(texts []string) error {
	if slices.Contains(texts, "") {
		return errors.New(`"" separates no callers; use texts with placeholders such as {http.request.host}`)
	}
	if slices.ContainsFunc(texts, func(text string) bool { return strings.EqualFold(text, identify.SharedScope) }) {
		return checkShared(texts)
	}
	for _, text := range texts {
		if err := checkScopeText(text); err != nil {
			return err
		}
	}
	if len(texts) > 0 && !slices.ContainsFunc(texts, hasPlaceholders) {
		return fmt.Errorf("no word of it has a placeholder, so all requests would share their keys; write scope shared %s if that is meant", texts[0])
	}
	return checkUnique(texts)
}

// checkShared checks `scope shared [<name>]`.
func checkShared(texts []string) error {
	if texts[0] != identify.SharedScope || len(texts) > 2 {
		return errors.New("shared stands first, with at most a name behind it, as in scope shared runs")
	}
	if len(texts) == 2 && strings.ContainsAny(texts[1], "{}") {
		return fmt.Errorf("%q is not a name: with shared, no placeholder is replaced; leave shared out for texts that separate requests", texts[1])
	}
	return nil
}

// checkScopeText refuses a text that means something else than its author expects.
func checkScopeText(text string) error {
	_, isKind := keyKinds[text]
	meant, isWord := scopeWords[strings.ToLower(text)]
	if slices.Contains(callerFields, http.CanonicalHeaderKey(text)) {
		meant, isWord = "write {http.request.header."+http.CanonicalHeaderKey(text)+"}", true
	}
	switch {
	case isWord:
		return fmt.Errorf("%q is the same text in every request; %s", text, meant)
	case strings.HasPrefix(text, "/"):
		return fmt.Errorf("%q is not looked up in the body; for a member write {http.dedup.json.%s}", text, text)
	case isKind || text == delivery.KindParts:
		return fmt.Errorf("%q is a word behind key; scope takes texts with placeholders, such as {http.request.header.X-Tenant} or {http.dedup.json./tenant}", text)
	}
	return checkPlaceholders(text)
}

// checkCaller refuses what tells no callers apart.
func checkCaller(texts []string) error {
	for _, text := range texts {
		if err := checkPlaceholders(text); err != nil {
			return err
		}
		names, _ := identify.PlaceholdersIn(text)
		if len(names) != 1 || text != "{"+names[0]+"}" {
			return fmt.Errorf("%q is not one placeholder; write one such as {http.request.cookie.session} or {http.request.header.X-User}", text)
		}
		if isConstantPlaceholder(names[0]) {
			return fmt.Errorf("%s is the same in every request; write one such as {http.request.cookie.session}", text)
		}
		field, isField := strings.CutPrefix(names[0], "http.request.header.")
		if isField && slices.Contains(callerFields, http.CanonicalHeaderKey(field)) || slices.Contains(identify.CallerPlaceholders, names[0]) {
			return fmt.Errorf("%s tells callers apart by default; leave it out", text)
		}
	}
	return checkUnique(texts)
}

// checkCallerConflicts finds settings that exclude caller.
func (s *Settings) checkCallerConflicts() error {
	switch {
	case len(s.Caller) == 0:
		return nil
	case s.mode() == delivery.ModeWebhook:
		return conflictf("caller", "caller: mode webhook has no caller in its scope; write scope with all that separates deliveries, or mode api")
	case len(s.Scope) > 0:
		return conflictf("caller scope", "caller and scope exclude each other: scope replaces the default, to which caller adds; add %s to scope, or leave scope out", strings.Join(s.Caller, " "))
	}
	return nil
}

func hasPlaceholders(text string) bool {
	names, _ := identify.PlaceholdersIn(text)
	return len(names) > 0
}
