package caddymodule

import (
	"encoding/json"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
)

func init() {
	httpcaddyfile.RegisterGlobalOption("dedup", parseGlobalOption)
}

// parseGlobalOption reads the global option `dedup`.
func parseGlobalOption(d *caddyfile.Dispenser, existing any) (any, error) {
	d.Next() // the option's name
	if existing != nil {
		return nil, d.Err("the global option dedup stands twice; all of it belongs in one block")
	}
	app := new(App)
	if args := d.RemainingArgs(); len(args) > 0 {
		return nil, d.Errf("the global option dedup takes a block and no arguments; it has %q", args)
	}
	seen := make(map[string]bool)
	for d.NextBlock(0) {
		name := d.Val()
		if seen[name] {
			return nil, d.Errf("dedup: %s stands twice", name)
		}
		seen[name] = true
		var err error
		switch name {
		case "namespace":
			app.Namespace, err = oneArg(d, "a name")
			if err == nil && app.Namespace == "" {
				err = d.Err("namespace: the name is empty")
			}
		case "store":
			app.StoreRaw, err = parseStore(d)
		case "limits":
			app.Limits, err = parseLimits(d)
		case "encrypt":
			app.Encrypt, err = parseEncrypt(d)
		default:
			err = d.Errf("dedup: unknown word %q; use namespace, store, encrypt or limits", name)
		}
		if err != nil {
			return nil, err
		}
	}
	return httpcaddyfile.App{Name: "dedup", Value: caddyconfig.JSON(app, nil)}, nil
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

// parseStore reads `store <kind> …`, whose first word is the current token.
func parseStore(d *caddyfile.Dispenser) (json.RawMessage, error) {
	args := d.RemainingArgs()
	if len(args) == 0 {
		return nil, d.Err("store takes file, memory or redis")
	}
	kind, args := args[0], args[1:]
	switch kind {
	case "file":
		if len(args) > 1 {
			return nil, d.Errf("store file takes one path at most; it has %q", args)
		}
		store := &FileStore{Path: strings.Join(args, "")}
		return caddyconfig.JSONModuleObject(store, "store", kind, nil), noBlock(d, "store file")
	case "memory":
		if len(args) > 0 {
			return nil, d.Errf("store memory takes no arguments; it has %q", args)
		}
		return caddyconfig.JSONModuleObject(new(MemoryStore), "store", kind, nil), noBlock(d, "store memory")
	case "redis":
		store, err := parseRedis(d, args)
		if err != nil {
			return nil, err
		}
		return caddyconfig.JSONModuleObject(store, "store", kind, nil), nil
	default:
		return nil, d.Errf("store: %q is not accepted; use file, memory or redis", kind)
	}
}
