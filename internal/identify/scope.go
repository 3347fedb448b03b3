package identify

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/report"
)

// CredentialFields are the request header fields with a secret that commonly identifies a caller.
// Cookies are not among them: they change while the caller stays the same.
var CredentialFields = []string{
	"Authorization", "X-Api-Key", "Api-Key", "Apikey", "X-Auth-Token", "X-Access-Token", "Private-Token",
	"X-Goog-Api-Key", "Ocp-Apim-Subscription-Key", "X-Vault-Token", "X-Shopify-Access-Token", "X-Functions-Key",
}

// UserFields are the fields in which a proxy in front, or the caller itself, names the caller.
var UserFields = []string{
	"Remote-User", "X-Forwarded-User", "X-Auth-Request-User", "X-Amzn-Oidc-Identity", "Cf-Access-Authenticated-User-Email",
	"X-Auth-Request-Email", "X-Authentik-Username", "X-Authentik-Uid", "X-Consumer-Id", "X-Goog-Authenticated-User-Id",
	"X-Ms-Client-Principal-Id", "Tailscale-User-Login", "X-Webauth-User", "X-Rapidapi-User",
}

// AccountFields name the account for which a caller acts, and not the caller.
var AccountFields = []string{"Stripe-Account", "X-Tenant-Id"}

// CallerPlaceholders identify a caller that Caddy has authenticated.
var CallerPlaceholders = []string{"http.auth.user.id", "http.request.tls.client.fingerprint"}

// SharedScope is the first text of a scope in which all requests share their keys.
const SharedScope = "shared"

// scope makes the scope of a request's key.
type scope struct{ *Request }

// appendTexts appends the texts of a configured scope, with their placeholders replaced. A text with several
// placeholders is followed by their values, so that "a" and "bc" differ from "ab" and "c".
func (x scope) appendTexts(parts []string, texts []string) ([]string, error) {
	x.scoped = &scopeMembers{noting: true}
	defer func() { x.scoped.noting = false }()
	for _, text := range texts {
		replaced, values, err := x.replace(text)
		if err != nil {
			return nil, fmt.Errorf("scope %s: %w", text, err)
		}
		parts = append(parts, replaced)
		if len(values) > 1 {
			parts = append(parts, values...)
		}
	}
	if x.Mode == delivery.ModeWebhook || x.namesCaller() {
		return parts, nil
	}
	return x.appendForNoCaller(parts, x.warnScope)
}

// scopeMembers are the members of the body that a configured scope names, for operators.
type scopeMembers struct {
	noting bool             // the placeholders of the scope are being replaced
	texts  []string         // each as pointer=value
	hash   *idempotency.Key // that of the whole scope, of a call
}

// note notes a member that was read.
func (s *scopeMembers) note(pointer, value string) {
	if s == nil || !s.noting {
		return
	}
	text := pointer + "=" + value
	if len(text) > idempotency.MaxScope {
		text = strings.ToValidUTF8(text[:idempotency.MaxScope], "")
	}
	if !slices.Contains(s.texts, text) {
		s.texts = append(s.texts, text)
	}
}

// appendScope appends the default scope, which separates the key from those of other routes and
// callers. The first part names the mode. Each value follows its label.
func (x scope) appendScope(parts []string) ([]string, error) {
	path, _ := report.OriginalPath(x.r)
	parts = append(parts, string(x.Mode), "host", hostOf(x.r), "path", path)
	if x.Mode == delivery.ModeWebhook {
		return parts, nil
	}
	return x.appendCallerAndAccount(append(parts, "method", strings.ToUpper(x.r.Method)))
}

// appendSignedScope is appendScope for a verified request. Host, port and method are no part of it:
// the sender has not signed them, and a captured request could run again under others.
func (x scope) appendSignedScope(parts []string) ([]string, error) {
	parts = append(parts, string(x.Mode), "path", report.MatcherPath(x.r))
	if x.Mode == delivery.ModeWebhook {
		return parts, nil
	}
	if signed := x.sender.SignedCaller; len(signed) > 0 {
		return x.appendOwnCaller(appendFields(x.appendAuthenticated(parts), x.r.Header, signed), x.Caller)
	}
	return x.appendCallerAndAccount(parts)
}

func (x scope) appendCallerAndAccount(parts []string) ([]string, error) {
	withoutCaller := len(parts)
	parts, err := x.appendCaller(parts, x.Caller)
	if err == nil && len(parts) == withoutCaller {
		parts, err = x.appendForNoCaller(parts, x.warnAnonymous)
	} else if field := x.unlistedIdentity(x.r.Header); field != "" {
		x.unlistedWarning.Do(func() { x.warnUnlisted(field) })
	}
	return appendFields(parts, x.r.Header, AccountFields), err
}

// errNoCaller is why a call has no key.
var errNoCaller = errors.New("a key made of content needs something that tells callers apart: the request has no credential and no Mcp-Session-Id")

// appendForNoCaller is for a request in which nothing identifies the caller, which warn logs. A call with a key
// made of content has it from its session, or has no key: all clients send equal calls.
func (x scope) appendForNoCaller(parts []string, warn func()) ([]string, error) {
	if x.call == nil || !x.Found().Content {
		x.anonymousWarning.Do(warn)
		return parts, nil
	}
	n := len(parts)
	if parts = appendFields(parts, x.r.Header, []string{"Mcp-Session-Id"}); len(parts) == n {
		return parts, errNoCaller
	}
	return parts, nil
}

// appendCaller appends all by which the caller is known: by default, and by the configuration's texts.
func (x scope) appendCaller(parts []string, texts []string) ([]string, error) {
	parts = x.appendAuthenticated(parts)
	parts = appendFields(parts, x.r.Header, CredentialFields)
	parts = appendFields(parts, x.r.Header, UserFields)
	return x.appendOwnCaller(parts, texts)
}

// appendOwnCaller appends the configuration's texts by which the caller is known, with their values.
func (x scope) appendOwnCaller(parts []string, texts []string) ([]string, error) {
	for _, text := range texts {
		value, _, err := x.replace(text)
		if err != nil {
			return nil, fmt.Errorf("caller %s: %w", text, err)
		}
		if value != "" {
			parts = append(parts, text, value)
		}
	}
	return parts, nil
}

// appendAuthenticated appends the caller that Caddy has authenticated.
func (x scope) appendAuthenticated(parts []string) []string {
	for _, name := range CallerPlaceholders {
		if x.r.TLS == nil && strings.HasPrefix(name, "http.request.tls.") {
			continue // there is none, and the lookup is expensive
		}
		if value, ok := replacerOf(x.r).GetString(name); ok && value != "" {
			parts = append(parts, name, value)
		}
	}
	return parts
}

// appendFields appends the names and values of the fields that are not empty.
func appendFields(parts []string, header http.Header, names []string) []string {
	for _, name := range names {
		for _, value := range header[name] {
			if value != "" {
				parts = append(parts, name, value)
			}
		}
	}
	return parts
}

// namingCaller are the prefixes of placeholders that can name a caller.
var namingCaller = []string{
	"http.request.header.", "http.request.cookie.", "http.request.tls.client.", "http.auth.", "http.vars.", report.PlaceholderPrefix + report.MembersPrefix,
}

// namesCaller reports whether a placeholder of the configured scope that can name a caller has a value.
func (x scope) namesCaller() bool {
	return slices.ContainsFunc(x.scopeCallers, func(name string) bool {
		value, _ := replacerOf(x.r).GetString(name)
		return value != ""
	})
}

// callersIn returns the placeholders of texts that can name a caller.
func callersIn(texts []string) []string {
	return slices.DeleteFunc(namesIn(texts), func(name string) bool {
		return !slices.ContainsFunc(namingCaller, func(start string) bool { return strings.HasPrefix(name, start) })
	})
}

// unlistedIdentity returns a header field that looks as if it names the caller, and that is not part
// of the key; "" for none.
func (i *Identifier) unlistedIdentity(header http.Header) (first string) {
	for name, values := range header {
		if strings.HasPrefix(name, "X-") && looksLikeIdentity(name) && !slices.Contains(i.keyFields, name) &&
			slices.ContainsFunc(values, func(value string) bool { return value != "" }) && (first == "" || name < first) {
			first = name
		}
	}
	return first
}

// looksLikeIdentity reports whether a canonical field name has a word that stands for a caller.
func looksLikeIdentity(name string) bool {
	for word := range strings.SplitSeq(strings.ReplaceAll(name, "User-Agent", ""), "-") {
		switch word {
		case "User", "Email", "Principal", "Consumer", "Account":
			return true
		}
	}
	return false
}

// fieldsOf returns the canonical names of the header fields of which the key and the scope are made.
func (c *Config) fieldsOf() []string {
	names := slices.Concat(CredentialFields, UserFields, AccountFields)
	add := func(name string) { names = append(names, http.CanonicalHeaderKey(name)) }
	for _, source := range c.Sources {
		for _, part := range append(source.Parts, source) {
			if part.Header != "" {
				add(part.Header)
			}
		}
		names = append(names, source.ScopeHeaders...)
	}
	for _, name := range namesIn(slices.Concat(c.keyTexts(), c.Scope, c.Caller)) {
		if field, ok := strings.CutPrefix(name, "http.request.header."); ok {
			add(field)
		} else if strings.HasPrefix(name, "http.request.cookie.") {
			add("Cookie")
		}
	}
	return names
}

// warnAnonymous logs that nothing in a request identifies its caller.
func (x scope) warnAnonymous() {
	caller := "{http.request.header.<field>}"
	if len(x.r.Header["Cookie"]) > 0 {
		caller = "{http.request.cookie.<name>}"
	}
	x.Logger.Warn("a request with a key has no field by which dedup knows its caller, and cookies are not part of the key: callers who send equal keys share them; write what tells callers apart, or scope shared if all may share",
		zap.String("caller", "caller "+caller))
}

// warnScope logs that nothing in the configured scope names a caller.
func (x scope) warnScope() {
	x.Logger.Warn("nothing in the scope of this handler names the caller of a request: callers who send equal keys share them; add a header field, a cookie or the user to scope, or write scope shared if all may share",
		zap.Strings("scope", x.Scope))
}

// warnUnlisted logs a field that looks as if it names the caller.
func (x scope) warnUnlisted(field string) {
	x.Logger.Warn("a request has a field that may name its caller and is not part of the key: if it does, callers with equal credentials and keys share them",
		zap.String("field", field), zap.String("caller", "caller {http.request.header."+field+"}"))
}

// callerAndSession returns what is known of the request's caller, without members of the body, and the
// values of these fields.
func (x scope) callerAndSession(fields ...string) []string {
	path, _ := report.OriginalPath(x.r)
	ofRequest := slices.DeleteFunc(slices.Clone(x.Caller), func(text string) bool { return len(MembersIn(text)) > 0 })
	parts, _ := x.appendCaller([]string{hostOf(x.r), path}, ofRequest)
	return appendFields(parts, x.r.Header, append(AccountFields[:len(AccountFields):len(AccountFields)], fields...))
}

// Placeholders returns the names of the placeholders that keys and scopes are made from,
// without those of members of the body, which are read with the key.
func (c *Config) Placeholders() []string {
	names := slices.DeleteFunc(namesIn(slices.Concat(c.keyTexts(), c.Scope, c.Caller)), func(name string) bool {
		_, is := MemberPointer(name)
		return is
	})
	return append(names, CallerPlaceholders...)
}
