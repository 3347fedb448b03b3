package exchange

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/jsonrpc"
)

// identify looks for the request's key, and reads the body for it.
func (x *exchange) identify() keyDecision {
	x.info.exchange, x.identifying = x, true
	defer func() {
		x.releaseParseSlot()
		x.identifying = false
	}()
	if x.Verify == nil && isGRPC(x.r) { // no way past a signature
		return x.withoutKey(errors.New("a gRPC call streams both ways and cannot be replayed"))
	}
	if x.Mode == delivery.ModeMCP {
		if d := x.readCall(); d != nil {
			return d
		}
	}
	body := &x.body
	request := delivery.Request{
		Header:  x.r.Header,
		Body:    body.joined,
		Replace: x.keyValue,
		Exclude: x.excludedPointers,
		Reserve: body.reserve,
	}.Remember()
	if x.call != nil {
		request.LetLastCount()
	}
	parsed := x.keyNamesMembers || delivery.NeedsBody(x.sender.Sources, x.sender.Providers, x.r.Header)
	if parsed {
		if err := x.parse(request); err != nil {
			return x.bodyFailure(err)
		}
	}
	if name, ok := delivery.PassThrough(x.sender.Providers, x.sender.Sources, request); ok {
		x.found = delivery.Found{Provider: name}
		return pass{outcome: OutcomePassed}
	}
	found, err := delivery.Find(x.sender.Sources, request, x.MaxKeyLength)
	invalid, isInvalid := errors.AsType[*delivery.InvalidError](err)
	switch {
	case body.failed() != nil:
		return x.bodyFailure(body.failed())
	case isInvalid && x.Mode != delivery.ModeWebhook:
		return refusal{reason: reasonInvalid, detail: invalid.Error()}
	case isInvalid:
		return x.withoutKey(fmt.Errorf("the delivery ID is invalid: %w", invalid))
	case errors.Is(err, delivery.ErrBodyTooLarge):
		return x.withLargeBody("the key")
	case err != nil:
		return x.withoutKey(err)
	}
	if !parsed && (len(x.members) > 0 || x.Fingerprint == idempotency.FingerprintJSON || x.call != nil) { // the scope needs members, or the fingerprint parses
		if err := x.parse(request); err != nil {
			return x.bodyFailure(err)
		}
	}
	switch err := x.setKey(found); {
	case body.failed() != nil:
		return x.bodyFailure(body.failed())
	case errors.Is(err, delivery.ErrBodyTooLarge):
		return x.withLargeBody("the scope")
	case err != nil:
		return x.withoutKey(err)
	}
	retention := x.requestedRetention(request)
	kind, read := x.FingerprintFor(found), body.readAll
	noted := kind == idempotency.FingerprintNone && x.Mode == delivery.ModeWebhook && !found.Content && !changesBody(x.sender.Providers, found.Provider)
	switch {
	case x.Observe && noted:
		read = body.tryRead
	case x.Observe && kind == idempotency.FingerprintNone:
		read = func() error { return nil } // the body reaches the upstream as it comes
	case kind == idempotency.FingerprintNone:
		read = body.readToLimit
	}
	var fingerprint string
	if err = read(); err == nil {
		fingerprint, err = x.fingerprint(kind, request)
	}
	switch {
	case body.failed() != nil:
		return x.bodyFailure(body.failed())
	case err != nil && kind != idempotency.FingerprintNone:
		return x.withLargeBody("the fingerprint")
	}
	if noted && body.complete {
		fingerprint = x.notedFingerprint(request)
	}
	return claim{x.engineRequest(fingerprint, retention)}
}

// changesBody reports whether a provider sends another body with each try.
func changesBody(providers []delivery.Provider, name string) bool {
	return slices.ContainsFunc(providers, func(p delivery.Provider) bool { return p.Name == name && p.ChangesBody })
}

// notedFingerprint returns the hash of the body by which a duplicate that differs is noticed. It parses
// no body that was not parsed for the key.
func (x *exchange) notedFingerprint(request delivery.Request) string {
	return idempotency.NotedFingerprint(x.body.held.bytes.All(), request.Parsed(), x.excludedPointers...)
}

// FingerprintFor returns the kind of fingerprint for a key: the configured one, as far as it fits the
// key, else the default of the mode.
func (c *Config) FingerprintFor(found delivery.Found) idempotency.FingerprintKind {
	switch kind := c.Fingerprint; {
	case c.Mode == delivery.ModeMCP:
		return idempotency.FingerprintCall
	case kind == idempotency.FingerprintBody && found.Content:
		// White space and excluded members are not part of a content key: requests that differ only
		// in them are equal.
		return idempotency.FingerprintJSON
	case kind != "":
		return kind
	case c.Mode == delivery.ModeWebhook || found.Content:
		return idempotency.FingerprintNone
	default:
		return idempotency.FingerprintBody
	}
}

// fingerprint returns the fingerprint of the request, whose body was read. It returns an error if
// there is no room to parse the body.
func (x *exchange) fingerprint(kind idempotency.FingerprintKind, request delivery.Request) (string, error) {
	if kind == idempotency.FingerprintNone {
		return "", nil
	}
	path, query := originalPath(x.r)
	held := &x.body.held
	query = withoutParameters(query, x.excludedParameters)
	switch {
	case kind == idempotency.FingerprintCall:
		doc, err := request.Document()
		if err != nil {
			return "", err
		}
		return idempotency.FingerprintWritten(kind, x.Exclude, func(to io.Writer) error {
			return jsonrpc.WriteParams(to, doc, x.excludedPointers...)
		})
	case kind == idempotency.FingerprintJSON:
		doc, err := request.Document()
		if err != nil {
			return "", err
		}
		return idempotency.Fingerprint(kind, path, query, held.join(), doc, x.Exclude...), nil
	case held.bytes.Len() > smallBody:
		return idempotency.FingerprintPieces(path, query, held.bytes.All(), x.Exclude...), nil
	default:
		return idempotency.Fingerprint(kind, path, query, held.join(), nil, x.Exclude...), nil
	}
}

// parseSlots limits how many bodies are parsed at a time. A parsed body takes many times the room
// of its bytes, and there is nothing to gain from parsing more bodies than there are processors.
var parseSlots = make(chan struct{}, runtime.GOMAXPROCS(0))

// acquireParseSlot reads the body, and then waits for a parse slot: a slow client must not hold
// one. It acquires none for a body that is too large to be parsed.
func (x *exchange) acquireParseSlot() error {
	err := x.body.readAll()
	if err == nil && !x.hasParseSlot {
		parseSlots <- struct{}{}
		x.hasParseSlot = true
	}
	return err
}

// releaseParseSlot releases the parse slot, if the request has one, and the room that parsing took.
func (x *exchange) releaseParseSlot() {
	if x.hasParseSlot {
		x.body.release(x.body.parseRoom)
		<-parseSlots
		x.hasParseSlot = false
	}
}

// bodyFailure ends a request whose body could not be read, or refuses one if there is no room for it.
func (x *exchange) bodyFailure(err error) keyDecision {
	if full, ok := errors.AsType[spentError](err); ok {
		x.Observer.Overloaded(engine.LimitBuffered)
		return refusal{reason: engine.ReasonOverloaded, detail: full.Error() + "; repeat the request later"}
	}
	return unreadBody{err}
}

// keyValue returns the text of a key with its placeholders replaced. It returns "" if one of them is
// empty or unknown: the rest alone would be one key for many requests.
func (x *exchange) keyValue(text string) (string, error) {
	value, values, err := x.replace(text)
	if err != nil || slices.Contains(values, "") {
		return "", err
	}
	return value, nil
}

// withoutKey passes a request that has no key, or refuses it under `on_missing reject`.
func (x *exchange) withoutKey(reason error) keyDecision {
	outcome := OutcomeMissing
	if errors.Is(reason, delivery.ErrUnusable) {
		outcome = OutcomeUnusable
	}
	if x.RejectMissing {
		return refusal{reasonMissing, fmt.Sprintf("%v; looked for %v", reason, x.sender.Sources), outcome}
	}
	x.logWithoutKey(outcome, reason)
	x.found, x.key = delivery.Found{}, idempotency.Key{} // where the body is too large, they may be set
	if outcome == OutcomeUnusable {
		return pass{outcome: OutcomeUnusable}
	}
	return pass{outcome: OutcomeMissing} // a constant needs no allocation
}

// withLargeBody refuses a request whose body is needed whole and is too large to be held or parsed, or
// passes it without a key.
func (x *exchange) withLargeBody(needs string) keyDecision {
	detail := fmt.Sprintf("the body is larger than max_request_body, %d bytes", x.MaxRequestBody)
	if x.body.large != nil {
		detail = x.body.large.Error()
	}
	detail += ", and " + needs + " needs all of it"
	if x.Mode != delivery.ModeWebhook || x.Verify != nil {
		return refusal{reason: reasonTooLarge, detail: detail}
	}
	return x.withoutKey(errors.New(detail))
}

// setKey sets the delivery and its key, which logs and refusals name from then on. It returns an error
// if a member of the body cannot be part of the scope.
func (x *exchange) setKey(found delivery.Found) error {
	x.found = found
	scope := make([]string, 0, 16) // on the stack
	if x.Verify != nil {           // no request that nothing verifies uses up its keys
		by := x.sender.by
		scope = append(scope, "verified", by.Provider, by.Secret)
	}
	var err error
	switch {
	case len(x.Scope) == 0 && x.Verify != nil:
		scope, err = x.appendSignedScope(scope, x.r)
	case len(x.Scope) == 0:
		path, _ := originalPath(x.r)
		scope, err = x.appendScope(scope, x.r, path)
	case x.Scope[0] == SharedScope:
		scope = append(scope, x.Scope...)
	default:
		scope, err = x.appendTexts(append(scope, "text"), x.Scope)
	}
	if err != nil {
		return err
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

// origin returns what operators see of the request that claims the key.
func (x *exchange) origin() idempotency.Origin {
	path, _ := originalPath(x.r)
	return idempotency.Origin{
		Provider: x.found.Provider, DeliveryID: x.found.ID, Parts: x.found.Parts,
		Method: x.r.Method, Host: x.r.Host, Path: path[:min(len(path), idempotency.MaxPath)],
	}
}

// policyOf returns the policy for a provider, or for a prefix that the configuration names.
func (h *Handler) policyOf(provider string) idempotency.Policy {
	if policy, ok := h.Policies[provider]; ok {
		return policy
	}
	return h.Policies[""]
}

// engineRequest returns what the engine needs to know of the request. A retention of 0 is that of the
// policy.
func (x *exchange) engineRequest(fingerprint string, retention time.Duration) *engine.Request {
	x.request = engine.Request{
		Key:         x.key,
		Origin:      x.origin(),
		Label:       x.label(),
		Fingerprint: fingerprint,
		Policy:      x.policyOf(x.found.Provider),
		Timeout:     x.Timeout + roomTimeout,
		Wait:        x.Wait,
	}
	if retention != 0 {
		x.request.Policy.Retention = retention
	}
	return &x.request
}

// originalPath returns the normal form of the path as the client sent it, escaped, before rewrites,
// and the query as it was sent. RawPath comes
// first: if the client sent a byte that has to be escaped, EscapedPath would make %2F and / one path.
func originalPath(r *http.Request) (path, query string) {
	u := originalURL(r)
	return normalPath(cmp.Or(u.RawPath, u.EscapedPath(), u.Opaque, "/")), u.RawQuery
}

// withoutParameters returns a query without the parameters of these names, * for all. It leaves the
// others as they were sent.
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

// decoded returns the unescaped name of a parameter, or the name itself if its escapes are invalid.
func decoded(name string) string {
	if text, err := url.QueryUnescape(name); err == nil {
		return text
	}
	return name
}

// hostOf returns the host as the client sent it, in lower case, without a trailing dot, and with
// its port unless that is the scheme's default.
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
