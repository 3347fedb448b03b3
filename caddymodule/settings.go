package caddymodule

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/exchange"
)

// Settings are what users configure of the handler. In JSON, durations are
// strings such as `"30s"` or `"7d"`, or nanoseconds, and sizes are bytes.
type Settings struct {
	// The providers whose webhooks are deduplicated, such as `github`. They are
	// tried before the keys, in this order.
	Providers []string `json:"providers,omitempty"`

	// Let every request through as if the handler were not there, and only count and log what
	// would have become of it. Requests that are observed share no keys with those that are
	// deduplicated later. Default: false.
	Observe bool `json:"observe,omitempty"`

	// What the handler serves: `api` (the default), or `webhook` (the default where
	// providers are named). Beside providers, `keys` need it written. It decides on the
	// defaults of `release_on` and `fingerprint`, on the default scope, and on the statuses
	// of refusals.
	Mode string `json:"mode,omitempty"`

	// The methods that are deduplicated, compared without regard to case. Default:
	// POST and PATCH. GET, HEAD, OPTIONS, TRACE, QUERY and CONNECT never are.
	Methods []string `json:"methods,omitempty"`

	// Where the key comes from; the first source that is present wins. Default,
	// where no provider is named: the header `Idempotency-Key`.
	Keys []KeySource `json:"keys,omitempty"`

	// What to do with a request without a key: `pass` it on unprotected (the
	// default), or `reject` it with 400.
	OnMissing string `json:"on_missing,omitempty"`

	// What is volatile. JSON pointers to members, which are left out of a `content` key and
	// of a `json` fingerprint; and parameters of the query (`?ts`; all: `?*`), compared
	// decoded, which are left out of the fingerprint.
	Exclude []string `json:"exclude,omitempty"`

	// The longest key that is accepted, in bytes. Default: 255.
	MaxKeyLength int `json:"max_key_length,omitempty"`

	// What separates equal keys of different routes and callers, in place of the
	// default scope; texts with placeholders. The default for an API is method,
	// host, path and caller (the authenticated user's ID, the client certificate's
	// fingerprint, `Authorization`, and the other header fields by which callers are
	// commonly known); for webhooks host, path and what the provider needs. Clients whose tokens
	// rotate need a scope of your own: with a new token they are a new caller.
	// A replay does not ask the upstream for authentication again.
	Scope []string `json:"scope,omitempty"`

	// What makes a request with the same key the same request: its path, its
	// query and the bytes of its `body` (the default for an API), its `json` in
	// canonical form, or `none` (the default for webhooks, and where the key is
	// made of content). With `body`, a request whose key is made of content is
	// compared as with `json`: its bytes may differ where its content does not.
	Fingerprint string `json:"fingerprint,omitempty"`

	// How long a kept response is replayed, from the end of its run. Default: 7
	// days, or longer where a provider retries for longer. An upstream may choose
	// another for one response, in seconds, with the header `Dedup-Retention`; 0 releases
	// the key.
	Retention caddy.Duration `json:"retention,omitempty"`

	// Where a request asks for its own retention, in seconds, in place of `retention`.
	// It counts for all that is remembered of the key: the response, the number of
	// attempts, and that a key is held. That of the request that runs counts, not those
	// of its duplicates. `Dedup-Retention` of the upstream counts before it. Default:
	// none.
	RetentionFrom *RetentionSource `json:"retention_from,omitempty"`

	// How long a claim holds without renewal; it is renewed at a third of it.
	// After a crash another replica takes over when it lapses. At least 300ms, and in
	// Redis three times the store's `timeout`. Default: 30s.
	Lease caddy.Duration `json:"lease,omitempty"`

	// The limit of one run, also when its client is gone. Default: 5 minutes.
	Timeout caddy.Duration `json:"timeout,omitempty"`

	// How long a concurrent duplicate waits for the run's response. After that it is
	// refused. 0 does not wait: it is `off` in a Caddyfile. Default: 30s.
	Wait *caddy.Duration `json:"wait,omitempty"`

	// The responses that release the key, so that a retry runs: statuses (`409`) and
	// classes (`5xx`), or only `off`. `!409` excepts one status and wins wherever it
	// stands; a list of exceptions alone adds them to the default. Default for an API:
	// 5xx 4xx 307 308 !400 !402 !404 !410 !422; for webhooks: 3xx 4xx 5xx. The status that
	// the upstream sent counts as well as the one that a response handler made of it.
	ReleaseOn []string `json:"release_on,omitempty"`

	// What to do when it is unknown whether the upstream executed a run (timed
	// out, cut off, crashed): `release` the key, so that a retry runs (at least
	// once; the default), or `hold` it until an operator decides (at most once).
	OnUnknown string `json:"on_unknown,omitempty"`

	// How many runs may reach the upstream. The last one's answer is kept whatever
	// its status. Default: 0, no limit.
	MaxAttempts int `json:"max_attempts,omitempty"`

	// What the duplicate of a complete request gets: the response (`replay`, the
	// default), 409 that names the first run (`conflict`), an empty 200
	// (`acknowledge`), or 303 to the first response's Location (`see_other`).
	OnDuplicate string `json:"on_duplicate,omitempty"`

	// The name of a request header field: with the value `true` in it, a complete
	// request runs again on purpose, and its response replaces the kept one.
	// Default: none.
	Force string `json:"force,omitempty"`

	// What to do when the store fails: `reject` with 503 (the default), or
	// `pass` the request on unprotected, logged.
	OnStoreError string `json:"on_store_error,omitempty"`

	// The largest request body that is read before the claim, in bytes. Default:
	// 8 MiB. A larger one is 413 if the fingerprint needs it (for webhooks: it
	// passes as if it had no key), and streams on if not.
	MaxRequestBody int64 `json:"max_request_body,omitempty"`

	// The largest response body that is kept, in bytes. Default: 8 MiB. Of a
	// larger response only the status and the header are kept.
	MaxResponseBody int64 `json:"max_response_body,omitempty"`

	// Header fields to keep with a response though they are dropped by default:
	// Set-Cookie, Date, Age, Alt-Svc, Server-Timing.
	KeepHeader []string `json:"keep_header,omitempty"`

	// The URL of your documentation of idempotency, for the `type` of refusals
	// and their `Link` with rel="describedby".
	Docs string `json:"docs,omitempty"`

	// The store of this handler alone. Default: the one of the dedup app.
	StoreRaw json.RawMessage `json:"store,omitempty" caddy:"namespace=dedup.stores inline_key=store"`
}

// KeySource says where a key comes from. Exactly one of its members is set,
// beside `prefix` and `optional`.
type KeySource struct {
	// The name of a request header field that carries the key, as a structured
	// string or bare.
	Header string `json:"header,omitempty"`

	// The JSON pointer (RFC 6901) to a string or number in the request's body.
	JSON string `json:"json,omitempty"`

	// A text with at least one placeholder. Where one of them is empty or unknown
	// there is no key.
	Value string `json:"value,omitempty"`

	// Hash the body: its canonical form (RFC 8785) if it is JSON, else its bytes.
	Content bool `json:"content,omitempty"`

	// Sources that make one key together. All of them must be present, except for
	// those that are `optional`, which the first cannot be. They have no prefixes of
	// their own. The value of the first is the delivery ID, which logs, placeholders and
	// records show, and by which a key is looked up.
	Parts []KeySource `json:"parts,omitempty"`

	// Of one of several `parts`: it may be absent. The key is then another one than
	// with any value of this part. Absent are a header field that is not there, an
	// empty placeholder, an empty body, and a member that is not there, null or an
	// empty string. What is there and can be no ID, such as an object, or a text longer
	// than `max_key_length`, leaves the request without a key, and so does a body that
	// is not JSON. One larger than `max_request_body` counts as where any key needs it.
	Optional bool `json:"optional,omitempty"`

	// What separates equal keys of different sources, and the provider in records, logs,
	// metrics and filters. Default: no provider, and the field's name in lower case, `json`,
	// `value` or `content`. Parts need one.
	Prefix string `json:"prefix,omitempty"`
}

const (
	missingPass   = "pass"
	missingReject = "reject"

	unknownRelease = "release"
	unknownHold    = "hold"

	storeErrorReject = "reject"
	storeErrorPass   = "pass"

	// offWord turns a setting off.
	offWord = "off"
)

// The responses that release a key, by mode. An API keeps those about the content of the
// request, and releases those about its envelope, such as 415, which a client corrects
// under the same key, and those that say that it was not executed here (307 and 308: a
// follower that names the leader); for webhooks all that a sender takes for a failure releases.
var (
	apiReleases     = []string{"5xx", "4xx", "307", "308", "!400", "!402", "!404", "!410", "!422"}
	webhookReleases = []string{"3xx", "4xx", "5xx"}
)

// DefaultMethods returns the methods whose requests are deduplicated where none are set.
func DefaultMethods() []string { return []string{"POST", "PATCH"} }

// RunLimit returns how long one run may take, before or after the defaults are set.
func (s *Settings) RunLimit() time.Duration {
	return cmp.Or(time.Duration(s.Timeout), 5*time.Minute)
}

func (s *Settings) setDefaults() {
	s.Mode = string(s.mode())
	if len(s.Methods) == 0 {
		s.Methods = DefaultMethods()
	}
	setDefault(&s.OnMissing, missingPass)
	setDefault(&s.MaxKeyLength, 255)
	setDefault(&s.Lease, caddy.Duration(30*time.Second))
	s.Timeout = caddy.Duration(s.RunLimit())
	if s.Wait == nil {
		s.Wait = new(caddy.Duration(30 * time.Second))
	}
	setDefault(&s.OnUnknown, unknownRelease)
	setDefault(&s.OnDuplicate, string(exchange.ReplayDuplicate))
	setDefault(&s.OnStoreError, storeErrorReject)
	setDefault(&s.MaxRequestBody, 8<<20)
	setDefault(&s.MaxResponseBody, 8<<20)
	if s.RetentionFrom != nil {
		setDefault(&s.RetentionFrom.Max, caddy.Duration(defaultMaxRetention))
	}
}

// mode returns the mode that is in force, "" where it has to be written.
func (s *Settings) mode() delivery.Mode {
	switch {
	case s.Mode != "":
		return delivery.Mode(s.Mode)
	case len(s.Providers) == 0:
		return delivery.ModeAPI
	case len(s.Keys) == 0:
		return delivery.ModeWebhook
	}
	return ""
}

func setDefault[T comparable](setting *T, fallback T) {
	var none T
	if *setting == none {
		*setting = fallback
	}
}

// releasing returns the words of the release list that is in force.
func (s *Settings) releasing() []string {
	if slices.Equal(s.ReleaseOn, []string{offWord}) {
		return nil
	}
	if slices.ContainsFunc(s.ReleaseOn, func(word string) bool { return !strings.HasPrefix(word, "!") }) {
		return s.ReleaseOn
	}
	if s.Mode == string(delivery.ModeWebhook) {
		return slices.Concat(webhookReleases, s.ReleaseOn)
	}
	return slices.Concat(apiReleases, s.ReleaseOn)
}

func duration(d caddy.Duration) time.Duration { return time.Duration(d) }
