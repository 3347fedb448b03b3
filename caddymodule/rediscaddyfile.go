package caddymodule

import (
	"errors"
	"strings"

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
	if _, err := store.resolve(noReplace, prefix); err != nil {
		return nil, d.Errf("store redis: %w", err)
	}
	return store, nil
}

// checkWords finds words that exclude each other, as far as they are read.
func (s *RedisStore) checkWords(urls []string, seen map[string]bool) error {
	switch {
	case len(urls) > 0 && seen["address"]:
		return errors.New("a URL and address exclude each other; use one of them")
	case hasPlaceholder(urls...) || hasPlaceholder(s.Addresses...):
		return s.checkServers()
	}
	_, err := s.servers(noReplace)
	return err
}

func hasPlaceholder(texts ...string) bool { return strings.Contains(strings.Join(texts, " "), "{") }

// redisWords are the words of a block of `store redis`.
var redisWords = blockWords[RedisStore]{
	"address": func(s *RedisStore, d *caddyfile.Dispenser) (err error) { s.Addresses, err = addressArgs(d); return err },
	"username": func(s *RedisStore, d *caddyfile.Dispenser) (err error) {
		s.Username, err = secretArg(d, "a user's name")
		return err
	},
	"password": func(s *RedisStore, d *caddyfile.Dispenser) (err error) {
		s.Password, err = secretArg(d, aPassword)
		return err
	},
	"db": func(s *RedisStore, d *caddyfile.Dispenser) error {
		db, err := countArg(d, "db", 0)
		s.DB = &db // 0 too: a URL's placeholder may name another one
		return err
	},
	"tls":      func(s *RedisStore, d *caddyfile.Dispenser) (err error) { s.TLS, err = parseRedisTLS(d); return err },
	"sentinel": parseSentinel,
	"sentinel_username": func(s *RedisStore, d *caddyfile.Dispenser) (err error) {
		s.SentinelUsername, err = secretArg(d, "a user's name")
		return err
	},
	"sentinel_password": func(s *RedisStore, d *caddyfile.Dispenser) (err error) {
		s.SentinelPassword, err = secretArg(d, aPassword)
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
		return d.Errf("cluster takes no arguments; write the addresses behind address; it has %q", args)
	}
	s.Cluster = true
	return noBlock(d, "cluster")
}

func parseRedisTimeout(s *RedisStore, d *caddyfile.Dispenser) error {
	value, err := oneArg(d, "a duration such as 500ms")
	if err != nil {
		return err
	}
	s.Timeout, err = parseDuration(d, "timeout", value, minRedisTimeout)
	return err
}

// addressArgs reads one address or more.
func addressArgs(d *caddyfile.Dispenser) ([]string, error) {
	addresses := d.RemainingArgs()
	if len(addresses) == 0 {
		return nil, d.Err("address takes host:port, of one server or of several sentinels or nodes of a cluster; it has nothing")
	}
	for _, address := range addresses {
		if hasPlaceholder(address) {
			continue // what it is, is known when the configuration is loaded
		}
		if err := redis.CheckAddress(address, address); err != nil {
			return nil, d.WrapErr(err)
		}
	}
	if err := redis.CheckDoubled(addresses); err != nil {
		return nil, d.WrapErr(err)
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

// aPassword is what a password's word takes.
const aPassword = "such as {env.REDIS_PASSWORD}"

// secretArg reads one argument. No error shows it, nor what else is on its line: beside a
// user's name that may be a password. An empty one is what a variable leaves that is not
// set.
func secretArg(d *caddyfile.Dispenser, what string) (string, error) {
	name := d.Val()
	args := d.RemainingArgs()
	switch {
	case len(args) != 1:
		return "", d.Errf("%s takes one argument, %s; it has %d", name, what, len(args))
	case args[0] == "":
		return "", d.Errf("%s is empty; it takes one argument, %s, or leave the line out", name, what)
	}
	return args[0], noBlock(d, name)
}

// tlsWords are the words of a block of `tls`.
var tlsWords = blockWords[RedisTLS]{
	"ca":          tlsText(func(t *RedisTLS) *string { return &t.CA }),
	"cert":        tlsText(func(t *RedisTLS) *string { return &t.Cert }),
	"key":         tlsText(func(t *RedisTLS) *string { return &t.Key }),
	"server_name": tlsText(func(t *RedisTLS) *string { return &t.ServerName }),
	"insecure_skip_verify": func(t *RedisTLS, d *caddyfile.Dispenser) (err error) {
		t.InsecureSkipVerify, err = flagWord(d)
		return err
	},
}

func tlsText(field func(*RedisTLS) *string) func(*RedisTLS, *caddyfile.Dispenser) error {
	return func(t *RedisTLS, d *caddyfile.Dispenser) (err error) {
		name := d.Val()
		if *field(t), err = oneArg(d, "its value"); err == nil && *field(t) == "" {
			err = d.Errf("tls: %s is empty; give it a value, or leave the line out", name)
		}
		return err
	}
}

func parseRedisTLS(d *caddyfile.Dispenser) (*RedisTLS, error) {
	if args := d.RemainingArgs(); len(args) > 0 {
		return nil, d.Errf("tls takes a block and no arguments; it has %q", args)
	}
	settings, at := new(RedisTLS), *d
	if err := tlsWords.parse(d, "tls", settings, nil); err != nil {
		return nil, err
	}
	if err := settings.checkPair(); err != nil {
		return nil, at.WrapErr(err)
	}
	return settings, nil
}
