package caddymodule

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

func init() {
	httpcaddyfile.RegisterDirective("dedup", parseDirective)
	// After authentication, so that the scope has the caller; inside encode, so that responses
	// are stored unencoded; before handle and similar directives.
	httpcaddyfile.RegisterDirectiveOrder("dedup", httpcaddyfile.After, "templates")
}

// parseDirective reads the directive as [httpcaddyfile.RegisterHandlerDirective] does, but checks the
// matcher, too.
func parseDirective(h httpcaddyfile.Helper) ([]httpcaddyfile.ConfigValue, error) {
	h.Next() // the directive's name
	if err := checkMatcher(*h.Dispenser); err != nil {
		return nil, err
	}
	matcher, err := h.ExtractMatcherSet()
	if err != nil {
		return nil, err
	}
	handler := new(Handler)
	if err := handler.UnmarshalCaddyfile(h.Dispenser); err != nil {
		return nil, err
	}
	return h.NewRoute(matcher, handler), nil
}

// separators are written between paths where a matcher has one path. A name may have a comma.
var separators = regexp.MustCompile(`[,\s]+/`)

// checkMatcher refuses several paths behind the directive's name, as two arguments or as one that no
// request matches.
func checkMatcher(d caddyfile.Dispenser) error {
	at, args := d, d.RemainingArgs()
	var paths []string
	comma := false
	for _, arg := range args {
		if path := strings.TrimRight(arg, ","); strings.HasPrefix(arg, "/") {
			paths = append(paths, strings.Split(separators.ReplaceAllString(path, "\x00/"), "\x00")...)
			comma = comma || path != arg
		}
	}
	if len(paths) > 1 || comma {
		return errorAt(&at, "dedup takes one path; for several, write @x path %s on a line of its own, and dedup @x", strings.Join(paths, " "))
	}
	return nil
}

// Subdirectives returns the words of the directive's block, sorted.
func Subdirectives() []string { return slices.Sorted(maps.Keys(handlerBlock)) }

// handlerBlock has the words of the handler's block.
var handlerBlock = block[Settings]{
	"observe":           flag(func(s *Settings) *bool { return &s.Observe }),
	"mode":              choice(func(s *Settings) *string { return &s.Mode }, delivery.ModeAPI, delivery.ModeWebhook, delivery.ModeMCP),
	"on_missing":        choice(func(s *Settings) *string { return &s.OnMissing }, missingPass, missingReject),
	"fingerprint":       choice(func(s *Settings) *string { return &s.Fingerprint }, idempotency.FingerprintBody, idempotency.FingerprintJSON, idempotency.FingerprintNone),
	"on_unknown":        choice(func(s *Settings) *string { return &s.OnUnknown }, unknownRelease, unknownHold),
	"on_duplicate":      choice(func(s *Settings) *string { return &s.OnDuplicate }, idempotency.ReplayDuplicate, idempotency.ConflictDuplicate, idempotency.AcknowledgeDuplicate, idempotency.SeeOtherDuplicate),
	"on_store_error":    choice(func(s *Settings) *string { return &s.OnStoreError }, storeErrorReject, storeErrorPass),
	"methods":           list("methods such as POST PUT", func(s *Settings) *[]string { return &s.Methods }, checkMethods),
	"scope":             list("texts with placeholders, or shared and a name", func(s *Settings) *[]string { return &s.Scope }, checkScope),
	"caller":            list("placeholders such as {http.request.cookie.session}", func(s *Settings) *[]string { return &s.Caller }, checkCaller),
	"tools":             list("names of tools, such as pay refund", func(s *Settings) *[]string { return &s.Tools }, checkTools),
	"release_on":        list("off, or statuses, classes and exceptions such as 409 5xx !503", func(s *Settings) *[]string { return &s.ReleaseOn }, checkReleaseOn),
	"release_if":        releaseIfWord,
	"exclude":           list("JSON pointers such as /sent_at, and parameters of the query such as ?ts", func(s *Settings) *[]string { return &s.Exclude }, checkExclude),
	"keep_header":       list("names of header fields", func(s *Settings) *[]string { return &s.KeepHeader }, checkKeepHeader),
	"retention":         period(time.Second, func(s *Settings) *caddy.Duration { return &s.Retention }),
	"retention_from":    setting(func(s *Settings) **RetentionSource { return &s.RetentionFrom }, parseRetentionFrom, (*RetentionSource).check),
	"lease":             period(minLease, func(s *Settings) *caddy.Duration { return &s.Lease }),
	"timeout":           period(time.Millisecond, func(s *Settings) *caddy.Duration { return &s.Timeout }),
	"max_request_body":  size(func(s *Settings) *int64 { return &s.MaxRequestBody }),
	"max_response_body": size(func(s *Settings) *int64 { return &s.MaxResponseBody }),
	"max_key_length":    count(1, func(s *Settings) *int { return &s.MaxKeyLength }),
	"max_attempts":      count(0, func(s *Settings) *int { return &s.MaxAttempts }),
	"force":             text("the name of a header field", func(s *Settings) *string { return &s.Force }, checkForce),
	"key":               keyWord,
	verifyWord:          verifySetting,
	"wait":              periodOrOff(time.Millisecond, "a duration from 1ms to 36500d, such as 30s", func(s *Settings) **caddy.Duration { return &s.Wait }),
	"docs":              text("a URL", func(s *Settings) *string { return &s.Docs }, checkDocs),
	"store":             setting(func(s *Settings) *json.RawMessage { return &s.StoreRaw }, parseStore, anyValue),
}

// UnmarshalCaddyfile reads the directive. Syntax: docs/directive.md.
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the directive's name
	at := *d
	words, err := h.read(d)
	if err == nil {
		if err = h.checkConflicts(); err != nil {
			err = words.wrap(err, at)
		}
	}
	return hidePasswords(*d, err)
}

// read reads the directive behind its name and returns the positions of its words.
func (s *Settings) read(d *caddyfile.Dispenser) (wordLines, error) {
	s.Providers = d.RemainingArgs()
	for _, name := range s.Providers {
		if _, ok := handlerBlock[name]; ok {
			return nil, errorAt(d, "%s is a word of the block: dedup { %s ... }, on a line of its own; behind dedup come a matcher and providers", name, name)
		}
		if strings.HasPrefix(name, "/") || strings.HasPrefix(name, "@") || name == "*" {
			return nil, errorAt(d, "the matcher %s comes before the providers, as in dedup %s github", name, name)
		}
	}
	if err := checkProviders(s.Providers); err != nil {
		if len(delivery.NearNames(s.Providers[0])) == 0 {
			err = fmt.Errorf("%w; a path begins with /", err)
		}
		return nil, errorAt(d, "%w", err)
	}
	return handlerBlock.parse(d, "dedup", s)
}

var _ caddyfile.Unmarshaler = (*Handler)(nil)

// keyForms are the arguments of key.
const keyForms = "header <field> [<prefix>], json <JSON pointer> [<prefix>], form <field> [<prefix>], value <text> [<prefix>], content [<prefix>] or parts <prefix> { ... }"

// keyWord adds a source. For JSON, [Settings.check] checks all of them.
var keyWord = word[Settings]{
	parse: func(s *Settings, d *caddyfile.Dispenser) error {
		source, err := parseKey(d)
		s.Keys = append(s.Keys, source)
		return err
	},
	check:   func(s *Settings) error { return s.checkKey(len(s.Keys) - 1) },
	isUnset: func(*Settings) bool { return true },
	repeats: true,
}

// parseKey reads one line `key …`.
func parseKey(d *caddyfile.Dispenser) (source KeySource, err error) {
	args := d.RemainingArgs()
	if len(args) == 0 {
		return source, errorAt(d, "key lacks its source; use %s", keyForms)
	}
	if args[0] == delivery.KindParts {
		return parseParts(d, args[1:])
	}
	source, err = parseSource(d, args, "key ", keyForms)
	if err == nil && source.Prefix == optionalWord {
		err = errorAt(d, "key %s: %s is a word of the lines in key parts, not a prefix; a source that is absent is skipped anyway", args[0], optionalWord)
	}
	return source, err
}

// keyKinds are the kinds of source on one line, each with the field that its argument sets.
// Content takes no argument.
var keyKinds = map[string]func(*KeySource) *string{
	delivery.KindHeader:  func(k *KeySource) *string { return &k.Header },
	delivery.KindJSON:    func(k *KeySource) *string { return &k.JSON },
	delivery.KindForm:    func(k *KeySource) *string { return &k.Form },
	delivery.KindValue:   func(k *KeySource) *string { return &k.Value },
	delivery.KindContent: nil,
}

// parseSource reads a source of one line, and its prefix.
func parseSource(d *caddyfile.Dispenser, args []string, before, forms string) (KeySource, error) {
	kind, args := args[0], args[1:]
	var source KeySource
	field, ok := keyKinds[kind]
	if !ok {
		return source, errorAt(d, "%s%q is not accepted; use %s", before, kind, forms)
	}
	takes := 1
	if field == nil {
		takes, source.Content = 0, true
	}
	if len(args) < takes || len(args) > takes+1 {
		return source, errorAt(d, "%s%s has the wrong number of arguments, %q; use %s", before, kind, args, forms)
	}
	if takes == 1 {
		if args[0] == "" {
			return source, errorAt(d, "%s%s is empty; use %s", before, kind, forms)
		}
		*field(&source) = args[0]
	}
	if len(args) > takes {
		if source.Prefix = args[takes]; source.Prefix == "" {
			return source, errorAt(d, "%s%s: the prefix is empty; use %s", before, kind, forms)
		}
	}
	return source, noBlock(d, before+kind)
}

// partForms are the lines of a block of parts.
const partForms = "header <field>, json <JSON pointer>, form <field>, value <text> or content, each with optional behind it if it may be absent"

// optionalWord marks a part that may be absent.
const optionalWord = "optional"

// parseParts reads `key parts <prefix> { … }`.
func parseParts(d *caddyfile.Dispenser, args []string) (KeySource, error) {
	if len(args) != 1 {
		return KeySource{}, errorAt(d, "key parts takes one argument, a prefix; it has %q", args)
	}
	source := KeySource{Prefix: args[0]}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		part, err := parsePart(d)
		if err != nil {
			return KeySource{}, err
		}
		source.Parts = append(source.Parts, part)
	}
	if len(source.Parts) == 0 {
		return KeySource{}, errorAt(d, "key parts lacks its block; use one with lines of %s", partForms)
	}
	return source, nil
}

// parsePart reads the line of one part.
func parsePart(d *caddyfile.Dispenser) (KeySource, error) {
	line := append([]string{d.Val()}, d.RemainingArgs()...)
	last := len(line) - 1
	optional := last > 0 && line[last] == optionalWord
	if optional {
		line = line[:last]
	}
	part, err := parseSource(d, line, "key parts: ", partForms)
	if err != nil {
		return KeySource{}, err
	}
	if part.Prefix != "" {
		return KeySource{}, errorAt(d, "key parts: %s has %q behind it; a part has no prefix, and only the word %s may follow", line[0], part.Prefix, optionalWord)
	}
	if err := part.checkAsPart(); err != nil {
		return KeySource{}, errorAt(d, "key parts: %w", err)
	}
	part.Optional = optional
	return part, nil
}
