package identify

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/report"
	"github.com/caddy-dedup/caddy-dedup/internal/signature"
	"github.com/caddy-dedup/caddy-dedup/internal/upstream"
)

// Everything that says who calls an API makes another scope, each for itself and
// also beside the others; a webhook's caller is its provider.
func TestCallersHaveScopesOfTheirOwn(t *testing.T) {
	says := map[string]func(*caddy.Replacer, map[string][]string){
		"nobody":             func(*caddy.Replacer, map[string][]string) {},
		"user":               func(r *caddy.Replacer, _ map[string][]string) { r.Set("http.auth.user.id", "a") },
		"client certificate": func(r *caddy.Replacer, _ map[string][]string) { r.Set("http.request.tls.client.fingerprint", "a") },
		"other certificate":  func(r *caddy.Replacer, _ map[string][]string) { r.Set("http.request.tls.client.fingerprint", "b") },
		"Authorization":      func(_ *caddy.Replacer, h map[string][]string) { h["Authorization"] = []string{"a"} },
		"two lines":          func(_ *caddy.Replacer, h map[string][]string) { h["Authorization"] = []string{"a", "b"} },
	}
	for _, name := range []string{
		"x-api-key", "api-key", "apikey", "x-auth-token", "x-access-token", "private-token", "x-goog-api-key", "ocp-apim-subscription-key",
		"x-vault-token", "x-shopify-access-token", "stripe-account", "x-tenant-id", "remote-user", "x-forwarded-user", "x-auth-request-user",
		"x-amzn-oidc-identity", "cf-access-authenticated-user-email", "x-auth-request-email", "x-authentik-username", "x-authentik-uid",
		"x-consumer-id", "x-goog-authenticated-user-id", "x-ms-client-principal-id", "tailscale-user-login", "x-webauth-user", "x-functions-key",
		"x-rapidapi-user",
	} {
		says[name] = func(_ *caddy.Replacer, h map[string][]string) { http.Header(h).Set(name, "a") }
	}
	for _, mode := range []delivery.Mode{delivery.ModeAPI, delivery.ModeWebhook} {
		keys := New(Config{Mode: mode})
		var seen [][]string
		for name, say := range says {
			r, repl := httptest.NewRequest("POST", "/", nil), caddy.NewReplacer()
			r.TLS = new(tls.ConnectionState) // without it nobody has a certificate
			say(repl, r.Header)
			scope := defaultScope(t, keys, r, repl)
			same := slices.ContainsFunc(seen, func(other []string) bool { return slices.Equal(scope, other) })
			if wantSame := mode == delivery.ModeWebhook && len(seen) > 0; same != wantSame {
				t.Errorf("%s, %s: the scope %q was seen before: %v, want %v", mode, name, scope, same, wantSame)
			}
			seen = append(seen, scope)
		}
	}
}

// defaultScope returns the default scope of a request.
func defaultScope(t *testing.T, keys *Identifier, r *http.Request, repl *caddy.Replacer) []string {
	t.Helper()
	r = r.WithContext(context.WithValue(r.Context(), caddy.ReplacerCtxKey, repl))
	scope, err := scope{newRequest(keys, noCounts{}, r)}.appendScope(nil)
	if err != nil {
		t.Fatal(err)
	}
	return scope
}

// newRequest returns a request whose key is looked for, which an observer counts.
func newRequest(keys *Identifier, observer report.Observer, r *http.Request) *Request {
	x := new(Request)
	x.Init(keys, &report.Reporter{Observer: observer, Logger: zap.NewNop()}, budget.New(1<<20), httptest.NewRecorder(), r, new(report.Info))
	return x
}

type noCounts struct{}

func (noCounts) Request(string, report.Outcome, bool) {}
func (noCounts) Differing(string, bool)               {}
func (noCounts) Overloaded(engine.Limit)              {}

// Requests that differ only in how they write one host and path, or in empty fields, have
// one scope; no others have it. Each request is its target and its header.
func TestTargetsHaveScopes(t *testing.T) {
	keys := New(Config{Mode: delivery.ModeAPI})
	seen := map[string]string{}
	for _, equal := range [][]string{
		{
			"/|Host: shop.test", "/|Host: SHOP.test", "/|Host: shop.test.", "/|Host: shop.test:", "/|Host: shop.test:80", "/|Host: shop.test.:80",
			"http://shop.test|Host: shop.test", "http://shop.test.:80?a=b|Host: other.test", "http://user:secret@shop.test/|Host: shop.test",
			"/|Host: shop.test|Authorization:", "/|Host: shop.test|X-Api-Key: |Remote-User:|Authorization:|Authorization:",
			"TLS /|Host: shop.test:443", "TLS /|Host: shop.test.:443",
		},
		{"/|Host: shop.test:443", "http://shop.test.:443|Host: shop.test"},
		{"TLS /|Host: shop.test:80"},
		{"/|Host: [2001:db8::1]", "/|Host: [2001:DB8::1]:80", "http://[2001:db8::1]|Host: shop.test"},
		{"/|Host: [2001:db8::1]:8080"},
		{"/|Host: [2001:db8::1:8080]"},
		{"/|Host: shop.test|Authorization: a", "/|Host: shop.test|Authorization:|Authorization: a|X-Api-Key:"},
		{"//|Host: shop.test", "http://shop.test//|Host: shop.test"},
		{"/a%2Fb?x=/|Host: shop.test", "http://shop.test/a%2Fb|Host: shop.test"},
		{"/a/b|Host: shop.test"},
		{"/a\"b%2Fc|Host: shop.test"}, // of which url.EscapedPath makes the next one
		{"/a\"b/c|Host: shop.test"},
		{"*|Host: shop.test"},
		{"shop:transfer|Host: shop.test", "shop:transfer?x|Host: shop.test"},
		{"shop:refund|Host: shop.test"},
	} {
		var first string
		for i, text := range equal {
			text, overTLS := strings.CutPrefix(text, "TLS ")
			target, header, _ := strings.Cut(text, "|")
			r, err := http.ReadRequest(bufio.NewReader(strings.NewReader("POST " + target + " HTTP/1.1\r\n" + strings.ReplaceAll(header, "|", "\r\n") + "\r\n\r\n")))
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			if overTLS {
				r.TLS = new(tls.ConnectionState)
			}
			scope := strings.Join(defaultScope(t, keys, r, caddy.NewReplacer()), "\n")
			if i == 0 {
				first = scope
			}
			if other, ok := seen[scope]; scope != first || ok && i == 0 {
				t.Errorf("%s has the scope %q, %s has %q; seen before with %q", equal[i], scope, equal[0], first, other)
			}
			seen[scope] = text
		}
	}
}

// Parameters are compared decoded, and those that are left are as they were sent.
func TestQueryWithoutExcludedParameters(t *testing.T) {
	for _, c := range []struct{ exclude, query, want string }{
		{"?ts ?sig", "a=1&ts=1&b=%20&sig=x", "a=1&b=%20"},
		{"?ts ?sig", "t%73=3&ts=4&ts&a=1&b=%20", "a=1&b=%20"},
		{"?t%73", "ts=1&a=1", "a=1"},
		{"?a+b", "a%20b=1&a+b=2&a%2Bb=3", "a%2Bb=3"},
		{"?ts", "TS=1&b=+&%zz=1&&", "TS=1&b=+&%zz=1&&"},
		{"?*", "a=1&ts=1", ""},
		{"?*", "", ""},
		{"/ts /sig", "ts=1&sig=x", "ts=1&sig=x"},
		{"", "ts=1", "ts=1"},
	} {
		keys := New(Config{Exclude: strings.Fields(c.exclude)})
		if got := withoutParameters(c.query, keys.excludedParameters); got != c.want {
			t.Errorf("%s without %s is %q, want %q", c.query, c.exclude, got, c.want)
		}
	}
}

// overloads counts the requests that were refused because of a limit.
type overloads struct {
	noCounts
	limits []engine.Limit
}

func (o *overloads) Overloaded(limit engine.Limit) { o.limits = append(o.limits, limit) }

// A request counts once, also one whose body cannot be read, and its status says why.
func TestUnreadBodiesHaveAnOutcome(t *testing.T) {
	full := budget.New(1 << 20)
	(&budget.Allowance{Budget: full}).Count(1 << 20)
	gone, leave := context.WithCancel(t.Context())
	leave()
	for name, c := range map[string]struct {
		ctx    context.Context
		err    error
		want   report.Outcome
		status int // 0 for a refusal
	}{
		"larger than the server takes": {t.Context(), &http.MaxBytesError{Limit: 1}, report.TooLarge, 413},
		"refused by a handler":         {t.Context(), caddyhttp.Error(413, errors.New("too large here")), report.TooLarge, 413},
		"cut off":                      {t.Context(), io.ErrUnexpectedEOF, report.Invalid, 400},
		"read before":                  {t.Context(), http.ErrBodyReadAfterClose, report.Invalid, 400},
		"too slow":                     {t.Context(), os.ErrDeadlineExceeded, report.Invalid, 408},
		"too slow for others":          {t.Context(), budget.ErrCut, report.Invalid, 408},
		"of a client that has left":    {gone, context.Canceled, report.Invalid, 499},
		"without room":                 {t.Context(), full.Busy(), report.Overloaded, 0},
	} {
		var counts overloads
		d := newRequest(New(Config{}), &counts, httptest.NewRequestWithContext(c.ctx, "POST", "/", nil)).unread(c.err)
		switch d := d.(type) {
		case Unread:
			if got := upstream.FailedStatus(d.Err); d.Outcome != c.want || got != c.status || len(counts.limits) > 0 {
				t.Errorf("%s: %s with %d, want %s with %d", name, d.Outcome, got, c.want, c.status)
			}
		case Refusal:
			if d.Outcome != c.want || d.Reason != engine.ReasonOverloaded || c.status != 0 || !slices.Equal(counts.limits, []engine.Limit{engine.LimitBuffered}) {
				t.Errorf("%s: %+v, of the limits %v", name, d, counts.limits)
			}
		}
	}
}

// What is forged does not wait for the places in which verified bodies are parsed, nor takes one.
func TestForgedBodiesTakeNoParseSlot(t *testing.T) {
	for range cap(parseSlots) {
		parseSlots <- struct{}{}
		defer func() { <-parseSlots }()
	}
	v, err := signature.New(signature.Config{Provider: "adyen", Secrets: []string{"00"}})
	if err != nil {
		t.Fatal(err)
	}
	const forged = `{"notificationItems":[{"NotificationRequestItem":{"additionalData":{"hmacSignature":"AAAA"}}}]}`
	keys := New(Config{Mode: delivery.ModeWebhook, MaxRequestBody: 1 << 20, Verify: &Verification{Verifiers: signature.Verifiers{v}}})
	d := newRequest(keys, noCounts{}, httptest.NewRequest("POST", "/", strings.NewReader(forged))).verify()
	if refused, is := d.(Refusal); !is || refused.Reason != ReasonSignature || len(unverifiedSlots) > 0 {
		t.Errorf("got %+v, and %d places are taken", d, len(unverifiedSlots))
	}
}

// A slow client holds no place in which bodies are parsed, whether its body fits or not: while the body is read, its
// request has none.
func TestSlowBodiesTakeNoParseSlot(t *testing.T) {
	byHeader := delivery.Source{Kind: delivery.KindHeader, Header: "Idempotency-Key"}
	byMember := delivery.Source{Kind: delivery.KindJSON, Pointer: "/id"}
	for name, c := range map[string]struct {
		source delivery.Source
		kind   idempotency.FingerprintKind
		limit  int64
	}{
		"its ID is the key":           {byMember, idempotency.FingerprintBody, 1 << 20},
		"its ID is the key, too long": {byMember, idempotency.FingerprintBody, 4},
		"a fingerprint of JSON":       {byHeader, idempotency.FingerprintJSON, 1 << 20},
		"nothing needs it, too long":  {byHeader, idempotency.FingerprintNone, 4},
	} {
		keys := New(Config{Mode: delivery.ModeWebhook, Sources: []delivery.Source{c.source}, Fingerprint: c.kind, MaxRequestBody: c.limit, MaxKeyLength: 255})
		reads := 0
		r := httptest.NewRequest("POST", "/", readerFunc(func(p []byte) (int, error) {
			const body = `{"id":"a"}`
			if reads++; len(parseSlots) > 0 {
				t.Errorf("%s: its request has a place while it is read", name)
			}
			if reads > len(body) {
				return 0, io.EOF
			}
			return copy(p, body[reads-1:reads]), nil
		}))
		if c.source.Kind == delivery.KindHeader {
			r.Header.Set(c.source.Header, "a")
		}
		newRequest(keys, noCounts{}, r).Identify()
		if reads <= 4 || len(parseSlots) > 0 {
			t.Errorf("%s: it was read %d times, and %d places are taken at the end", name, reads, len(parseSlots))
		}
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestPlaceholdersIn(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "plain": "", "{a}": "a", "x{a}-{b.c}y": "a b.c", `\{a}`: "", `\{a\}{b}`: "b", "}{a}": "a", `{a\}b}`: `a\}b`,
		"{a": "unclosed", "{a}{b": "a unclosed", "{a{b}": "a{b", `\{a`: "", `{a\}`: "unclosed",
	} {
		names, unclosed := PlaceholdersIn(text)
		if unclosed {
			names = append(names, "unclosed")
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
