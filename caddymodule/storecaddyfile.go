package caddymodule

import (
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/dustin/go-humanize"

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
		case "local_copies":
			app.LocalCopies, err = parseLocalCopies(d)
		case "limits":
			app.Limits, err = parseLimits(d)
		case "encrypt":
			app.Encrypt, err = parseEncrypt(d)
		default:
			err = unknownWord(d, "the global option dedup", []string{"namespace", "store", "local_copies", "encrypt", "limits"})
		}
		if err != nil {
			return nil, err
		}
	}
	return httpcaddyfile.App{Name: "dedup", Value: caddyconfig.JSON(app, nil)}, nil
}

// parseLocalCopies reads `local_copies <size>|off`, whose first word is the current token.
// Off is a size of 0.
func parseLocalCopies(d *caddyfile.Dispenser) (*int64, error) {
	const name = "local_copies"
	value, err := oneArg(d, "a size such as 16MiB, or off")
	switch {
	case err != nil:
		return nil, err
	case value == "off":
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
		if err := store.checkWords(urls, seen); err != nil {
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

// checkWords finds words that exclude each other, as far as they are read.
func (s *RedisStore) checkWords(urls []string, seen map[string]bool) error {
	switch {
	case len(urls) > 0 && seen["address"]:
		return errors.New("a URL and address exclude each other; use one of them")
	case hasPlaceholder(urls...):
		return s.checkServers()
	case seen["db"] && slices.ContainsFunc(urls, namesDatabase): // also where it is database 0
		return errors.New("the URL names a database, and db does too; use one of them")
	}
	_, err := s.servers(func(text string) string { return text })
	return err
}

func hasPlaceholder(texts ...string) bool { return strings.Contains(strings.Join(texts, " "), "{") }

// redisWords are the words of a block of `store redis`.
var redisWords = []string{
	"address", "username", "password", "db", "tls", "sentinel", "sentinel_username", "sentinel_password",
	"cluster", "prefix", "timeout", "wait_replicas",
}

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
		store.Timeout, err = parseDuration(d, "timeout", value, shortestRedisTimeout)
	case "wait_replicas":
		store.WaitReplicas, err = countArg(d, name, 0)
	default:
		return unknownWord(d, "store redis", redisWords)
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
			return nil, unknownWord(d, "tls", []string{"ca", "cert", "key", "server_name"})
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
			err = unknownWord(d, "limits", []string{"buffered", "waiters", "waiters_per_key", "in_flight", "memory_store"})
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
	n, ok := parseSize(value)
	if !ok {
		return 0, d.Errf("%s: %q is not a size; use one above 0 such as 64KiB or 1MiB, and at most 1PiB", name, value)
	}
	return n, nil
}

// parseSize reads a number of bytes above 0 with its unit.
func parseSize(value string) (n int64, ok bool) {
	bytes, err := humanize.ParseBytes(value)
	return int64(bytes), err == nil && bytes > 0 && bytes <= mostBytes //nolint:gosec // it is far below
}

// countArg reads the only argument of the current word, a whole number.
func countArg(d *caddyfile.Dispenser, name string, least int) (int, error) {
	value, err := oneArg(d, "a whole number")
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < least || n > highestCount {
		return 0, d.Errf("%s: %q is not a whole number from %d to %d", name, value, least, highestCount)
	}
	return n, nil
}
