package exchange

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// keyDecision is what a request does once its key was looked for: [claim], [pass], [refusal] or
// [unreadBody].
type keyDecision interface{ keyDecision() }

// claim is a request whose key is to be claimed.
type claim struct{ *engine.Request }

// pass lets a request through without a claim. Its outcome says why.
type pass struct{ outcome Outcome }

// refusal refuses a request before the engine is asked.
type refusal struct {
	reason engine.Reason
	detail string
}

// unreadBody ends a request whose body could not be read.
type unreadBody struct{ err error }

func (claim) keyDecision()      {}
func (pass) keyDecision()       {}
func (refusal) keyDecision()    {}
func (unreadBody) keyDecision() {}

// identify finds the request's key, and reads its body for it.
func (x *exchange) identify() keyDecision {
	x.info.exchange = nil
	defer func() {
		x.releaseParseSlot()
		x.info.exchange = x
	}()
	if isGRPC(x.r) {
		return x.withoutKey(errors.New("a call of gRPC streams both ways and cannot be replayed"))
	}
	body := &x.body
	request := delivery.Request{
		Header:  x.r.Header,
		Body:    body.joined,
		Replace: x.keyValue,
		Exclude: x.excludedPointers,
		Reserve: body.reserve,
	}.Remember()
	parsed := x.keyNamesMembers || delivery.NeedsBody(x.Sources, x.Providers, x.r.Header)
	if parsed {
		if err := x.parse(request); err != nil {
			return x.bodyFailure(err)
		}
	}
	if name, ok := delivery.PassThrough(x.Providers, x.Sources, request); ok {
		x.found = delivery.Found{Provider: name}
		return pass{OutcomePassed}
	}
	found, err := delivery.Find(x.Sources, request, x.MaxKeyLength)
	invalid, isInvalid := errors.AsType[*delivery.InvalidError](err)
	switch {
	case body.failed() != nil:
		return x.bodyFailure(body.failed())
	case isInvalid && x.Mode == delivery.ModeAPI:
		return refusal{reasonInvalid, invalid.Error()}
	case isInvalid:
		return x.withoutKey(fmt.Errorf("the delivery ID is invalid: %w", invalid))
	case errors.Is(err, delivery.ErrBodyTooLarge):
		return x.withLargeBody("the key")
	case err != nil:
		return x.withoutKey(err)
	}
	if !parsed && (len(x.members) > 0 || x.Fingerprint == idempotency.FingerprintJSON) { // the scope names them, or the fingerprint parses
		if err := x.parse(request); err != nil {
			return x.bodyFailure(err)
		}
	}
	switch err := x.setKey(found); {
	case errors.Is(err, delivery.ErrBodyTooLarge):
		return x.withLargeBody("the scope")
	case err != nil:
		return x.withoutKey(err)
	}
	retention := x.requestedRetention(request)
	fingerprint, read := x.FingerprintFor(found), body.readAll
	switch {
	case fingerprint == idempotency.FingerprintNone && x.Observe:
		read = func() error { return nil } // the body reaches the upstream as it comes
	case fingerprint == idempotency.FingerprintNone:
		read = body.readToLimit
	}
	var taken string
	if err = read(); err == nil {
		taken, err = x.fingerprint(fingerprint, request)
	}
	switch {
	case body.failed() != nil:
		return x.bodyFailure(body.failed())
	case err != nil && fingerprint != idempotency.FingerprintNone:
		return x.withLargeBody("the fingerprint")
	}
	claimable := x.claimable(taken)
	if retention != 0 {
		claimable.Policy.Retention = retention
	}
	return claim{claimable}
}

// FingerprintFor returns the fingerprint that is taken beside a key: the one that the user
// has chosen, as far as it fits the key, else that of the mode.
func (c *Config) FingerprintFor(found delivery.Found) idempotency.FingerprintKind {
	switch kind := c.Fingerprint; {
	case kind == idempotency.FingerprintBody && found.Content:
		// Bytes that are no part of the key, such as white space and excluded members, do
		// not make another request.
		return idempotency.FingerprintJSON
	case kind != "":
		return kind
	case c.Mode == delivery.ModeWebhook || found.Content:
		return idempotency.FingerprintNone
	default:
		return idempotency.FingerprintBody
	}
}

// fingerprint returns the fingerprint of the request, whose body was read. An error says that there
// is no room to parse it.
func (x *exchange) fingerprint(kind idempotency.FingerprintKind, request delivery.Request) (string, error) {
	if kind == idempotency.FingerprintNone {
		return "", nil
	}
	held, query := &x.body.held, withoutParameters(x.query, x.excludedParameters)
	switch {
	case kind == idempotency.FingerprintJSON:
		doc, err := request.Document()
		if err != nil {
			return "", err
		}
		return idempotency.Fingerprint(kind, x.path, query, held.join(), doc, x.Exclude...), nil
	case held.bytes.Len() > smallBody:
		return idempotency.FingerprintPieces(x.path, query, held.bytes.All(), x.Exclude...), nil
	default:
		return idempotency.Fingerprint(kind, x.path, query, held.join(), nil, x.Exclude...), nil
	}
}

// parseSlots bounds how many requests are parsed at a time. A parsed body takes many
// times the room of its bytes, and parsing more than there are processors gains
// nothing.
var parseSlots = make(chan struct{}, runtime.GOMAXPROCS(0))

// acquireParseSlot reads the body, and then waits for a parse slot: slow clients must not hold one. A
// body that is too large is not parsed.
func (x *exchange) acquireParseSlot() error {
	err := x.body.readAll()
	if err == nil && !x.hasParseSlot {
		parseSlots <- struct{}{}
		x.hasParseSlot = true
	}
	return err
}

// releaseParseSlot gives back what parsing has taken, and the parse slot, if the request has one.
func (x *exchange) releaseParseSlot() {
	if x.hasParseSlot {
		x.body.release(x.body.parseRoom)
		<-parseSlots
		x.hasParseSlot = false
	}
}

// unread is for a body that could not be read, or that there is no room for.
func (x *exchange) bodyFailure(err error) keyDecision {
	if full, ok := errors.AsType[spentError](err); ok {
		x.Observer.Overloaded(engine.LimitBuffered)
		return refusal{engine.ReasonOverloaded, full.Error() + "; repeat the request later"}
	}
	return unreadBody{err}
}

// keyValue returns the text of a key with its placeholders replaced, or nothing if one of
// them is empty or unknown: the rest alone would be one key for many requests.
func (x *exchange) keyValue(text string) (string, error) {
	value, values, err := x.replace(text)
	if err != nil || slices.Contains(values, "") {
		return "", err
	}
	return value, nil
}

// withoutKey lets a request pass unclaimed because it has no key, or refuses it.
func (x *exchange) withoutKey(reason error) keyDecision {
	if x.RejectMissing {
		return refusal{reasonMissing, fmt.Sprintf("%v; looked for %v", reason, x.Sources)}
	}
	x.logMissing(reason)
	x.found, x.key = delivery.Found{}, idempotency.Key{} // of a body too large, they do not count
	return pass{OutcomeMissing}
}

// withLargeBody is for a body that something needs whole, and that is larger than
// may be held, or be parsed.
func (x *exchange) withLargeBody(needs string) keyDecision {
	detail := fmt.Sprintf("the body is larger than max_request_body, %d bytes", x.MaxRequestBody)
	if x.body.large != nil {
		detail = x.body.large.Error()
	}
	detail += ", and " + needs + " needs all of it"
	if x.Mode == delivery.ModeAPI {
		return refusal{reasonTooLarge, detail}
	}
	return x.withoutKey(errors.New(detail))
}

// setKey notes the delivery and its key, which logs and refusals name from here on.
// An error says why there is none: a member of the body is no part of a scope.
func (x *exchange) setKey(found delivery.Found) error {
	x.found = found
	x.path, x.query = originalPath(x.r)
	scope := make([]string, 0, 16) // on the stack
	if len(x.Scope) == 0 {
		scope = x.appendScope(scope, x.r, x.path, x.repl())
	} else {
		var err error
		if scope, err = x.appendOwnScope(scope); err != nil {
			return err
		}
	}
	x.key = idempotency.Identity{
		Namespace: x.Namespace,
		Scope:     append(scope, found.Scope...),
		Kind:      found.Kind,
		Prefix:    found.Prefix,
		ID:        found.ID,
		Tuple:     found.Tuple,
	}.Key()
	return nil
}

// origin tells operators which request claimed the key.
func (x *exchange) origin() idempotency.Origin {
	return idempotency.Origin{
		Provider: x.found.Provider, DeliveryID: x.found.ID, Parts: x.found.Parts,
		Method: x.r.Method, Host: x.r.Host, Path: x.path[:min(len(x.path), idempotency.MaxPath)],
	}
}

// policyOf returns the policy for a provider. A prefix that the user has configured is one too,
// and the catalogue may not have it.
func (h *Handler) policyOf(provider string) idempotency.Policy {
	if policy, ok := h.Policies[provider]; ok {
		return policy
	}
	return h.Policies[""]
}

// claimable is what the engine needs to know of a request whose key is known.
func (x *exchange) claimable(fingerprint string) *engine.Request {
	x.request = engine.Request{
		Key:         x.key,
		Origin:      x.origin(),
		Label:       x.label(),
		Fingerprint: fingerprint,
		Policy:      x.policyOf(x.found.Provider),
		Timeout:     x.Timeout + roomTimeout,
		Wait:        x.Wait,
	}
	return &x.request
}

// CredentialFields are the request's header fields by which callers are commonly known, and
// that carry a secret. Cookies are not among them: they change without the caller changing.
var CredentialFields = []string{
	"Authorization", "X-Api-Key", "Api-Key", "Apikey", "X-Auth-Token", "X-Access-Token", "Private-Token",
	"X-Goog-Api-Key", "Ocp-Apim-Subscription-Key", "X-Vault-Token", "X-Shopify-Access-Token",
}

// UserFields are those by which a proxy in front, or the caller itself, names the caller.
var UserFields = []string{
	"Remote-User", "X-Forwarded-User", "X-Auth-Request-User", "X-Amzn-Oidc-Identity", "Cf-Access-Authenticated-User-Email",
}

// AccountFields are those that name on whose behalf a caller acts, and not the caller.
var AccountFields = []string{"Stripe-Account", "X-Tenant-Id"}

// callerPlaceholders name a caller that Caddy knows.
var callerPlaceholders = []string{"http.auth.user.id", "http.request.tls.client.fingerprint"}

// appendOwnScope appends the scope that the user has written. Beside each text with several
// placeholders come their values: "a" before "bc" is another scope than "ab" before "c".
func (x *exchange) appendOwnScope(scope []string) ([]string, error) {
	scope = append(scope, "text")
	for _, text := range x.Scope {
		replaced, values, err := x.replace(text)
		if err != nil {
			return nil, fmt.Errorf("scope %s: %w", text, err)
		}
		scope = append(scope, replaced)
		if len(values) > 1 {
			scope = append(scope, values...)
		}
	}
	return scope, nil
}

// appendScope appends the parts of the default scope, which separate the key's route and caller
// from all others. Every value has its label before it. The first part says which rule made the
// scope.
func (h *Handler) appendScope(scope []string, r *http.Request, path string, repl *caddy.Replacer) []string {
	scope = append(scope, string(h.Mode), "host", hostOf(r), "path", path)
	if h.Mode == delivery.ModeWebhook {
		return scope
	}
	scope = append(scope, "method", strings.ToUpper(r.Method))
	withoutCaller := len(scope)
	for _, name := range callerPlaceholders {
		if r.TLS == nil && strings.HasPrefix(name, "http.request.tls.") {
			continue // there is none, and to ask for it is dear
		}
		if value, ok := repl.GetString(name); ok && value != "" {
			scope = append(scope, name, value)
		}
	}
	scope = appendFields(scope, r.Header, CredentialFields)
	scope = appendFields(scope, r.Header, UserFields)
	if len(scope) == withoutCaller {
		h.callersWarning.Do(func() { h.warnOfCallers(r.Header) })
	}
	return appendFields(scope, r.Header, AccountFields)
}

// appendFields appends the names and values of the fields that are there and not empty.
func appendFields(scope []string, header http.Header, names []string) []string {
	for _, name := range names {
		for _, value := range header[name] {
			if value != "" {
				scope = append(scope, name, value)
			}
		}
	}
	return scope
}

// warnOfCallers says that a request has nothing by which its caller is known.
func (h *Handler) warnOfCallers(header http.Header) {
	caller := "{http.request.header.<field>}"
	if len(header["Cookie"]) > 0 {
		caller = "{http.request.cookie.<name>}"
	}
	h.Logger.Warn("a request with a key has no field by which dedup knows its caller, and cookies are not part of the key: callers who send equal keys share them; write a scope with what tells callers apart, or without a caller if all may share",
		zap.String("scope", "scope {http.request.method} {http.request.host} {http.request.orig_uri.path} "+caller))
}

// originalPath returns path and query as the client sent them, escaped, whatever handlers in
// front have rewritten. RawPath comes first: where the client sent a byte that must be
// escaped, EscapedPath would make one path of %2F and /.
func originalPath(r *http.Request) (path, query string) {
	u := r.URL
	if original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok && original.URL != nil {
		u = original.URL
	}
	return cmp.Or(u.RawPath, u.EscapedPath(), u.Opaque, "/"), u.RawQuery
}

// withoutParameters returns a query without the parameters of these names, * for all. What is
// left is as it was sent.
func withoutParameters(query string, names []string) string {
	if len(names) == 0 || query == "" {
		return query
	}
	if slices.Contains(names, "*") {
		return ""
	}
	kept := slices.DeleteFunc(strings.Split(query, "&"), func(parameter string) bool {
		name, _, _ := strings.Cut(parameter, "=")
		return slices.Contains(names, decoded(name))
	})
	return strings.Join(kept, "&")
}

// decoded returns the name of a parameter, as it is if it is not well escaped.
func decoded(name string) string {
	if text, err := url.QueryUnescape(name); err == nil {
		return text
	}
	return name
}

// hostOf returns the host as the client sent it, in lower case, without a trailing dot,
// and with its port unless that is the scheme's default: two sites on two ports are two.
func hostOf(r *http.Request) string {
	u := url.URL{Host: strings.ToLower(r.Host)}
	host, port, standard := strings.TrimSuffix(u.Hostname(), "."), u.Port(), "80"
	if r.TLS != nil {
		standard = "443"
	}
	if port == "" || port == standard {
		return host
	}
	return net.JoinHostPort(host, port)
}
