package caddymodule

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/redis"
	"github.com/caddy-dedup/caddy-dedup/internal/storepool"
)

func init() {
	caddy.RegisterModule(new(RedisStore))
}

// minRedisTimeout is a lower bound for one round trip.
const minRedisTimeout = 10 * time.Millisecond

// RedisStore keeps claims and responses in Redis, which any number of replicas
// share: in a single server, in the master that sentinels name, or in a cluster.
// All texts may contain placeholders such as `{env.REDIS_URL}` or
// `{file./run/secrets/redis}`, which are replaced when the configuration is
// loaded. An empty or unknown placeholder is an error.
type RedisStore struct {
	// The server as a URL: `redis://`, `rediss://` (TLS) or `unix://`, with user,
	// password and database where needed. It excludes `urls` and `addresses`. A value in
	// the URL must not be set again in `username`, `password` or `db`, nor an empty `tls`
	// beside `rediss://`.
	URL string `json:"url,omitempty"`

	// Several sentinels, or nodes of a cluster, as URLs that differ only in host and
	// port. They exclude `url` and `addresses`.
	URLs []string `json:"urls,omitempty"`

	// The address of the server, host:port or the path of a unix socket. With `sentinel`,
	// the addresses of sentinels as host:port. Otherwise several addresses are nodes of a
	// cluster, and one that answers is enough. One of `url`, `urls` and `addresses` is
	// required.
	Addresses []string `json:"addresses,omitempty"`

	// The ACL user. It requires `password`, or a password in `url`, because Redis accepts a
	// user only with a password; for a user with `nopass`, use any text. Default: the
	// default user of Redis.
	Username string `json:"username,omitempty"`

	// The password.
	Password string `json:"password,omitempty"`

	// The number of the database. A cluster has only database 0. Not allowed with a URL that
	// names a database, even if both are 0. Default: the one in the URL, else 0.
	DB *int `json:"db,omitempty"`

	// Enables TLS, also for sentinels. An empty object trusts the system's certificates, as
	// `rediss://` does.
	TLS *RedisTLS `json:"tls,omitempty"`

	// The name of the master on the sentinels. It excludes `cluster`.
	Sentinel string `json:"sentinel,omitempty"`

	// The ACL user on the sentinels. It requires `sentinel_password`. Default: the default
	// user of the sentinels.
	SentinelUsername string `json:"sentinel_username,omitempty"`

	// The password for the sentinels.
	SentinelPassword string `json:"sentinel_password,omitempty"`

	// Use cluster mode with a single address or URL. Several addresses without `sentinel`
	// always form a cluster.
	Cluster bool `json:"cluster,omitempty"`

	// The prefix of all keys and channels in Redis, so that one pattern of an ACL rule or
	// of SCAN matches them all. Stores with different prefixes share nothing, even in one
	// database; all replicas need the same prefix. Up to 100 bytes of printable characters
	// except space, `{`, `}`, `*`, `?`, `[`, `]` and `\`. Default: `dedup:`.
	Prefix string `json:"prefix,omitempty"`

	// The maximum duration of one operation. The `lease` of a handler must be at least
	// three times as long. Default: 500ms.
	Timeout caddy.Duration `json:"timeout,omitempty"`

	// The number of replicas that must have a kept response before the client gets it. If
	// that takes longer than `timeout`, or fewer replicas are connected, the client gets the
	// response anyway and a warning is logged. Default: 0.
	WaitReplicas int `json:"wait_replicas,omitempty"`

	options redis.Options
	// tls has the TLS settings with their placeholders replaced.
	tls *RedisTLS
}

// RedisTLS are the TLS settings of a Redis connection. Files are read when the configuration is
// loaded, and a broken file fails the load. They are read again for every new connection, so
// replaced certificates need no reload.
type RedisTLS struct {
	// The path of a PEM file with the trusted CA certificates. Default: those of the
	// system.
	CA string `json:"ca,omitempty"`

	// The path of a PEM file with the client certificate. It requires `key`.
	Cert string `json:"cert,omitempty"`

	// The path of a PEM file with the key of the client certificate. It requires `cert`.
	Key string `json:"key,omitempty"`

	// The name that the certificates of the servers must have. Default: the host that is
	// dialed.
	ServerName string `json:"server_name,omitempty"`

	// Accept any certificate. Insecure: anyone who can intercept the connection reads passwords
	// and responses. Prefer `ca`.
	InsecureSkipVerify bool `json:"insecure_skip_verify,omitempty"`
}

// CaddyModule returns the Caddy module information.
func (*RedisStore) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "dedup.stores.redis",
		New: func() caddy.Module { return new(RedisStore) },
	}
}

// Provision replaces the placeholders and checks the certificates. It dials
// nothing.
func (s *RedisStore) Provision(caddy.Context) error {
	err := redisBlock.check(s)
	if err == nil {
		s.options, err = s.resolve(replacePlaceholders)
	}
	if err == nil && s.TLS != nil {
		s.tls, err = s.TLS.resolve()
	}
	if err == nil && s.tls != nil {
		// Read now, so that an error fails the load. Every dial reads them again.
		s.options.TLS = s.tls.config
		_, err = s.tls.config()
	}
	return named("redis store", err)
}

// resolve returns the options with placeholders replaced, except for TLS. An empty placeholder is an
// error: the rest of a prefix could be that of another store. No error shows a secret.
func (s *RedisStore) resolve(replace func(string) (string, error)) (redis.Options, error) {
	options, err := s.servers(replace)
	if err != nil {
		return options, err
	}
	for _, setting := range []struct {
		name, text string
		field      *string
	}{
		{"prefix " + s.Prefix, s.Prefix, &options.Prefix},
		{"username", s.Username, &options.Username},
		{"password", s.Password, &options.Password},
		{"sentinel", s.Sentinel, &options.Sentinel},
		{"sentinel_username", s.SentinelUsername, &options.SentinelUsername},
		{"sentinel_password", s.SentinelPassword, &options.SentinelPassword},
	} {
		if setting.text == "" {
			continue // may be set by a URL
		}
		if *setting.field, err = replace(setting.text); err != nil {
			return options, named(setting.name, err)
		}
	}
	if s.DB != nil {
		options.DB = *s.DB
	}
	options.Cluster = s.Cluster
	setDefault(&options.Prefix, redis.DefaultPrefix)
	options.WaitReplicas = s.WaitReplicas
	options.Timeout = duration(s.Timeout)
	setDefault(&options.Timeout, redis.DefaultTimeout)
	return options, options.Check()
}

// servers returns the options that are set by the URLs or the addresses.
func (s *RedisStore) servers(replace func(string) (string, error)) (redis.Options, error) {
	if err := s.checkServers(); err != nil {
		return redis.Options{}, err
	}
	name, urls := "urls", s.URLs
	if s.URL != "" {
		name, urls = "url", []string{s.URL}
	}
	if len(urls) > 0 {
		texts, err := replaceAll(replace, name, urls)
		if err != nil {
			return redis.Options{}, err
		}
		options, err := redis.ParseURLs(texts...)
		if err != nil {
			return options, err
		}
		return options, s.checkURLConflicts(options, slices.ContainsFunc(texts, namesDatabase))
	}
	addresses, err := replaceAll(replace, "addresses", s.Addresses)
	if err != nil {
		return redis.Options{}, err
	}
	for i, address := range addresses {
		// The value of a placeholder may be a URL or, by mistake, a password.
		if err := redis.CheckAddress(address, s.Addresses[i]); err != nil {
			return redis.Options{}, err
		}
	}
	return redis.Options{Addresses: addresses}, nil
}

// replaceAll replaces the placeholders of all texts of a setting.
func replaceAll(replace func(string) (string, error), setting string, texts []string) ([]string, error) {
	replaced := make([]string, len(texts))
	for i, text := range texts {
		var err error
		if replaced[i], err = replace(text); err != nil {
			return nil, fmt.Errorf("%s: %w", setting, err)
		}
	}
	return replaced, nil
}

// checkServers finds conflicts that do not depend on the values of placeholders.
func (s *RedisStore) checkServers() error {
	switch {
	case s.URL != "" && len(s.URLs) > 0:
		return errors.New("url and urls exclude each other; use one of them")
	case (s.URL != "" || len(s.URLs) > 0) && len(s.Addresses) > 0:
		return conflictf("address", "a URL and address (in JSON addresses) exclude each other; use one of them")
	case s.Sentinel != "" && s.Cluster:
		return conflictf("sentinel cluster", "sentinel and cluster exclude each other; use one of them")
	case s.Cluster && s.DB != nil && *s.DB > 0:
		return conflictf("cluster db", "cluster and db exclude each other: a cluster has database 0 alone")
	default:
		return nil
	}
}

// checkURLConflicts finds values that a URL and another setting both set. No error shows a secret.
func (s *RedisStore) checkURLConflicts(url redis.Options, database bool) error {
	switch {
	case s.Username != "" && url.Username != "":
		return conflictf("username", "the URL and username both set the user's name; use one of them")
	case s.Password != "" && url.Password != "":
		return conflictf("password", "the URL and password both set a password; use one of them")
	case s.DB != nil && database:
		return conflictf("db", "the URL names a database, and db does too; use one of them")
	case s.TLS != nil && *s.TLS == (RedisTLS{}) && url.TLS != nil:
		return conflictf("tls", "the URL starts with rediss://, and tls without settings means the same; use one of them")
	default:
		return nil
	}
}

// namesDatabase reports whether a valid Redis URL names a database.
func namesDatabase(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Query().Has("db") || u.Scheme != "unix" && strings.Trim(u.Path, "/") != "")
}

// resolve returns the settings with the placeholders replaced.
func (t *RedisTLS) resolve() (*RedisTLS, error) {
	resolved := *t
	for _, setting := range []struct {
		name  string
		field *string
	}{
		{"ca", &resolved.CA}, {"cert", &resolved.Cert}, {"key", &resolved.Key}, {"server_name", &resolved.ServerName},
	} {
		text, err := replacePlaceholders(*setting.field)
		switch {
		case err != nil:
			return nil, fmt.Errorf("tls %s: %w", setting.name, err)
		case isPEM(text): // a secret, which the error of opening the file would show
			return nil, fmt.Errorf("tls %s takes the name of a file in PEM, not the content of one", setting.name)
		}
		*setting.field = text
	}
	return &resolved, nil
}

// isPEM reports whether a text is PEM, possibly in base64.
func isPEM(text string) bool {
	const header, inBase64 = "-----BEGIN ", "LS0tLS1CRUdJTi"
	return strings.Contains(text, header) || strings.HasPrefix(text, inBase64)
}

// checkPair refuses a certificate without its key, or a key without its certificate.
func (t *RedisTLS) checkPair() error {
	if (t.Cert == "") == (t.Key == "") {
		return nil
	}
	missing := "key"
	if t.Cert == "" {
		missing = "cert"
	}
	return fmt.Errorf("cert and key need each other, and %s is missing; name the files of both, or of neither", missing)
}

// config reads the files.
func (t *RedisTLS) config() (*tls.Config, error) {
	config := &tls.Config{
		ServerName: t.ServerName, MinVersion: tls.VersionTLS12,
		InsecureSkipVerify: t.InsecureSkipVerify,
	}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("tls ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls ca: %s has no certificate in PEM", t.CA)
		}
	}
	if t.Cert != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("tls cert %s and key %s: %w", t.Cert, t.Key, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// PoolKey hashes the settings: they hold passwords.
func (s *RedisStore) PoolKey() string {
	o := s.options
	settings, err := json.Marshal([]any{
		o.Addresses, o.Username, o.Password, o.DB, s.tls, o.TLS != nil,
		o.Sentinel, o.SentinelUsername, o.SentinelPassword, o.Cluster, o.Prefix,
	})
	if err != nil {
		panic("caddymodule: settings that JSON cannot hold: " + err.Error()) // impossible by their types
	}
	return fmt.Sprintf("redis %x", sha256.Sum256(settings))
}

// redisTuning has the settings that can change while the store is open.
type redisTuning struct {
	timeout      time.Duration
	waitReplicas int
}

// Tuning implements [storepool.Config].
func (s *RedisStore) Tuning() any { return redisTuning{s.options.Timeout, s.options.WaitReplicas} }

// Tune implements [storepool.Config].
func (s *RedisStore) Tune(store idempotency.Store) {
	store.(*redis.Store).Tune(s.options.Timeout, s.options.WaitReplicas)
}

// Describe implements [storepool.Config].
func (s *RedisStore) Describe() string {
	return fmt.Sprintf("%s, database %d, prefix %s", s.options, s.options.DB, s.options.Prefix)
}

// OperationTimeout implements [storepool.Config].
func (s *RedisStore) OperationTimeout() time.Duration { return s.options.Timeout }

// Shared implements [storepool.Config].
func (s *RedisStore) Shared() bool { return true }

// Open implements [storepool.Config].
func (s *RedisStore) Open(logger *zap.Logger) (idempotency.Store, error) {
	options := s.options
	options.Logger = logger
	return redis.Open(options)
}

var (
	_ caddy.Provisioner = (*RedisStore)(nil)
	_ storepool.Config  = (*RedisStore)(nil)
)
