package caddymodule

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/dustin/go-humanize"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

// block lists the words of a Caddyfile block, which set the fields of a T.
type block[T any] map[string]word[T]

// word is one word of a block.
type word[T any] struct {
	// parse reads the arguments. The word is the current token.
	parse func(*T, *caddyfile.Dispenser) error
	// check returns what is wrong with the field, without the word's name.
	check func(*T) error
	// isUnset reports whether the field has its zero value.
	isUnset func(*T) bool
	// repeats reports whether the word may repeat.
	repeats bool
	// choices are the only arguments that the word takes, the default first; nil for any.
	choices []string
}

// setting returns the word of one field. Its check sees what parse read, and in JSON any value
// but the zero value, which stands for the default.
func setting[T, V any](field func(*T) *V, parse func(*caddyfile.Dispenser) (V, error), check func(V) error) word[T] {
	return word[T]{
		parse:   func(t *T, d *caddyfile.Dispenser) (err error) { *field(t), err = parse(d); return err },
		check:   func(t *T) error { return check(*field(t)) },
		isUnset: func(t *T) bool { return reflect.ValueOf(field(t)).Elem().IsZero() },
	}
}

// parse reads the block of a directive or word and returns the positions of its words.
func (b block[T]) parse(d *caddyfile.Dispenser, name string, into *T) (wordLines, error) {
	var found wordLines
	prefix := ""
	if d.Nesting() > 0 {
		prefix = name + ": "
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		at := *d
		w, ok := b[at.Val()]
		switch {
		case !ok && (name == verifyWord || len(found) > 0 && found[len(found)-1].Val() == verifyWord):
			return nil, errorAt(d, "%s: unknown word behind verify, which is not shown because it may be a secret; use %s", name, delivery.Alternatives(slices.Sorted(maps.Keys(b))))
		case !ok:
			return nil, unknownWord(d, name, slices.Sorted(maps.Keys(b)))
		case !w.repeats && found.has(at.Val()):
			return nil, errorAt(d, "%s: %s is repeated; write it once", name, at.Val())
		}
		found = append(found, at)
		if err := w.parse(into, d); err != nil {
			return nil, err
		}
		if err := w.check(into); err != nil {
			return nil, errorAt(&at, "%s%s: %w", prefix, at.Val(), err)
		}
	}
	return found, nil
}

// parseAlone is parse for a word that takes only its block.
func (b block[T]) parseAlone(d *caddyfile.Dispenser, name string, into *T) error {
	if args := d.RemainingArgs(); len(args) > 0 {
		return errorAt(d, "%s takes a block and no arguments; it has %q", name, args)
	}
	_, err := b.parse(d, name, into)
	return err
}

// check returns what is wrong with the fields of the JSON form.
func (b block[T]) check(t *T) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(b)) {
		if w := b[name]; !w.isUnset(t) {
			errs = append(errs, named(name, w.check(t)))
		}
	}
	return errors.Join(errs...)
}

// named returns an error behind the name of its setting, if it has one.
func named(setting string, err error) error {
	if err == nil || setting == "" {
		return err
	}
	return fmt.Errorf("%s: %w", setting, err)
}

// checkEach returns what is wrong with the elements of a setting.
func checkEach[E any](setting string, elements []E, check func(i int) error) error {
	var errs []error
	for i := range elements {
		errs = append(errs, named(fmt.Sprintf("%s[%d]", setting, i), check(i)))
	}
	return errors.Join(errs...)
}

// wordLines are the words of a block in their order, each with its file and line: import may bring
// words of several files together.
type wordLines []caddyfile.Dispenser

func (l wordLines) has(word string) bool {
	return slices.ContainsFunc(l, func(d caddyfile.Dispenser) bool { return d.Val() == word })
}

// wrap adds a line to an error: that of the last word that a conflict names, else the line of
// the block.
func (l wordLines) wrap(err error, block caddyfile.Dispenser) error {
	at := block
	if c, ok := errors.AsType[conflict](err); ok {
		for _, word := range l {
			if slices.Contains(c.words, word.Val()) {
				at = word
			}
		}
	}
	return errorAt(&at, "%w", err)
}

// conflict is an error about words that do not go together.
type conflict struct {
	error
	words []string
}

// conflictf returns a conflict of these words, with spaces between them.
func conflictf(words, format string, args ...any) error {
	return conflict{fmt.Errorf(format, args...), strings.Fields(words)}
}

// meant names the words that are like another one, or all of them if none is.
func meant(word string, words []string) string {
	if near := delivery.Nearest(word, words); len(near) > 0 {
		return "did you mean " + delivery.Alternatives(near) + "?"
	}
	return "use " + delivery.Alternatives(words)
}

// unknownWord refuses the current word of a block. It lists all words only if it cannot tell which
// one is meant.
func unknownWord(d *caddyfile.Dispenser, block string, words []string) error {
	word := d.Val()
	form, isMistake := hints[word]
	_, isProvider := delivery.ProviderNamed(word)
	hint := meant(word, words)
	switch {
	case isMistake:
		hint = "write " + form
	case isProvider || strings.HasPrefix(word, "/"):
		hint = "a matcher and providers come behind dedup, as in dedup /webhooks/* github (--path and --provider of the command proxy)"
	case len(belongs[word]) > 0:
		hint = "it belongs " + delivery.Alternatives(belongs[word])
	case slices.Contains(directives, word):
		hint = "it is a directive of Caddy; is a } missing in front of it?"
	}
	return errorAt(d, "%s: unknown word %q; %s", block, word, hint)
}

// directives are those of Caddy that often follow a dedup whose block is not closed.
var directives = strings.Fields("basic_auth bind encode file_server forward_auth handle handle_errors handle_path header " +
	"import log map php_fastcgi redir request_body request_header respond reverse_proxy rewrite root route templates tls uri vars")

// hints are the right forms for words that people often write.
var hints = map[string]string{
	"ttl":      "retention 7d in the block of a site's dedup",
	"expire":   "retention 7d in the block of a site's dedup",
	"status":   "release_on 409 for a response that releases the key, or on_duplicate conflict for what duplicates get",
	"provider": "the provider's name behind dedup, as in dedup github",
	"storage":  "store redis {env.REDIS_URL}, store file or store memory",
	"redis":    "store redis {env.REDIS_URL}, or store redis and a URL such as redis://host:6379",
}

// belongs has the blocks that accept each word.
var belongs = make(map[string][]string)

// The tables refer to unknownWord, which refers to belongs: an initializer would be a cycle.
func init() {
	addPlaces("in the block of a site's dedup", handlerBlock)
	addPlaces("in the global option dedup", globalBlock)
	addPlaces("in limits of the global option dedup", limitsBlock)
	addPlaces("in store redis", redisBlock)
	addPlaces("in tls of store redis", tlsBlock)
	addPlaces("in verify of a provider", verifyBlock)
	addPlaces("in verify hmac", hmacBlock)
	for kind := range keyKinds {
		belongs[kind] = append(belongs[kind], "behind key, as key "+kind)
	}
	belongs[delivery.KindParts] = []string{"behind key, as key " + delivery.KindParts}
}

func addPlaces[T any](place string, words block[T]) {
	for word := range words {
		belongs[word] = append(belongs[word], place)
	}
}

// oneArg reads the only argument of the current word.
func oneArg(d *caddyfile.Dispenser, what string) (string, error) {
	name := d.Val()
	args := d.RemainingArgs()
	if len(args) != 1 {
		return "", errorAt(d, "%s takes one argument, %s; it has %d: %q", name, what, len(args), args)
	}
	return args[0], noBlock(d, name)
}

// noBlock refuses a block behind a word that has none. Its error does not show the block, which may
// have secrets.
func noBlock(d *caddyfile.Dispenser, name string) error {
	if d.NextBlock(d.Nesting()) {
		return errorAt(d, "%s takes no block behind its arguments", name)
	}
	return nil
}

// text is a setting with one argument.
func text[T any](what string, field func(*T) *string, check func(string) error) word[T] {
	return setting(field, func(d *caddyfile.Dispenser) (string, error) { return oneArg(d, what) }, check)
}

// choice is a setting that takes one of a few values, the default first.
func choice[T any, V ~string](field func(*T) *string, values ...V) word[T] {
	var choices []string
	for _, value := range values {
		choices = append(choices, string(value))
	}
	w := text(delivery.Alternatives(choices), field, func(value string) error {
		if !slices.Contains(choices, value) {
			return fmt.Errorf("%q is not accepted; use %s", withoutPassword(value), delivery.Alternatives(choices))
		}
		return nil
	})
	w.choices = choices
	return w
}

// list is a setting with one or more arguments.
func list[T any](what string, field func(*T) *[]string, check func([]string) error) word[T] {
	return setting(field, func(d *caddyfile.Dispenser) ([]string, error) {
		name := d.Val()
		values := d.RemainingArgs()
		if len(values) == 0 {
			return nil, errorAt(d, "%s lacks its arguments; it takes %s", name, what)
		}
		return values, noBlock(d, name)
	}, check)
}

// flag is a setting that takes no argument.
func flag[T any](field func(*T) *bool) word[T] {
	return setting(field, func(d *caddyfile.Dispenser) (bool, error) {
		name := d.Val()
		if args := d.RemainingArgs(); len(args) > 0 {
			return false, errorAt(d, "%s takes no argument; it has %d: %q", name, len(args), args)
		}
		return true, noBlock(d, name)
	}, anyValue[bool])
}

// anyValue accepts what can be parsed.
func anyValue[V any](V) error { return nil }

// period is a setting that is a duration.
func period[T any](min time.Duration, field func(*T) *caddy.Duration) word[T] {
	return setting(field, func(d *caddyfile.Dispenser) (caddy.Duration, error) {
		name := d.Val()
		value, err := oneArg(d, "a duration such as 500ms, 30s or 7d")
		if err != nil {
			return 0, err
		}
		return parseDuration(d, name, value)
	}, func(v caddy.Duration) error { return checkDuration(v, min) })
}

// periodOrOff is a setting that is a duration, or off, which is a duration of 0.
func periodOrOff[T any](min time.Duration, what string, field func(*T) **caddy.Duration) word[T] {
	return setting(field, func(d *caddyfile.Dispenser) (*caddy.Duration, error) {
		name := d.Val()
		value, err := oneArg(d, what+", or off")
		if err != nil || value == offWord {
			return new(caddy.Duration), err
		}
		parsed, err := parseDuration(d, name, value)
		if err != nil || parsed == 0 {
			return nil, errorAt(d, "%s: %q is not accepted; use %s, or off", name, value, what)
		}
		return &parsed, nil
	}, func(v *caddy.Duration) error {
		if *v == 0 {
			return nil
		}
		return checkDuration(*v, min)
	})
}

func parseDuration(d *caddyfile.Dispenser, name, value string) (caddy.Duration, error) {
	parsed, err := caddy.ParseDuration(value)
	if err != nil && durations.MatchString(value) {
		return 0, errorAt(d, "%s: %s is too long; use at most 36500d", name, value)
	}
	if err != nil {
		return 0, errorAt(d, "%s: %q is not a duration; use one such as 500ms, 30s, 5m or 7d", name, value)
	}
	return caddy.Duration(parsed), nil
}

// size is a setting that is a number of bytes.
func size[T any](field func(*T) *int64) word[T] {
	return setting(field, func(d *caddyfile.Dispenser) (int64, error) {
		name := d.Val()
		value, err := oneArg(d, "a size such as 1MiB")
		if err != nil {
			return 0, err
		}
		n, ok := parseSize(value)
		if !ok {
			return 0, errorAt(d, "%s: %q is not a size; use one above 0 such as 64KiB or 1.5MiB, and at most 1PiB", name, value)
		}
		return n, nil
	}, checkSize)
}

// parseSize reads a number of bytes above 0 with its unit.
func parseSize(value string) (n int64, ok bool) {
	unit := strings.TrimSpace(strings.TrimLeft(value, "0123456789."))
	inBytes := unit == "" || strings.EqualFold(unit, "B")
	if strings.Contains(value, ",") || inBytes && strings.Contains(value, ".") {
		return 0, false // humanize ignores commas, and truncates fractions of a byte
	}
	bytes, err := humanize.ParseBytes(value)
	return int64(bytes), err == nil && bytes > 0 && bytes <= maxBytes //nolint:gosec // it is far below
}

// count is a setting that is a whole number.
func count[T any](min int, field func(*T) *int) word[T] {
	return setting(field, func(d *caddyfile.Dispenser) (int, error) { return countArg(d, min) },
		func(n int) error { return checkCount(n, min) })
}

// countArg reads the only argument of the current word, a whole number. In a Caddyfile 0 is a
// number, and no default.
func countArg(d *caddyfile.Dispenser, min int) (int, error) {
	name := d.Val()
	value, err := oneArg(d, "a whole number")
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < min || n > maxCount {
		return 0, errorAt(d, "%s: %q is not a whole number from %d to %d", name, value, min, maxCount)
	}
	return n, nil
}

// placed is an error behind its place in a Caddyfile.
type placed struct {
	place string
	error
}

func (p placed) Error() string { return p.place + ": " + p.error.Error() }
func (p placed) Unwrap() error { return p.error }

// errorAt returns an error with the place of the current word in front, such as Caddyfile:6.
// Caddy's own errors end with it.
func errorAt(d *caddyfile.Dispenser, format string, args ...any) error {
	return placed{strings.TrimPrefix(d.Err("").Error(), ", at "), fmt.Errorf(format, args...)}
}
