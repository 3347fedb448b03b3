package caddymodule

import (
	"slices"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// keyForms are what may stand behind the word key.
const keyForms = "header <field> [<prefix>], json <JSON pointer> [<prefix>], value <text> [<prefix>], content [<prefix>] or parts <prefix> { ... }"

// parseKey reads one line `key …`.
func parseKey(s *Settings, d *caddyfile.Dispenser) error {
	args := d.RemainingArgs()
	if len(args) == 0 {
		return d.Errf("key lacks its source; use %s", keyForms)
	}
	var source KeySource
	var err error
	if args[0] == "parts" {
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
		return d.WrapErr(err)
	}
	if slices.ContainsFunc(s.Keys, source.shadowedBy) {
		return d.Errf("key %s is read twice; the second line would never be reached", source.source())
	}
	s.Keys = append(s.Keys, source)
	return nil
}

// parseSource reads a source of one line, and its prefix.
func parseSource(d *caddyfile.Dispenser, args []string, before, forms string) (KeySource, error) {
	kind, args := args[0], args[1:]
	var source KeySource
	takes := 1
	switch kind {
	case "header", "json", "value":
	case "content":
		takes, source.Content = 0, true
	default:
		return source, d.Errf("%s%q is not accepted; use %s", before, kind, forms)
	}
	if len(args) < takes || len(args) > takes+1 {
		return source, d.Errf("%s%s has the wrong number of arguments, %q; use %s", before, kind, args, forms)
	}
	if takes == 1 && args[0] == "" {
		return source, d.Errf("%s%s is empty; use %s", before, kind, forms)
	}
	switch kind {
	case "header":
		source.Header = args[0]
	case "json":
		source.JSON = args[0]
	case "value":
		source.Value = args[0]
	}
	if len(args) > takes {
		source.Prefix = args[takes]
	}
	return source, noBlock(d, before+kind)
}

// partForms are what may stand in a block of parts.
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
		return KeySource{}, d.Errf("key parts: %s has %q behind it; a part has no prefix, and only one word may stand there, %s", line[0], part.Prefix, optionalWord)
	}
	if err := part.check(); err != nil {
		return KeySource{}, d.WrapErr(err)
	}
	part.Optional = optional
	return part, nil
}
