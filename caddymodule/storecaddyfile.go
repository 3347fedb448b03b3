package caddymodule

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"

	"github.com/caddy-dedup/caddy-dedup/internal/store/redis"
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
		default:
			err = d.Errf("dedup: unknown word %q; use namespace, store or limits", name)
		}
		if err != nil {
			return nil, err
		}
	}
	return httpcaddyfile.App{Name: "dedup", Value: caddyconfig.JSON(app, nil)}, nil
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

// parseRedis reads the rest of `store redis [<url>] { … }`.
func parseRedis(d *caddyfile.Dispenser, urls []string) (*RedisStore, error) {
	store := new(RedisStore)
	if len(urls) > 1 {
		return nil, d.Errf("store redis takes one URL; it has %d", len(urls))
	}
	if len(urls) == 1 {
		store.URL = urls[0]
		if !strings.Contains(store.URL, "{") {
			if _, err := redis.ParseURL(store.URL); err != nil {
				return nil, d.WrapErr(err)
			}
		}
	}
	seen := make(map[string]bool)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		name := d.Val()
		if seen[name] {
			return nil, d.Errf("store redis: %s stands twice", name)
		}
		seen[name] = true
		if err := parseRedisWord(d, store, name); err != nil {
			return nil, err
		}
	}
	if store.URL != "" && len(store.Addresses) > 0 {
		return nil, d.Err("store redis: a URL and address exclude each other; use one of them")
	}
	return store, nil
}

func parseRedisWord(d *caddyfile.Dispenser, store *RedisStore, name string) (err error) {
	switch name {
	case "address":
		var address string
		address, err = oneArg(d, "host:port")
		if err != nil {
			return err
		}
		if wrong := redis.CheckAddress(address); wrong != nil && !strings.Contains(address, "{") {
			return d.WrapErr(wrong)
		}
		store.Addresses = []string{address}
	case "username":
		store.Username, err = oneArg(d, "a user's name")
	case "password":
		store.Password, err = secretArg(d)
	case "db":
		var value string
		if value, err = oneArg(d, "a number"); err != nil {
			return err
		}
		if store.DB, err = strconv.Atoi(value); err != nil || store.DB < 0 {
			return d.Errf("db: %q is not the number of a database; use 0 or above", value)
		}
	case "timeout":
		var value string
		if value, err = oneArg(d, "a duration such as 500ms"); err != nil {
			return err
		}
		store.Timeout, err = parseDuration(d, "timeout", value, 10*time.Millisecond)
	case "tls":
		store.TLS, err = parseRedisTLS(d)
	default:
		return d.Errf("store redis: unknown word %q; use address, username, password, db, tls or timeout", name)
	}
	return err
}

// secretArg reads one argument that must not be shown in an error.
func secretArg(d *caddyfile.Dispenser) (string, error) {
	args := d.RemainingArgs()
	if len(args) != 1 {
		return "", d.Errf("password takes one argument, such as {env.REDIS_PASSWORD}; it has %d", len(args))
	}
	return args[0], noBlock(d, "password")
}

func parseRedisTLS(d *caddyfile.Dispenser) (*RedisTLS, error) {
	if args := d.RemainingArgs(); len(args) > 0 {
		return nil, d.Errf("tls takes a block and no arguments; it has %q", args)
	}
	settings := new(RedisTLS)
	fields := map[string]*string{
		"ca": &settings.CA, "cert": &settings.Cert, "key": &settings.Key, "server_name": &settings.ServerName,
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		name := d.Val()
		field, ok := fields[name]
		if !ok {
			return nil, d.Errf("tls: unknown word %q; use ca, cert, key or server_name", name)
		}
		if *field != "" {
			return nil, d.Errf("tls: %s stands twice", name)
		}
		value, err := oneArg(d, "its value")
		if err != nil {
			return nil, err
		}
		*field = value
	}
	return settings, nil
}
