package caddymodule

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

func init() {
	httpcaddyfile.RegisterGlobalOption("dedup", parseGlobalOption)
}

// globalBlock has the words of the global option.
var globalBlock = block[App]{
	"namespace": text("a name", func(a *App) *string { return &a.Namespace }, checkNamespace),
	"store":     setting(func(a *App) *json.RawMessage { return &a.StoreRaw }, parseStore, anyValue),
	"local_copies": setting(func(a *App) **int64 { return &a.LocalCopies }, parseLocalCopies, func(n *int64) error {
		if *n == 0 {
			return nil
		}
		if err := checkSize(*n); err != nil {
			return fmt.Errorf("%w, or 0 for none", err)
		}
		return nil
	}),
	"limits": setting(func(a *App) *Limits { return &a.Limits }, parseLimits, func(l Limits) error { return limitsBlock.check(&l) }),
	"encrypt": list("one key or more, such as {env.DEDUP_KEY} or {file./run/secrets/dedup}",
		func(a *App) *[]string { return &a.Encrypt }, checkEncryptionKeys),
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
	const name = "the global option dedup"
	d.Next() // the option's name
	if again {
		return errorAt(d, "%s is repeated; write all of it in one block", name)
	}
	return globalBlock.parseAlone(d, name, a)
}

func checkNamespace(name string) error {
	if name == "" {
		return errors.New("the name is empty")
	}
	return checkBraces(name)
}

// parseLocalCopies reads `local_copies <size>|off`; off is 0. The first word is the current token.
func parseLocalCopies(d *caddyfile.Dispenser) (*int64, error) {
	value, err := oneArg(d, "a size such as 16MiB, or off")
	if err != nil || value == offWord {
		return new(int64), err
	}
	n, ok := parseSize(value)
	if !ok {
		return nil, errorAt(d, "local_copies: %q is neither a size nor off; use one above 0 such as 16MiB, and at most 1PiB, or off", value)
	}
	return &n, nil
}

// limitsBlock has the words of `limits`.
var limitsBlock = block[Limits]{
	"buffered":        size(func(l *Limits) *int64 { return &l.Buffered }),
	"client_idle":     period(time.Second, func(l *Limits) *caddy.Duration { return &l.ClientIdle }),
	"waiters":         count(1, func(l *Limits) *int { return &l.Waiters }),
	"waiters_per_key": count(1, func(l *Limits) *int { return &l.WaitersPerKey }),
	"in_flight":       count(1, func(l *Limits) *int { return &l.InFlight }),
	"memory_store":    size(func(l *Limits) *int64 { return &l.MemoryStore }),
}

// parseLimits reads `limits { … }` of the global option.
func parseLimits(d *caddyfile.Dispenser) (limits Limits, err error) {
	err = limitsBlock.parseAlone(d, "limits", &limits)
	return limits, err
}

// storeKinds are the kinds of stores, each with the parser of its arguments.
var storeKinds = map[string]func(d *caddyfile.Dispenser, args []string) (any, error){
	"file": func(d *caddyfile.Dispenser, args []string) (any, error) {
		switch {
		case len(args) > 1:
			return nil, errorAt(d, "store file takes one path at most; it has %q", args)
		case len(args) == 1 && args[0] == "":
			return nil, errorAt(d, "store file: the path is empty; leave it out for the directory %s", defaultDirectory)
		}
		path := strings.Join(args, "")
		if err := checkBraces(path); err != nil {
			return nil, errorAt(d, "store file: %w", err)
		}
		return &FileStore{Path: path}, noBlock(d, "store file")
	},
	"memory": func(d *caddyfile.Dispenser, args []string) (any, error) {
		if len(args) > 0 {
			return nil, errorAt(d, "store memory takes no arguments; it has %q", args)
		}
		return new(MemoryStore), noBlock(d, "store memory")
	},
	"redis": parseRedis,
}

// parseStore reads `store <kind> …`, whose first word is the current token.
func parseStore(d *caddyfile.Dispenser) (json.RawMessage, error) {
	args := d.RemainingArgs()
	kinds := delivery.Alternatives(slices.Sorted(maps.Keys(storeKinds)))
	if len(args) == 0 {
		return nil, errorAt(d, "store takes %s", kinds)
	}
	parse, ok := storeKinds[args[0]]
	switch {
	case !ok && mayHoldPassword(args[0]):
		return nil, errorAt(d, "store: a URL is not accepted here, and is not shown; did you mean store redis <url>? use %s", kinds)
	case !ok && strings.Contains(args[0], ":"):
		return nil, errorAt(d, "store: %q is not accepted; did you mean store redis redis://%s? use %s", args[0], args[0], kinds)
	case !ok:
		return nil, errorAt(d, "store: %q is not accepted; use %s", args[0], kinds)
	}
	store, err := parse(d, args[1:])
	if err != nil {
		return nil, err
	}
	return caddyconfig.JSONModuleObject(store, "store", args[0], nil), nil
}
