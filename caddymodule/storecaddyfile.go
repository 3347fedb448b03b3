package caddymodule

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/dustin/go-humanize"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/store/redis"
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
			return d.Errf("%s: %s stands twice", block, name)
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
	d.Next() // the option's name
	if existing != nil {
		return nil, d.Err("the global option dedup stands twice; all of it belongs in one block")
	}
	app := new(App)
	if args := d.RemainingArgs(); len(args) > 0 {
		return nil, d.Errf("the global option dedup takes a block and no arguments; it has %q", args)
	}
	if err := globalWords.parse(d, "the global option dedup", app, nil); err != nil {
		return nil, err
	}
	return httpcaddyfile.App{Name: "dedup", Value: caddyconfig.JSON(app, nil)}, nil
}

func parseNamespace(a *App, d *caddyfile.Dispenser) (err error) {
	a.Namespace, err = oneArg(d, "a name")
	if err == nil && a.Namespace == "" {
		err = d.Err("namespace: the name is empty")
	}
	return err
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

// storeKinds are the kinds of stores, each with the parser of what stands behind it.
var storeKinds = map[string]func(d *caddyfile.Dispenser, args []string) (any, error){
	"file": func(d *caddyfile.Dispenser, args []string) (any, error) {
		if len(args) > 1 {
			return nil, d.Errf("store file takes one path at most; it has %q", args)
		}
		return &FileStore{Path: strings.Join(args, "")}, noBlock(d, "store file")
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
	if !ok {
		return nil, d.Errf("store: %q is not accepted; use %s", args[0], kinds)
	}
	store, err := parse(d, args[1:])
	if err != nil {
		return nil, err
	}
	return caddyconfig.JSONModuleObject(store, "store", args[0], nil), nil
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
	// The second of two words that exclude each other is on the line of the check.
	check := func(seen map[string]bool) error { return store.checkWords(urls, seen) }
	if err := redisWords.parse(d, "store redis", store, check); err != nil {
		return nil, err
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
var redisWords = blockWords[RedisStore]{
	"address": func(s *RedisStore, d *caddyfile.Dispenser) (err error) { s.Addresses, err = addressArgs(d); return err },
	"username": func(s *RedisStore, d *caddyfile.Dispenser) (err error) {
		s.Username, err = oneArg(d, "a user's name")
		return err
	},
	"password": func(s *RedisStore, d *caddyfile.Dispenser) (err error) { s.Password, err = secretArg(d); return err },
	"db":       func(s *RedisStore, d *caddyfile.Dispenser) (err error) { s.DB, err = countArg(d, "db", 0); return err },
	"tls":      func(s *RedisStore, d *caddyfile.Dispenser) (err error) { s.TLS, err = parseRedisTLS(d); return err },
	"sentinel": parseSentinel,
	"sentinel_username": func(s *RedisStore, d *caddyfile.Dispenser) (err error) {
		s.SentinelUsername, err = oneArg(d, "a user's name")
		return err
	},
	"sentinel_password": func(s *RedisStore, d *caddyfile.Dispenser) (err error) {
		s.SentinelPassword, err = secretArg(d)
		return err
	},
	"cluster": parseCluster,
	"prefix":  func(s *RedisStore, d *caddyfile.Dispenser) (err error) { s.Prefix, err = prefixArg(d); return err },
	"timeout": parseRedisTimeout,
	"wait_replicas": func(s *RedisStore, d *caddyfile.Dispenser) (err error) {
		s.WaitReplicas, err = countArg(d, "wait_replicas", 0)
		return err
	},
}

func parseSentinel(s *RedisStore, d *caddyfile.Dispenser) (err error) {
	s.Sentinel, err = oneArg(d, "the name by which sentinels know the master")
	if err == nil && s.Sentinel == "" {
		err = d.Err("sentinel: the master's name is empty")
	}
	return err
}

func parseCluster(s *RedisStore, d *caddyfile.Dispenser) error {
	if args := d.RemainingArgs(); len(args) > 0 {
		return d.Errf("cluster takes no arguments, the addresses stand behind address; it has %q", args)
	}
	s.Cluster = true
	return noBlock(d, "cluster")
}

func parseRedisTimeout(s *RedisStore, d *caddyfile.Dispenser) error {
	value, err := oneArg(d, "a duration such as 500ms")
	if err != nil {
		return err
	}
	s.Timeout, err = parseDuration(d, "timeout", value, shortestRedisTimeout)
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

// tlsWords are the words of a block of `tls`.
var tlsWords = blockWords[RedisTLS]{
	"ca":          tlsText(func(t *RedisTLS) *string { return &t.CA }),
	"cert":        tlsText(func(t *RedisTLS) *string { return &t.Cert }),
	"key":         tlsText(func(t *RedisTLS) *string { return &t.Key }),
	"server_name": tlsText(func(t *RedisTLS) *string { return &t.ServerName }),
}

func tlsText(field func(*RedisTLS) *string) func(*RedisTLS, *caddyfile.Dispenser) error {
	return func(t *RedisTLS, d *caddyfile.Dispenser) (err error) {
		*field(t), err = oneArg(d, "its value")
		return err
	}
}

func parseRedisTLS(d *caddyfile.Dispenser) (*RedisTLS, error) {
	if args := d.RemainingArgs(); len(args) > 0 {
		return nil, d.Errf("tls takes a block and no arguments; it has %q", args)
	}
	settings := new(RedisTLS)
	return settings, tlsWords.parse(d, "tls", settings, nil)
}

// limitWords are the words of a block of `limits`.
var limitWords = blockWords[Limits]{
	"buffered": func(l *Limits, d *caddyfile.Dispenser) (err error) {
		l.Buffered, err = sizeArg(d, "buffered")
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
