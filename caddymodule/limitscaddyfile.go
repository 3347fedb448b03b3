package caddymodule

import (
	"math"
	"strconv"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/dustin/go-humanize"
)

// parseLimits reads `limits { … }` of the global option.
func parseLimits(d *caddyfile.Dispenser) (Limits, error) {
	var limits Limits
	if args := d.RemainingArgs(); len(args) > 0 {
		return limits, d.Errf("limits takes a block and no arguments; it has %q", args)
	}
	sizes := map[string]*int64{"buffered": &limits.Buffered, "memory_store": &limits.MemoryStore}
	counts := map[string]*int{"waiters": &limits.Waiters, "waiters_per_key": &limits.WaitersPerKey, "in_flight": &limits.InFlight}
	seen := make(map[string]bool)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		name := d.Val()
		if seen[name] {
			return limits, d.Errf("limits: %s stands twice", name)
		}
		seen[name] = true
		var err error
		if field, ok := sizes[name]; ok {
			*field, err = sizeArg(d, name)
		} else if field, ok := counts[name]; ok {
			*field, err = countArg(d, name, 1)
		} else {
			err = d.Errf("limits: unknown word %q; use buffered, waiters, waiters_per_key, in_flight or memory_store", name)
		}
		if err != nil {
			return limits, err
		}
	}
	return limits, nil
}

// sizeArg reads the only argument of the current word, a number of bytes.
func sizeArg(d *caddyfile.Dispenser, name string) (int64, error) {
	value, err := oneArg(d, "a size such as 1MiB")
	if err != nil {
		return 0, err
	}
	n, err := humanize.ParseBytes(value)
	if err != nil || n == 0 || n > math.MaxInt64/2 {
		return 0, d.Errf("%s: %q is not a size; use one above 0 such as 64KiB or 1MiB", name, value)
	}
	return int64(n), nil
}

// countArg reads the only argument of the current word, a whole number.
func countArg(d *caddyfile.Dispenser, name string, least int) (int, error) {
	value, err := oneArg(d, "a whole number")
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < least {
		return 0, d.Errf("%s: %q is not a whole number of at least %d", name, value, least)
	}
	return n, nil
}
