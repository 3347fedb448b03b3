package caddymodule

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Settings are the settings of the handler. In JSON, durations are strings such as `"30s"` or
// `"7d"`, or nanoseconds; sizes are bytes.
type Settings struct {
	// The providers whose webhooks are deduplicated, such as `github`. They are
	// tried before the keys, in this order.
	Providers []string `json:"providers,omitempty"`

	// Let every request through, and only count and log the outcome that it would have had.
	// Observed requests share no keys with requests that are deduplicated later. Default:
	// false.
	Observe bool `json:"observe,omitempty"`

	// How the signatures of requests are checked, before anything else is done with them. With
	// it, every provider of the handler needs an entry, and `keys` need one with `hmac`. A
	// request of any method that none of them has signed is refused with 401; under `observe` it
	// passes. Default: none, signatures are not checked.
	Verify []Verify `json:"verify,omitempty"`

	// The kind of clients: `api`, `webhook` (the default if `providers` is set), or `mcp` for
	// the tool calls of agents (Model Context Protocol), which needs `keys`. Required
	// if both `providers` and `keys` are set. It determines the defaults of `release_on`,
	// `fingerprint` and `scope`, and the statuses of refusals. Default: `api`.
	Mode string `json:"mode,omitempty"`

	// The methods that are deduplicated, in upper or lower case. GET, HEAD, OPTIONS, TRACE,
	// QUERY and CONNECT are not accepted. Beside `verify`, every signed request is deduplicated,
	// whatever its method. Default: POST and PATCH.
	Methods []string `json:"methods,omitempty"`

	// The sources of the key. The first one that is present in a request is used. Default:
	// the header `Idempotency-Key`, if no provider is set.
	Keys []KeySource `json:"keys,omitempty"`

	// What to do with a request without a key: `pass` it on unprotected, or `reject` it with
	// 400. Default: `pass`.
	OnMissing string `json:"on_missing,omitempty"`

	// Volatile values to ignore: JSON pointers to members, which are left out of a `content`
	// key and of a `json` fingerprint, and query parameters (`?ts`; all: `?*`), compared
	// decoded, which are left out of the fingerprint.
	Exclude []string `json:"exclude,omitempty"`

	// The maximum length of a key, in bytes. Default: 255.
	MaxKeyLength int `json:"max_key_length,omitempty"`

	// Texts with placeholders that separate equal keys of different routes and callers. They
	// replace the default scope. At least one needs a placeholder. Of the first text `shared`,
	// with a name behind it or none, all requests share their keys, with other handlers of the
	// store that have the same. The default for an API is method, host, path and caller: the
	// authenticated user's ID, the client certificate's fingerprint, `Authorization`, and other
	// header fields that commonly identify callers. For webhooks it is host, path and the fields
	// that the provider needs. If the tokens of your clients rotate, set a scope: a client with
	// a new token is a new caller. Replays are not authenticated by the upstream.
	Scope []string `json:"scope,omitempty"`

	// Placeholders that are added to what tells callers apart by default, such as
	// `{http.request.cookie.session}`. Not for webhooks, and not beside `scope`. Default: none.
	Caller []string `json:"caller,omitempty"`

	// The names of the tools whose calls are deduplicated. Only in mode `mcp`. Default: all.
	Tools []string `json:"tools,omitempty"`

	// What two requests with the same key must have in common: path, query and the bytes of
	// the `body`; path, query and the canonical form of the `json` body; or `none`. With
	// `body`, a request whose key is made of content is compared as with `json`. Default for
	// an API: `body`; for webhooks, and for keys made of content: `none`.
	Fingerprint string `json:"fingerprint,omitempty"`

	// How long a kept response is replayed, from the end of its run. The upstream can set it
	// for one response, in seconds, with the header `Dedup-Retention`; 0 releases the key.
	// Default: 7 days, or longer for providers that retry longer.
	Retention caddy.Duration `json:"retention,omitempty"`

	// Where a request sets its own retention, in seconds, instead of `retention`. It applies
	// to the whole record of the key: response, number of attempts and hold. Only the request
	// that runs sets it, not its duplicates. `Dedup-Retention` of the upstream takes
	// precedence. Default: none.
	RetentionFrom *RetentionSource `json:"retention_from,omitempty"`

	// How long a claim lasts without renewal. It is renewed after a third of that time. After
	// a crash, another replica takes over when it lapses. At least 300ms, and with Redis at
	// least three times the `timeout` of the store. Default: 30s.
	Lease caddy.Duration `json:"lease,omitempty"`

	// The maximum duration of a run, also after its client has disconnected. Default: 5
	// minutes.
	Timeout caddy.Duration `json:"timeout,omitempty"`

	// How long a concurrent duplicate waits for the response of the run before it is refused.
	// 0 refuses it at once (`off` in a Caddyfile). Default: 30s.
	Wait *caddy.Duration `json:"wait,omitempty"`

	// The responses that release the key, so that a retry runs: statuses (`409`) and
	// classes (`5xx`), or only `off`. `!409` excludes one status, at any position; a list of
	// only exclusions adds them to the default. Both the status of the upstream and the one
	// set by a response handler are matched. Default for an API: 5xx 4xx 307 308 !402 !422;
	// for webhooks: 3xx 4xx 5xx.
	ReleaseOn []string `json:"release_on,omitempty"`

	// The members of JSON by which a response whose status is kept says that the request
	// failed, so that a retry runs. Responses of up to 1 MiB are read. The response of the last
	// of `max_attempts` is kept. Default: none.
	ReleaseIf []ReleaseIf `json:"release_if,omitempty"`

	// What to do when it is unknown whether the upstream executed a run (timed
	// out, cut off, crashed): `release` the key, so that a retry runs (at least
	// once; the default), or `hold` it until an operator decides (at most once).
	OnUnknown string `json:"on_unknown,omitempty"`

	// The maximum number of runs that may reach the upstream. The response of the last one
	// is kept, whatever its status. Default: 0, no limit.
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

	// The maximum size of a request body that is read before the claim, in bytes. If the key
	// or the fingerprint needs a larger one, the request gets 413 (for webhooks: it passes
	// without a key); otherwise the body is streamed. Default: 8 MiB.
	MaxRequestBody int64 `json:"max_request_body,omitempty"`

	// The maximum size of a response body that is kept, in bytes. Of a larger response, only
	// status and header are kept. Default: 8 MiB.
	MaxResponseBody int64 `json:"max_response_body,omitempty"`

	// Header fields to keep with a response that are dropped by default, such as Set-Cookie,
	// Date, Age, Alt-Svc and Server-Timing.
	KeepHeader []string `json:"keep_header,omitempty"`

	// The URL of your documentation on idempotency. Refusals have it as their `type`, and in
	// a `Link` with rel="describedby".
	Docs string `json:"docs,omitempty"`

	// The store of this handler. Default: that of the dedup app.
	StoreRaw json.RawMessage `json:"store,omitempty" caddy:"namespace=dedup.stores inline_key=store"`
}

// KeySource is the source of a key. Exactly one of `header`, `json`, `value`, `content` and
// `parts` must be set.
type KeySource struct {
	// The name of a request header field that carries the key, as a structured
	// string or bare.
	Header string `json:"header,omitempty"`

	// The JSON pointer (RFC 6901) to a string or number in the request's body.
	JSON string `json:"json,omitempty"`

	// The name of a field of the form in the request's body, urlencoded or multipart. A field that
	// occurs with different values, and a form with more than 1,000 fields, leave the request
	// without a key.
	Form string `json:"form,omitempty"`

	// A text with at least one placeholder. If a placeholder is empty or unknown, there is no
	// key.
	Value string `json:"value,omitempty"`

	// Use a hash of the body: of its canonical form (RFC 8785) if it is JSON, of its parts
	// without the boundary if it is multipart/form-data, else of its bytes.
	Content bool `json:"content,omitempty"`

	// Sources that form one key together. All must be present, except those marked
	// `optional`; the first cannot be optional. Parts have no prefix. The value of the first
	// part is the delivery ID: logs, placeholders and records show it, and keys are looked up
	// by it.
	Parts []KeySource `json:"parts,omitempty"`

	// Only in `parts`: the part may be absent. The key then differs from that with any value
	// of the part. Absent are: a missing header field, an empty placeholder, an empty body, a
	// member that is missing, null or an empty string, and a field of a form that is missing,
	// empty or a file. A value that cannot be an ID,
	// such as an object or a text longer than `max_key_length`, and a body that is not JSON
	// leave the request without a key. A body larger than `max_request_body` is handled as
	// for any other key.
	Optional bool `json:"optional,omitempty"`

	// A word that separates equal keys of different sources. It is also the provider in
	// records, logs, metrics and filters. Required with `parts`. Default: the name of the
	// header field in lower case, `json`, `form`, `value` or `content`, and no provider.
	Prefix string `json:"prefix,omitempty"`
}

const (
	missingPass   = "pass"
	missingReject = "reject"

	unknownRelease = "release"
	unknownHold    = "hold"

	storeErrorReject = "reject"
	storeErrorPass   = "pass"

	// offWord disables a setting.
	offWord = "off"
)

// The default of release_on, by mode. An API keeps what judges the content of a request (402 and
// 422). It releases what a client corrects under the same key, such as 415, what a bad deployment or
// a TLS port answers, such as 404 and 400, and what a server answers that did not execute it (307
// and 308: a follower that names the leader). For webhooks, every response that senders treat as a
// failure releases.
var (
	apiReleases     = []string{"5xx", "4xx", "307", "308", "!402", "!422"}
	webhookReleases = []string{"3xx", "4xx", "5xx"}
)

// DefaultMethods returns the default of [Settings.Methods].
func DefaultMethods() []string { return []string{"POST", "PATCH"} }

// RunLimit returns the maximum duration of a run, also before the defaults are set.
func (s *Settings) RunLimit() time.Duration {
	return cmp.Or(time.Duration(s.Timeout), 5*time.Minute)
}

func (s *Settings) setDefaults() {
	s.Mode = string(s.mode())
	if len(s.Methods) == 0 && len(s.Verify) == 0 && s.mode() != delivery.ModeMCP {
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
	setDefault(&s.OnDuplicate, string(idempotency.ReplayDuplicate))
	setDefault(&s.OnStoreError, storeErrorReject)
	setDefault(&s.MaxRequestBody, 8<<20)
	setDefault(&s.MaxResponseBody, 8<<20)
	if s.RetentionFrom != nil {
		setDefault(&s.RetentionFrom.Max, caddy.Duration(defaultMaxRetention))
	}
}

// mode returns the effective mode, or "" if the user must set one.
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

// releasing returns the effective words of release_on.
func (s *Settings) releasing() []string {
	if slices.Equal(s.ReleaseOn, []string{offWord}) || s.Mode == string(delivery.ModeMCP) {
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
