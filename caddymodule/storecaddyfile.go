package caddymodule

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/dustin/go-humanize"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

func init() {
	httpcaddyfile.RegisterGlobalOption("dedup", parseGlobalOption)
}

// blockWords are the words that a block accepts, each with the parser of its arguments,
// for which the word is the current token.
type blockWords[T any] map[string]func(*T, *caddyfile.Dispenser) error

// parse reads the block into a value. After each word it calls check, if there is one,
// with the words so far.
func (w blockWords[T]) parse(d *caddyfile.Dispenser, block string, into *T, check func(seen map[string]bool) error) error {
	seen := make(map[string]bool)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		name := d.Val()
		parse, ok := w[name]
		switch {
		case !ok:
			return unknownWord(d, block, slices.Sorted(maps.Keys(w)))
		case seen[name]:
			return d.Errf("%s: %s is repeated", block, name)
		}
		seen[name] = true
		if err := parse(into, d); err != nil {
			return err
		}
		if check != nil {
			if err := check(seen); err != nil {
				return d.Errf("%s: %w", block, err)
			}
		}
	}
	return nil
}

// globalWords are the words of the global option.
var globalWords = blockWords[App]{
	"namespace":    parseNamespace,
	"store":        func(a *App, d *caddyfile.Dispenser) (err error) { a.StoreRaw, err = parseStore(d); return err },
	"local_copies": func(a *App, d *caddyfile.Dispenser) (err error) { a.LocalCopies, err = parseLocalCopies(d); return err },
	"limits":       func(a *App, d *caddyfile.Dispenser) error { return parseLimits(d, &a.Limits) },
	"encrypt":      func(a *App, d *caddyfile.Dispenser) (err error) { a.Encrypt, err = parseEncrypt(d); return err },
}

// parseGlobalOption reads the global option `dedup`.
func parseGlobalOption(d *caddyfile.Dispenser, existing any) (any, error) {
	app := new(App)
	if err := app.read(d, existing != nil); err != nil {
		return nil, hidePasswords(*d, err)
	}
	return httpcaddyfile.App{Name: "dedup", Value: caddyconfig.JSON(app, nil)}, nil
}

func (a *App) read(d *caddyfile.Dispenser, again bool) error {
	d.Next() // the option's name
	if again {
		return d.Err("the global option dedup is repeated; write all of it in one block")
	}
	if args := d.RemainingArgs(); len(args) > 0 {
		return d.Errf("the global option dedup takes a block and no arguments; it has %q", args)
	}
	return globalWords.parse(d, "the global option dedup", a, nil)
}

func parseNamespace(a *App, d *caddyfile.Dispenser) (err error) {
	a.Namespace, err = oneArg(d, "a name")
	switch {
	case err != nil:
		return err
	case a.Namespace == "":
		return d.Err("namespace: the name is empty")
	}
	if err := checkClosed("namespace", a.Namespace); err != nil {
		return d.WrapErr(err)
	}
	return nil
}

// parseLocalCopies reads `local_copies <size>|off`, whose first word is the current token.
// Off is a size of 0.
func parseLocalCopies(d *caddyfile.Dispenser) (*int64, error) {
	const name = "local_copies"
	value, err := oneArg(d, "a size such as 16MiB, or off")
	switch {
	case err != nil:
		return nil, err
	case value == offWord:
		return new(int64), nil
	}
	n, ok := parseSize(value)
	if !ok {
		return nil, d.Errf("%s: %q is neither a size nor off; use one above 0 such as 16MiB, and at most 1PiB, or off", name, value)
	}
	return &n, nil
}

// parseEncrypt reads `encrypt <key>...`, whose first word is the current token.
func parseEncrypt(d *caddyfile.Dispenser) ([]string, error) {
	keys := d.RemainingArgs()
	if len(keys) == 0 {
		return nil, d.Err("encrypt takes one key or more, such as {env.DEDUP_KEY} or {file./run/secrets/dedup}")
	}
	if err := checkEncryptionKeys(keys); err != nil {
		return nil, d.WrapErr(err)
	}
	return keys, noBlock(d, "encrypt")
}

// storeKinds are the kinds of stores, each with the parser of its arguments.
var storeKinds = map[string]func(d *caddyfile.Dispenser, args []string) (any, error){
	"file": func(d *caddyfile.Dispenser, args []string) (any, error) {
		switch {
		case len(args) > 1:
			return nil, d.Errf("store file takes one path at most; it has %q", args)
		case len(args) == 1 && args[0] == "":
			return nil, d.Errf("store file: the path is empty; leave it out for the directory %s", defaultDirectory)
		}
		path := strings.Join(args, "")
		if err := checkClosed("store file", path); err != nil {
			return nil, d.WrapErr(err)
		}
		return &FileStore{Path: path}, noBlock(d, "store file")
	},
	"memory": func(d *caddyfile.Dispenser, args []string) (any, error) {
		if len(args) > 0 {
			return nil, d.Errf("store memory takes no arguments; it has %q", args)
		}
		return new(MemoryStore), noBlock(d, "store memory")
	},
	"redis": func(d *caddyfile.Dispenser, args []string) (any, error) { return parseRedis(d, args) },
}

// parseStore reads `store <kind> …`, whose first word is the current token.
func parseStore(d *caddyfile.Dispenser) (json.RawMessage, error) {
	args := d.RemainingArgs()
	kinds := delivery.Alternatives(slices.Sorted(maps.Keys(storeKinds)))
	if len(args) == 0 {
		return nil, d.Errf("store takes %s", kinds)
	}
	parse, ok := storeKinds[args[0]]
	switch {
	case !ok && mayHoldPassword(args[0]):
		return nil, d.Errf("store: a URL is not accepted here, and is not shown; did you mean store redis <url>? use %s", kinds)
	case !ok && strings.Contains(args[0], ":"):
		return nil, d.Errf("store: %q is not accepted; did you mean store redis redis://%s? use %s", args[0], args[0], kinds)
	case !ok:
		return nil, d.Errf("store: %q is not accepted; use %s", args[0], kinds)
	}
	store, err := parse(d, args[1:])
	if err != nil {
		return nil, err
	}
	return caddyconfig.JSONModuleObject(store, "store", args[0], nil), nil
}

// limitWords are the words of a block of `limits`.
var limitWords = blockWords[Limits]{
	"buffered": func(l *Limits, d *caddyfile.Dispenser) (err error) {
		l.Buffered, err = sizeArg(d, "buffered")
		return err
	},
	"client_idle": func(l *Limits, d *caddyfile.Dispenser) error {
		value, err := oneArg(d, "a duration such as 10s")
		if err != nil {
			return err
		}
		l.ClientIdle, err = parseDuration(d, "client_idle", value, time.Second)
		return err
	},
	"waiters": func(l *Limits, d *caddyfile.Dispenser) (err error) {
		l.Waiters, err = countArg(d, "waiters", 1)
		return err
	},
	"waiters_per_key": func(l *Limits, d *caddyfile.Dispenser) (err error) {
		l.WaitersPerKey, err = countArg(d, "waiters_per_key", 1)
		return err
	},
	"in_flight": func(l *Limits, d *caddyfile.Dispenser) (err error) {
		l.InFlight, err = countArg(d, "in_flight", 1)
		return err
	},
	"memory_store": func(l *Limits, d *caddyfile.Dispenser) (err error) {
		l.MemoryStore, err = sizeArg(d, "memory_store")
		return err
	},
}

// parseLimits reads `limits { … }` of the global option.
func parseLimits(d *caddyfile.Dispenser, limits *Limits) error {
	if args := d.RemainingArgs(); len(args) > 0 {
		return d.Errf("limits takes a block and no arguments; it has %q", args)
	}
	return limitWords.parse(d, "limits", limits, nil)
}

// sizeArg reads the only argument of the current word, a number of bytes.
func sizeArg(d *caddyfile.Dispenser, name string) (int64, error) {
	value, err := oneArg(d, "a size such as 1MiB")
	if err != nil {
		return 0, err
	}
	n, ok := parseSize(value)
	if !ok {
		return 0, d.Errf("%s: %q is not a size; use one above 0 such as 64KiB or 1.5MiB, and at most 1PiB", name, value)
	}
	return n, nil
}

// parseSize reads a number of bytes above 0 with its unit.
func parseSize(value string) (n int64, ok bool) {
	unit := strings.TrimSpace(strings.TrimLeft(value, "0123456789."))
	inBytes := unit == "" || strings.EqualFold(unit, "B")
	if strings.Contains(value, ",") || inBytes && strings.Contains(value, ".") {
		return 0, false // humanize leaves commas out, and the rest of a byte
	}
	bytes, err := humanize.ParseBytes(value)
	return int64(bytes), err == nil && bytes > 0 && bytes <= maxBytes //nolint:gosec // it is far below
}

// countArg reads the only argument of the current word, a whole number.
func countArg(d *caddyfile.Dispenser, name string, min int) (int, error) {
	value, err := oneArg(d, "a whole number")
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < min || n > maxCount {
		return 0, d.Errf("%s: %q is not a whole number from %d to %d", name, value, min, maxCount)
	}
	return n, nil
}
