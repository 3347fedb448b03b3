package caddymodule

import (
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-dedup/caddy-dedup/internal/store/redis"
)

// parseRedis reads the rest of `store redis [<url>...] { … }`.
func parseRedis(d *caddyfile.Dispenser, urls []string) (*RedisStore, error) {
	store := new(RedisStore)
	switch len(urls) {
	case 0:
	case 1:
		store.URL = urls[0]
	default:
		store.URLs = urls
	}
	if len(urls) > 0 && !hasPlaceholder(urls...) {
		if _, err := redis.ParseURLs(urls...); err != nil {
			return nil, d.WrapErr(err)
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
		// The second of two words that exclude each other is on this line.
		if err := store.checkServers(); err != nil {
			return nil, d.Errf("store redis: %w", err)
		}
	}
	if hasPlaceholder(urls...) || hasPlaceholder(store.Addresses...) {
		return store, nil // what they are is known when the configuration is loaded
	}
	prefix := store.Prefix
	if hasPlaceholder(prefix) {
		prefix = "" // the same
	}
	if _, err := store.resolve(func(text string) string { return text }, prefix); err != nil {
		return nil, d.Errf("store redis: %w", err)
	}
	return store, nil
}

func hasPlaceholder(texts ...string) bool { return strings.Contains(strings.Join(texts, " "), "{") }

func parseRedisWord(d *caddyfile.Dispenser, store *RedisStore, name string) (err error) {
	switch name {
	case "address":
		store.Addresses, err = addressArgs(d)
	case "username":
		store.Username, err = oneArg(d, "a user's name")
	case "password":
		store.Password, err = secretArg(d)
	case "db":
		store.DB, err = countArg(d, name, 0)
	case "tls":
		store.TLS, err = parseRedisTLS(d)
	case "sentinel":
		if store.Sentinel, err = oneArg(d, "the name by which sentinels know the master"); err == nil && store.Sentinel == "" {
			err = d.Err("sentinel: the master's name is empty")
		}
	case "sentinel_username":
		store.SentinelUsername, err = oneArg(d, "a user's name")
	case "sentinel_password":
		store.SentinelPassword, err = secretArg(d)
	case "cluster":
		if args := d.RemainingArgs(); len(args) > 0 {
			return d.Errf("cluster takes no arguments, the addresses stand behind address; it has %q", args)
		}
		store.Cluster, err = true, noBlock(d, name)
	case "prefix":
		store.Prefix, err = prefixArg(d)
	case "timeout":
		var value string
		if value, err = oneArg(d, "a duration such as 500ms"); err != nil {
			return err
		}
		store.Timeout, err = parseDuration(d, "timeout", value, 10*time.Millisecond)
	case "wait_replicas":
		store.WaitReplicas, err = countArg(d, name, 0)
	default:
		return d.Errf("store redis: unknown word %q; use address, username, password, db, tls, sentinel, "+
			"sentinel_username, sentinel_password, cluster, prefix, timeout or wait_replicas", name)
	}
	return err
}

// addressArgs reads one address or more.
func addressArgs(d *caddyfile.Dispenser) ([]string, error) {
	addresses := d.RemainingArgs()
	if len(addresses) == 0 {
		return nil, d.Err("address takes host:port, of one server or of several sentinels or nodes of a cluster; it has nothing")
	}
	for _, address := range addresses {
		if err := redis.CheckAddress(address); err != nil && !hasPlaceholder(address) {
			return nil, d.WrapErr(err)
		}
	}
	return addresses, noBlock(d, "address")
}

// prefixArg reads the prefix of all names in Redis.
func prefixArg(d *caddyfile.Dispenser) (string, error) {
	prefix, err := oneArg(d, "the text that all names in Redis begin with")
	switch {
	case err != nil:
		return "", err
	case prefix == "":
		return "", d.Errf("prefix: the text is empty; leave the line out for %s", redis.DefaultPrefix)
	case hasPlaceholder(prefix):
		return prefix, nil
	}
	if err := redis.CheckPrefix(prefix); err != nil {
		return "", d.WrapErr(err)
	}
	return prefix, nil
}

// secretArg reads one argument that must not be shown in an error.
func secretArg(d *caddyfile.Dispenser) (string, error) {
	name := d.Val()
	args := d.RemainingArgs()
	if len(args) != 1 {
		return "", d.Errf("%s takes one argument, such as {env.REDIS_PASSWORD}; it has %d", name, len(args))
	}
	return args[0], noBlock(d, name)
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
