package caddymodule

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-dedup/caddy-dedup/internal/store/redis"
)

// parseRedis reads the rest of `store redis [<url>...] { … }`.
func parseRedis(d *caddyfile.Dispenser, urls []string) (any, error) {
	at, store := *d, new(RedisStore)
	switch {
	case slices.Contains(urls, ""):
		return nil, errorAt(d, "store redis: a redis URL is empty; write one such as redis://localhost:6379, or leave it out and write address")
	case len(urls) == 1:
		store.URL = urls[0]
	default:
		store.URLs = urls
	}
	words, err := redisBlock.parse(d, "store redis", store)
	if err != nil {
		return nil, err
	}
	if err := store.checkUnreplaced(); err != nil {
		return nil, words.wrap(named("store redis", err), at)
	}
	return store, nil
}

// checkUnreplaced checks what does not depend on the values of placeholders, which are known only
// when the configuration is loaded.
func (s *RedisStore) checkUnreplaced() error {
	if hasPlaceholder(s.URL) || hasPlaceholder(s.URLs...) || hasPlaceholder(s.Addresses...) {
		return s.checkServers()
	}
	known := *s
	if hasPlaceholder(s.Prefix) {
		known.Prefix = ""
	}
	_, err := known.resolve(keepPlaceholders)
	return err
}

func hasPlaceholder(texts ...string) bool { return strings.Contains(strings.Join(texts, " "), "{") }

// redisBlock has the words of `store redis`.
var redisBlock = block[RedisStore]{
	"address": list("host:port, of one server or of several sentinels or nodes of a cluster",
		func(s *RedisStore) *[]string { return &s.Addresses }, checkAddresses),
	"username": hidden("one argument, a user's name", func(s *RedisStore) *string { return &s.Username }),
	"password": hidden(aPassword, func(s *RedisStore) *string { return &s.Password }),
	"db": setting(func(s *RedisStore) **int { return &s.DB }, func(d *caddyfile.Dispenser) (*int, error) {
		db, err := countArg(d, 0)
		return &db, err // also 0: a placeholder in the URL may name another database
	}, anyValue),
	"tls":               setting(func(s *RedisStore) **RedisTLS { return &s.TLS }, parseRedisTLS, (*RedisTLS).checkPair),
	"sentinel":          text("the name of the master on the sentinels", func(s *RedisStore) *string { return &s.Sentinel }, checkNotEmpty),
	"sentinel_username": hidden("one argument, a user's name", func(s *RedisStore) *string { return &s.SentinelUsername }),
	"sentinel_password": hidden(aPassword, func(s *RedisStore) *string { return &s.SentinelPassword }),
	"cluster":           flag(func(s *RedisStore) *bool { return &s.Cluster }),
	"prefix":            text("the prefix of all names in Redis", func(s *RedisStore) *string { return &s.Prefix }, checkRedisPrefix),
	"timeout":           period(minRedisTimeout, func(s *RedisStore) *caddy.Duration { return &s.Timeout }),
	"wait_replicas":     count(0, func(s *RedisStore) *int { return &s.WaitReplicas }),
}

func checkAddresses(addresses []string) error {
	for _, address := range addresses {
		if hasPlaceholder(address) {
			continue // checked when the configuration is loaded
		}
		if err := redis.CheckAddress(address, address); err != nil {
			return err
		}
	}
	return redis.CheckDoubled(addresses)
}

func checkRedisPrefix(prefix string) error {
	switch {
	case prefix == "":
		return fmt.Errorf("the text is empty; leave the line out for %s", redis.DefaultPrefix)
	case hasPlaceholder(prefix):
		return nil // checked when the configuration is loaded
	}
	return redis.CheckPrefix(prefix)
}

func checkNotEmpty(value string) error {
	if value == "" {
		return errors.New("it is empty; give it a value, or leave the line out")
	}
	return nil
}

// aPassword is the argument of a password's word.
const aPassword = "one argument, such as {env.REDIS_PASSWORD}"

// tlsBlock has the words of `tls`.
var tlsBlock = block[RedisTLS]{
	"ca":                   text("the path of a file", func(t *RedisTLS) *string { return &t.CA }, checkNotEmpty),
	"cert":                 text("the path of a file", func(t *RedisTLS) *string { return &t.Cert }, checkNotEmpty),
	"key":                  text("the path of a file", func(t *RedisTLS) *string { return &t.Key }, checkNotEmpty),
	"server_name":          text("the name in the certificates of the servers", func(t *RedisTLS) *string { return &t.ServerName }, checkNotEmpty),
	"insecure_skip_verify": flag(func(t *RedisTLS) *bool { return &t.InsecureSkipVerify }),
}

func parseRedisTLS(d *caddyfile.Dispenser) (*RedisTLS, error) {
	settings := new(RedisTLS)
	return settings, tlsBlock.parseAlone(d, "tls", settings)
}
