package caddymodule

import (
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

func init() {
	httpcaddyfile.RegisterHandlerDirective("dedup", parseHandler)
	// After authentication, so that the scope knows the caller; inside encode,
	// so that responses are kept unencoded; before handle and the like.
	httpcaddyfile.RegisterDirectiveOrder("dedup", httpcaddyfile.After, "templates")
}

func parseHandler(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	handler := new(Handler)
	err := handler.UnmarshalCaddyfile(h.Dispenser)
	return handler, err
}

// settingParser reads the arguments of one setting, whose word is the current
// token.
type settingParser func(*Settings, *caddyfile.Dispenser) error

// settingParsers are the words of the handler's block.
var settingParsers = map[string]settingParser{
	"observe":           func(s *Settings, d *caddyfile.Dispenser) (err error) { s.Observe, err = flagWord(d); return err },
	"mode":              word("mode", func(s *Settings) *string { return &s.Mode }),
	"on_missing":        word("on_missing", func(s *Settings) *string { return &s.OnMissing }),
	"fingerprint":       word("fingerprint", func(s *Settings) *string { return &s.Fingerprint }),
	"on_unknown":        word("on_unknown", func(s *Settings) *string { return &s.OnUnknown }),
	"on_duplicate":      word("on_duplicate", func(s *Settings) *string { return &s.OnDuplicate }),
	"on_store_error":    word("on_store_error", func(s *Settings) *string { return &s.OnStoreError }),
	"methods":           list("methods such as POST PUT", func(s *Settings) *[]string { return &s.Methods }, checkMethods),
	"scope":             list("texts with placeholders", func(s *Settings) *[]string { return &s.Scope }, checkScope),
	"release_on":        list("off, or statuses, classes and exceptions such as 409 5xx !503", func(s *Settings) *[]string { return &s.ReleaseOn }, checkReleaseOn),
	"exclude":           list("JSON pointers such as /sent_at, and parameters of the query such as ?ts", func(s *Settings) *[]string { return &s.Exclude }, checkExclude),
	"keep_header":       list("names of header fields", func(s *Settings) *[]string { return &s.KeepHeader }, checkKeepHeader),
	"retention":         period("retention", time.Second, func(s *Settings) *caddy.Duration { return &s.Retention }),
	"retention_from":    parseRetentionFrom,
	"lease":             period("lease", minLease, func(s *Settings) *caddy.Duration { return &s.Lease }),
	"timeout":           period("timeout", time.Millisecond, func(s *Settings) *caddy.Duration { return &s.Timeout }),
	"max_request_body":  size("max_request_body", func(s *Settings) *int64 { return &s.MaxRequestBody }),
	"max_response_body": size("max_response_body", func(s *Settings) *int64 { return &s.MaxResponseBody }),
	"max_key_length":    count("max_key_length", 1, func(s *Settings) *int { return &s.MaxKeyLength }),
	"max_attempts":      count("max_attempts", 0, func(s *Settings) *int { return &s.MaxAttempts }),
	"force":             text("the name of a header field", func(s *Settings) *string { return &s.Force }, checkForce),
	"key":               parseKey,
	"wait":              parseWait,
	"docs":              text("a URL", func(s *Settings) *string { return &s.Docs }, checkDocs),
	"store":             parseHandlerStore,
}

// UnmarshalCaddyfile reads the directive. Syntax: docs/directive.md.
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	places, err := h.read(d)
	if err != nil {
		return hidePasswords(*d, err)
	}
	if word, err := h.checkTogether(); err != nil {
		at := places[word]
		return hidePasswords(*d, at.WrapErr(err))
	}
	return nil
}

// read reads the directive, and returns where its words stand.
func (s *Settings) read(d *caddyfile.Dispenser) (places map[string]caddyfile.Dispenser, err error) {
	d.Next() // the directive's name
	s.Providers = d.RemainingArgs()
	for _, name := range s.Providers {
		if _, ok := settingParsers[name]; ok {
			return nil, d.Errf("%s is a word of the block: dedup { %s ... }, on a line of its own; behind dedup come a matcher and providers", name, name)
		}
		if strings.HasPrefix(name, "/") || strings.HasPrefix(name, "@") || name == "*" {
			return nil, d.Errf("the matcher %s comes before the providers, as in dedup %s github", name, name)
		}
	}
	if err := checkProviders(s.Providers); err != nil {
		return nil, d.WrapErr(err)
	}
	places = make(map[string]caddyfile.Dispenser) // import brings words of several files together
	for d.NextBlock(0) {
		name := d.Val()
		parse, ok := settingParsers[name]
		if !ok {
			return nil, unknownWord(d, "dedup", slices.Sorted(maps.Keys(settingParsers)))
		}
		if _, twice := places[name]; twice && name != "key" {
			return nil, d.Errf("dedup: %s is repeated; only key may repeat", name)
		}
		places[name] = *d
		if err := parse(s, d); err != nil {
			return nil, err
		}
	}
	return places, nil
}

// unknownWord refuses the current word of a block.
func unknownWord(d *caddyfile.Dispenser, block string, words []string) error {
	hint := ""
	if form, ok := hints[d.Val()]; ok {
		hint = "write " + form + "; "
	} else if _, ok := delivery.ProviderNamed(d.Val()); ok || strings.HasPrefix(d.Val(), "/") {
		hint = "a matcher and providers come behind dedup, as in dedup /webhooks/* github (--path and --provider of the command proxy); "
	} else if near := delivery.Nearest(d.Val(), words); len(belongs[d.Val()]) > 0 {
		hint = "it belongs " + delivery.Alternatives(belongs[d.Val()]) + "; "
	} else if len(near) > 0 {
		hint = "did you mean " + delivery.Alternatives(near) + "? "
	}
	return d.Errf("%s: unknown word %q; %suse %s", block, d.Val(), hint, delivery.Alternatives(words))
}

// hints are the right forms for words that people often write.
var hints = map[string]string{
	"ttl":      "retention 7d in the block of a site's dedup",
	"expire":   "retention 7d in the block of a site's dedup",
	"status":   "release_on 409 for a response that releases the key, or on_duplicate conflict for what duplicates get",
	"provider": "the provider's name behind dedup, as in dedup github",
	"redis":    "store redis {env.REDIS_URL}, or store redis and a URL such as redis://host:6379",
}

// belongs has the blocks that accept each word.
var belongs = make(map[string][]string)

// The parsers of the words refer to the error that has this, so it is filled here.
func init() {
	for _, in := range []struct {
		place string
		words iter.Seq[string]
	}{
		{"in the block of a site's dedup", maps.Keys(settingParsers)},
		{"in the global option dedup", maps.Keys(globalWords)},
		{"in limits of the global option dedup", maps.Keys(limitWords)},
		{"in store redis", maps.Keys(redisWords)},
		{"in tls of store redis", maps.Keys(tlsWords)},
	} {
		for word := range in.words {
			belongs[word] = append(belongs[word], in.place)
		}
	}
	for kind := range keyKinds {
		belongs[kind] = append(belongs[kind], "behind key, as key "+kind)
	}
	belongs[delivery.KindParts] = []string{"behind key, as key " + delivery.KindParts}
}

// oneArg reads the only argument of the current word.
func oneArg(d *caddyfile.Dispenser, what string) (string, error) {
	name := d.Val()
	args := d.RemainingArgs()
	if len(args) != 1 {
		return "", d.Errf("%s takes one argument, %s; it has %d: %q", name, what, len(args), args)
	}
	return args[0], noBlock(d, name)
}

// noBlock refuses a block behind a word that has none.
func noBlock(d *caddyfile.Dispenser, name string) error {
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		return d.Errf("%s takes no block; it has one with %q", name, d.Val())
	}
	return nil
}

// word parses a setting with a fixed choice of words.
func word(name string, field func(*Settings) *string) settingParser {
	return text(delivery.Alternatives(accepted[name]), field, func(value string) error { return checkWord(name, value) })
}

// text parses a setting with one argument.
func text(what string, field func(*Settings) *string, check func(string) error) settingParser {
	return func(s *Settings, d *caddyfile.Dispenser) error {
		value, err := oneArg(d, what)
		if err != nil {
			return err
		}
		if err := check(value); err != nil {
			return d.WrapErr(err)
		}
		*field(s) = value
		return nil
	}
}

// list parses a setting with one or more arguments, which replace the default.
func list(what string, field func(*Settings) *[]string, check func([]string) error) settingParser {
	return func(s *Settings, d *caddyfile.Dispenser) error {
		name := d.Val()
		values := d.RemainingArgs()
		if len(values) == 0 {
			return d.Errf("%s lacks its arguments; it takes %s", name, what)
		}
		if err := noBlock(d, name); err != nil {
			return err
		}
		if err := check(values); err != nil {
			return d.WrapErr(err)
		}
		*field(s) = values
		return nil
	}
}

// period parses a setting that is a duration.
func period(name string, min time.Duration, field func(*Settings) *caddy.Duration) settingParser {
	return func(s *Settings, d *caddyfile.Dispenser) error {
		value, err := oneArg(d, "a duration such as 30s or 7d")
		if err != nil {
			return err
		}
		*field(s), err = parseDuration(d, name, value, min)
		return err
	}
}

func parseDuration(d *caddyfile.Dispenser, name, value string, min time.Duration) (caddy.Duration, error) {
	parsed, err := caddy.ParseDuration(value)
	if err != nil && durations.MatchString(value) {
		return 0, d.Errf("%s: %s is too long; use at most 36500d", name, value)
	}
	if err != nil {
		return 0, d.Errf("%s: %q is not a duration; use one such as 500ms, 30s, 5m or 7d", name, value)
	}
	if err := checkDuration(name, caddy.Duration(parsed), min); err != nil {
		return 0, d.WrapErr(err)
	}
	return caddy.Duration(parsed), nil
}

// size parses a setting that is a number of bytes.
func size(name string, field func(*Settings) *int64) settingParser {
	return func(s *Settings, d *caddyfile.Dispenser) (err error) {
		*field(s), err = sizeArg(d, name)
		return err
	}
}

// count parses a setting that is a whole number.
func count(name string, min int, field func(*Settings) *int) settingParser {
	return func(s *Settings, d *caddyfile.Dispenser) (err error) {
		*field(s), err = countArg(d, name, min)
		return err
	}
}

// flagWord reads a word that takes no argument.
func flagWord(d *caddyfile.Dispenser) (bool, error) {
	name := d.Val()
	if args := d.RemainingArgs(); len(args) > 0 {
		return false, d.Errf("%s takes no argument; it has %d: %q", name, len(args), args)
	}
	return true, noBlock(d, name)
}

// parseWait reads `wait <duration>|off`. Off is a duration of 0.
func parseWait(s *Settings, d *caddyfile.Dispenser) error {
	value, err := oneArg(d, "a duration such as 30s, or off")
	if err != nil {
		return err
	}
	var wait caddy.Duration
	if value != offWord {
		if wait, err = parseDuration(d, "wait", value, time.Millisecond); err != nil {
			return d.Errf("wait: %q is not accepted; use a duration from 1ms to 36500d, such as 30s, or off", value)
		}
	}
	s.Wait = &wait
	return nil
}

func parseHandlerStore(s *Settings, d *caddyfile.Dispenser) error {
	raw, err := parseStore(d)
	s.StoreRaw = raw
	return err
}

var _ caddyfile.Unmarshaler = (*Handler)(nil)

// keyForms are the arguments of key.
const keyForms = "header <field> [<prefix>], json <JSON pointer> [<prefix>], value <text> [<prefix>], content [<prefix>] or parts <prefix> { ... }"

// parseKey reads one line `key …`.
func parseKey(s *Settings, d *caddyfile.Dispenser) error {
	args := d.RemainingArgs()
	if len(args) == 0 {
		return d.Errf("key lacks its source; use %s", keyForms)
	}
	var source KeySource
	var err error
	if args[0] == delivery.KindParts {
		source, err = parseParts(d, args[1:])
	} else {
		source, err = parseSource(d, args, "key ", keyForms)
	}
	if err != nil {
		return err
	}
	if source.Prefix == optionalWord && len(source.Parts) == 0 {
		return d.Errf("key %s: %s is a word of the lines in key parts, and no prefix; a key that is absent is passed over anyway", args[0], optionalWord)
	}
	if err := source.check(); err != nil {
		return d.Errf("key: %w", err)
	}
	if slices.ContainsFunc(s.Keys, source.shadowedBy) {
		return d.Errf("key %s is read twice; the second line would never be reached", source.source())
	}
	s.Keys = append(s.Keys, source)
	return nil
}

// keyKinds are the sources of one line, each with the field that its argument sets;
// content takes none.
var keyKinds = map[string]func(*KeySource) *string{
	delivery.KindHeader:  func(k *KeySource) *string { return &k.Header },
	delivery.KindJSON:    func(k *KeySource) *string { return &k.JSON },
	delivery.KindValue:   func(k *KeySource) *string { return &k.Value },
	delivery.KindContent: nil,
}

// parseSource reads a source of one line, and its prefix.
func parseSource(d *caddyfile.Dispenser, args []string, before, forms string) (KeySource, error) {
	kind, args := args[0], args[1:]
	var source KeySource
	field, ok := keyKinds[kind]
	if !ok {
		return source, d.Errf("%s%q is not accepted; use %s", before, kind, forms)
	}
	takes := 1
	if field == nil {
		takes, source.Content = 0, true
	}
	if len(args) < takes || len(args) > takes+1 {
		return source, d.Errf("%s%s has the wrong number of arguments, %q; use %s", before, kind, args, forms)
	}
	if takes == 1 {
		if args[0] == "" {
			return source, d.Errf("%s%s is empty; use %s", before, kind, forms)
		}
		*field(&source) = args[0]
	}
	if len(args) > takes {
		if source.Prefix = args[takes]; source.Prefix == "" {
			return source, d.Errf("%s%s: the prefix is empty; use %s", before, kind, forms)
		}
	}
	return source, noBlock(d, before+kind)
}

// partForms are the lines of a block of parts.
const partForms = "header <field>, json <JSON pointer>, value <text> or content, each with optional behind it if it may be absent"

// optionalWord ends the line of a part that may be absent.
const optionalWord = "optional"

// parseParts reads `key parts <prefix> { … }`.
func parseParts(d *caddyfile.Dispenser, args []string) (KeySource, error) {
	if len(args) != 1 {
		return KeySource{}, d.Errf("key parts takes one argument, a prefix; it has %q", args)
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
		return KeySource{}, d.Errf("key parts lacks its block; use one with lines of %s", partForms)
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
		return KeySource{}, d.Errf("key parts: %s has %q behind it; a part has no prefix, and only the word %s may follow", line[0], part.Prefix, optionalWord)
	}
	if err := part.checkAsPart(); err != nil {
		return KeySource{}, d.Errf("key parts: %w", err)
	}
	part.Optional = optional
	return part, nil
}
