package caddymodule

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/caddyserver/caddy/v2"
	"golang.org/x/net/http/httpguts"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/httpfield"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/identify"
	"github.com/caddy-dedup/caddy-dedup/internal/toolcall"
)

// minLease is a lower bound for three renewals of 100 ms each.
const minLease = 300 * time.Millisecond

// excludedMethods are the safe methods, and CONNECT, which has no response to keep.
var excludedMethods = []string{"GET", "HEAD", "OPTIONS", "TRACE", "QUERY", "CONNECT"}

// check returns what is wrong with the settings once the defaults are set. The Caddyfile runs the
// same checks per word, to name the line.
func (s *Settings) check() error {
	err := errors.Join(named("providers", checkProviders(s.Providers)), checkEach("keys", s.Keys, s.checkKey),
		checkEach("verify", s.Verify, func(i int) error { return s.Verify[i].check() }), handlerBlock.check(s))
	if err != nil {
		return err
	}
	return s.checkConflicts()
}

// checkConflicts finds settings that exclude each other.
func (s *Settings) checkConflicts() error {
	if s.mode() == "" { // only the user can decide what to leave out of the key
		return conflictf("key", "mode: providers beside keys need it written; webhook leaves the caller and the fingerprint out of a key, so that clients that send equal keys get each other's responses; api leaves nothing out, so that a delivery whose body or credential changes with a retry is refused or runs again")
	}
	if err := s.checkCallerConflicts(); err != nil {
		return err
	}
	if len(s.Tools) > 0 && s.mode() != delivery.ModeMCP {
		return conflictf("tools", "tools: only mode mcp has calls of tools; add mode mcp, or leave tools out")
	}
	if s.mode() == delivery.ModeMCP {
		return s.checkMCP()
	}
	if err := s.checkSenders(); err != nil {
		return err
	}
	if s.Force != "" && len(s.Providers) > 0 {
		return conflictf("force", "force: beside a provider, any sender could run a delivery again; use a handler without providers, or leave force out")
	}
	fingerprint := idempotency.FingerprintKind(s.Fingerprint)
	config := identify.Config{Mode: s.mode(), Fingerprint: fingerprint}
	content, other, fingerprinted, forms := false, false, false, len(s.Keys) > 0
	parsed := slices.ContainsFunc(slices.Concat(s.Scope, s.Caller), namesMember) // for the hash that tells duplicates apart
	for _, source := range s.deliverySources() {
		parsed = parsed || source.NeedsBody() && !source.ReadsFormOnly() || slices.ContainsFunc(append(source.Parts, source), func(part delivery.Source) bool { return namesMember(part.Text) })
		content = content || source.MadeOfContent()
		other = other || !source.MadeOfContent()
		forms = forms && source.NeedsBody() && source.ReadsFormOnly()
		fingerprinted = fingerprinted || config.FingerprintFor(delivery.Found{Content: source.MadeOfContent()}) != idempotency.FingerprintNone
		if s.Force != "" && reads(source, s.Force) {
			return conflictf("force", "force: %s is where the key comes from; use another field", s.Force)
		}
	}
	if s.Force != "" && s.RetentionFrom != nil && reads(s.RetentionFrom.source(), s.Force) {
		return conflictf("force", "force: %s is where the retention comes from; use another field", s.Force)
	}
	readsForce := func(text string) bool { return reads(delivery.Source{Text: text}, s.Force) }
	if s.Force != "" && slices.ContainsFunc(slices.Concat(s.Scope, s.Caller), readsForce) {
		return conflictf("force", "force: %s is a part of the scope, and the field is removed from requests; use another field", s.Force)
	}
	taken := s.Fingerprint != "" && fingerprint != idempotency.FingerprintNone
	if taken && content && !other {
		return conflictf("fingerprint", "fingerprint %s and a key made of content exclude each other: different content has a different key; leave fingerprint out", s.Fingerprint)
	}
	for _, word := range s.Exclude {
		switch parameter := strings.HasPrefix(word, "?"); {
		case parameter && !fingerprinted:
			return conflictf("exclude", "exclude: %s is left out of the query in a fingerprint, and there is none; add fingerprint body or json, or remove it", word)
		case !parameter && forms && !parsed:
			return conflictf("exclude", "exclude: %s is a member of JSON, and the body with the key is a form; write fingerprint none, since its key is the form's", word)
		case !parameter && !content && fingerprint != idempotency.FingerprintJSON && !(s.mode() == delivery.ModeWebhook && parsed):
			return conflictf("exclude", "exclude: %s is left out of a content key or of a json fingerprint, and there is neither; add key content or fingerprint json, or remove it", word)
		}
	}
	return nil
}

// checkMCP finds settings that exclude mode mcp.
func (s *Settings) checkMCP() error {
	if len(s.Keys) == 0 {
		return conflictf("mode", "mode mcp: a tool call has no key by default; write where your clients send it, such as key json /params/arguments/idempotency_key")
	}
	for _, excluded := range []struct {
		word string
		set  bool
		why  string
	}{
		{"providers", len(s.Providers) > 0, "providers send webhooks; use a handler of its own for them"},
		{verifyWord, len(s.Verify) > 0, "a 401 would begin an authorization with OAuth; check callers in front"},
		{"methods", len(s.Methods) > 0, "tool calls are POST; leave methods out"},
		{"release_on", len(s.ReleaseOn) > 0, "the JSON-RPC response decides; leave release_on out"},
		{"release_if", len(s.ReleaseIf) > 0, "error and isError of the JSON-RPC response release; leave release_if out"},
		{"fingerprint", s.Fingerprint != "", "it is the query and the params of the call; leave fingerprint out, and name with exclude what differs in a repeat"},
		{"force", s.Force != "", "clients cannot set header fields for one call; leave force out"},
		{"on_duplicate", s.OnDuplicate == string(idempotency.AcknowledgeDuplicate) || s.OnDuplicate == string(idempotency.SeeOtherDuplicate),
			"a duplicate needs a JSON-RPC response; use replay or conflict"},
	} {
		if excluded.set {
			return conflictf("mode "+excluded.word, "mode mcp and %s exclude each other: %s", excluded.word, excluded.why)
		}
	}
	for _, name := range s.KeepHeader {
		if toolcall.NeverKept(http.CanonicalHeaderKey(name)) {
			return conflictf("keep_header", "mode mcp: %s is of the first client's stream or origin and cannot be kept; leave it out, and send it with a header directive", name)
		}
	}
	for _, source := range s.deliverySources() {
		switch {
		case source.MadeOfContent() && s.Retention == 0:
			return conflictf("key", "mode mcp: key content needs a retention, within which two equal calls that are both meant are one; write retention 1m, or as long as your clients repeat a call")
		case slices.ContainsFunc(append(source.Parts, source), delivery.Source.ReadsFormOnly):
			return conflictf("key", "mode mcp: a tool call is JSON and has no form; use key json /params/arguments/idempotency_key")
		case slices.ContainsFunc([]string{"/params", "/params/arguments", "/params/_meta"}, func(object string) bool { return readsMember(source, object) }):
			return conflictf("key", "mode mcp: a key is a text, and params, its arguments and its _meta are objects; name a member of them, such as key json /params/arguments/idempotency_key")
		case readsMember(source, "/id"):
			return conflictf("key", "mode mcp: the id differs in a repeat, and other clients send the same; use key json /params/arguments/idempotency_key")
		}
	}
	return nil
}

// namesMember reports whether a text has a placeholder of a member of the body.
func namesMember(text string) bool { return len(identify.MembersIn(text)) > 0 }

// readsMember reports whether a source reads a member of the body.
func readsMember(source delivery.Source, pointer string) bool {
	return source.Pointer == pointer || slices.Contains(identify.MembersIn(source.Text), pointer) ||
		slices.ContainsFunc(source.Parts, func(part delivery.Source) bool { return readsMember(part, pointer) })
}

// reads reports whether a source reads a header field.
func reads(source delivery.Source, field string) bool {
	placeholder := "{http.request.header." + strings.ToLower(field) + "}"
	return strings.EqualFold(source.Header, field) || strings.Contains(strings.ToLower(source.Text), placeholder) ||
		slices.ContainsFunc(source.Parts, func(part delivery.Source) bool { return reads(part, field) })
}

func checkExclude(pointers []string) error {
	for _, pointer := range pointers {
		err := delivery.CheckExclude(pointer)
		if !strings.HasPrefix(pointer, "?") {
			err = cmp.Or(checkPointerText(pointer), err)
		}
		if err != nil {
			return err
		}
	}
	return checkUnique(pointers)
}

// reservedFields cannot be force, which removes its field: they have a meaning of their own, and
// without those that identify the caller, all callers would share their keys.
var reservedFields = slices.Concat(credentialFields, callerFields, []string{"Host", "Expect"})

func checkForce(name string) error {
	canonical := http.CanonicalHeaderKey(name)
	if slices.Contains(reservedFields, canonical) || slices.Contains(httpfield.HopByHop, canonical) || strings.HasPrefix(canonical, "Content-") {
		return fmt.Errorf("%s has a meaning of its own, and force removes its field from requests; use another field such as X-Force", name)
	}
	if strings.HasPrefix(http.CanonicalHeaderKey(name), httpfield.DedupPrefix) {
		return fmt.Errorf("fields that start with %s are removed from requests; use another field such as X-Force", httpfield.DedupPrefix)
	}
	return checkHeaderNames([]string{name})
}

func checkProviders(names []string) error {
	for i, name := range names {
		if _, ok := delivery.ProviderNamed(name); !ok {
			return delivery.UnknownProvider(withoutPassword(name))
		}
		if slices.Contains(names[:i], name) {
			return fmt.Errorf("the provider %q is named twice", name)
		}
	}
	return nil
}

func checkMethods(methods []string) error {
	for i, method := range methods {
		switch method = strings.ToUpper(method); {
		case strings.ContainsAny(method, ",| "):
			apart := strings.FieldsFunc(method, func(r rune) bool { return strings.ContainsRune(",| ", r) })
			return fmt.Errorf("%q is not a method; write each by itself, such as %s", withoutPassword(methods[i]), strings.Join(apart, " "))
		case !httpguts.ValidHeaderFieldName(method):
			return fmt.Errorf("%q is not a method; it must be a word such as POST", withoutPassword(methods[i]))
		case strings.Contains(method, "*") || method == "ALL" || method == "ANY": // valid names that no method has
			return fmt.Errorf("%q is not a wildcard for methods; name each of them, such as POST PUT PATCH DELETE", method)
		case slices.Contains(excludedMethods, method):
			return fmt.Errorf("%s is never deduplicated; use methods that change something, such as POST, PUT, PATCH, DELETE", method)
		case slices.ContainsFunc(methods[:i], func(before string) bool { return strings.EqualFold(before, method) }):
			return fmt.Errorf("%s is named twice", method)
		}
	}
	return nil
}

func checkReleaseOn(words []string) error {
	if err := checkUnique(words); err != nil {
		return err
	}
	if slices.Contains(words, offWord) {
		if len(words) > 1 {
			return fmt.Errorf("off stands alone, not with %s", delivery.Alternatives(slices.DeleteFunc(slices.Clone(words), isOff)))
		}
		return nil
	}
	for _, word := range words {
		meant := strings.Fields(strings.ToLower(strings.ReplaceAll(word, ",", " ")))
		if _, err := idempotency.ParseStatuses(meant...); err == nil && !slices.Equal(meant, []string{word}) {
			return fmt.Errorf("%q is not accepted; write %s", word, strings.Join(meant, " "))
		}
	}
	if _, err := idempotency.ParseStatuses(words...); err != nil {
		return fmt.Errorf("%w, nor off", err)
	}
	return nil
}

func isOff(word string) bool { return word == offWord }

// Upper bounds of settings, low enough that no sum or product of them overflows.
const (
	maxBytes = 1 << 50
	maxCount = math.MaxInt32
)

// durations matches every duration that is not negative. If one cannot be parsed, it overflows.
var durations = regexp.MustCompile(`^([0-9]+(\.[0-9]+)?(d|h|m|s|ms|us|µs|ns))+$`)

func checkDuration(d caddy.Duration, min time.Duration) error {
	switch {
	case duration(d) < min:
		return fmt.Errorf("%s is too short; use at least %s", duration(d), min)
	case duration(d) > idempotency.MaxRetention:
		return fmt.Errorf("%s is too long; use at most 36500d", duration(d))
	}
	return nil
}

func checkSize(n int64) error {
	if n <= 0 || n > maxBytes {
		return fmt.Errorf("%d is not accepted; use a number of bytes from 1 to %d, which is 1 PiB", n, int64(maxBytes))
	}
	return nil
}

func checkCount(n, min int) error {
	if n < min || n > maxCount {
		return fmt.Errorf("%d is not accepted; use a whole number from %d to %d", n, min, maxCount)
	}
	return nil
}

// checkUnique refuses a repeated word in a list.
func checkUnique(words []string) error {
	for i, word := range words {
		if slices.Contains(words[:i], word) {
			return fmt.Errorf("%s is named twice", word)
		}
	}
	return nil
}

func checkTools(names []string) error {
	if slices.Contains(names, "") {
		return errors.New("the name of a tool is empty")
	}
	return checkUnique(names)
}

func checkDocs(docs string) error {
	u, err := url.Parse(docs)
	hasHost := err == nil && (strings.EqualFold(u.Scheme, "http") || strings.EqualFold(u.Scheme, "https"))
	if err != nil || !u.IsAbs() || hasHost && u.Hostname() == "" {
		return fmt.Errorf("%q is not an absolute URL, such as https://example.com/docs/idempotency", docs)
	}
	if u.User != nil {
		return errors.New("the URL has a user, and refused clients get the URL; write one without a user")
	}
	if i := strings.IndexFunc(docs, mustBeEscaped); i >= 0 {
		c, _ := utf8.DecodeRuneInString(docs[i:])
		return fmt.Errorf("%q has %q, which must be percent-encoded in a URL; write one such as https://example.com/docs/idempotency", docs, c)
	}
	return nil
}

// mustBeEscaped reports whether a character must be escaped in a URL. The URL is sent in a header
// field of refusals.
func mustBeEscaped(c rune) bool {
	return c <= ' ' || c >= 0x7f || strings.ContainsRune("<>\"{}|\\^`", c)
}

func checkHeaderNames(names []string) error {
	for i, name := range names {
		if !httpguts.ValidHeaderFieldName(name) {
			return fmt.Errorf("%q is not the name of a header field", withoutPassword(name))
		}
		if strings.Contains(name, "*") { // valid in a name, but no field has it
			return fmt.Errorf("%q is not a wildcard for fields; name each of them", name)
		}
		if slices.ContainsFunc(names[:i], func(other string) bool { return strings.EqualFold(other, name) }) {
			return fmt.Errorf("%s is named twice", name)
		}
	}
	return nil
}

func checkKeepHeader(names []string) error {
	for _, name := range names {
		if httpfield.NeverKept(http.CanonicalHeaderKey(name)) {
			return fmt.Errorf("%s describes one connection or one request and cannot be kept", name)
		}
	}
	return checkHeaderNames(names)
}
