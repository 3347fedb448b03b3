package caddymodule

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/redis"
)

func init() {
	caddy.RegisterModule(new(RedisStore))
}

// RedisStore keeps claims and responses in a Redis server that any number of
// replicas share. All texts may hold placeholders such as `{env.REDIS_URL}` or
// `{file./run/secrets/redis}`, which are replaced when the configuration is
// loaded.
type RedisStore struct {
	// The server as a URL: `redis://`, `rediss://` (TLS) or `unix://`, with user,
	// password and database where needed. It excludes `addresses`.
	URL string `json:"url,omitempty"`

	// The server's address, host:port or the path of a unix socket. Default:
	// localhost:6379.
	Addresses []string `json:"addresses,omitempty"`

	// The user's name (ACL), if not the default one.
	Username string `json:"username,omitempty"`

	// The password.
	Password string `json:"password,omitempty"`

	// The number of the database. Default: 0.
	DB int `json:"db,omitempty"`

	// TLS settings; an empty object uses the system's certificates.
	TLS *RedisTLS `json:"tls,omitempty"`

	// The limit of one operation. Default: 500ms.
	Timeout caddy.Duration `json:"timeout,omitempty"`

	options redis.Options
}

// RedisTLS are the TLS settings of a Redis connection.
type RedisTLS struct {
	// A file with the certificates of the authorities that are trusted, in PEM.
	// Default: those of the system.
	CA string `json:"ca,omitempty"`

	// A file with the client's certificate, in PEM; needs `key`.
	Cert string `json:"cert,omitempty"`

	// A file with the key of the client's certificate, in PEM; needs `cert`.
	Key string `json:"key,omitempty"`

	// The name in the server's certificate, if it is not the host's.
	ServerName string `json:"server_name,omitempty"`
}

// CaddyModule returns the Caddy module information.
func (*RedisStore) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "dedup.stores.redis",
		New: func() caddy.Module { return new(RedisStore) },
	}
}

// Provision replaces the placeholders and reads the certificates. It dials
// nothing.
func (s *RedisStore) Provision(caddy.Context) error {
	options, err := s.resolve()
	if err != nil {
		return fmt.Errorf("redis store: %w", err)
	}
	s.options = options
	return nil
}

func (s *RedisStore) resolve() (redis.Options, error) {
	replace := func(text string) string { return caddy.NewReplacer().ReplaceAll(text, "") }
	var options redis.Options
	switch {
	case s.URL != "" && len(s.Addresses) > 0:
		return options, errors.New("the server has a URL and an address; use one of them")
	case s.URL != "":
		url := replace(s.URL)
		if url == "" {
			return options, fmt.Errorf("the URL %s is empty once its placeholders are replaced", s.URL)
		}
		parsed, err := redis.ParseURL(url)
		if err != nil {
			return options, err
		}
		options = parsed
	case len(s.Addresses) > 0:
		for _, address := range s.Addresses {
			if replace(address) == "" {
				return options, fmt.Errorf("the address %s is empty once its placeholders are replaced", address)
			}
			options.Addresses = append(options.Addresses, replace(address))
		}
	default:
		options.Addresses = []string{"localhost:6379"}
	}
	if s.Username != "" {
		options.Username = replace(s.Username)
	}
	if s.Password != "" {
		if options.Password = replace(s.Password); options.Password == "" {
			return options, errors.New("the password is empty once its placeholders are replaced")
		}
	}
	if s.DB != 0 {
		options.DB = s.DB
	}
	options.Timeout = duration(s.Timeout)
	orElse(&options.Timeout, redis.DefaultTimeout)
	if s.TLS != nil {
		config, err := s.TLS.config(options.Addresses[0])
		if err != nil {
			return options, err
		}
		options.TLS = config
	}
	return options, nil
}

func (t *RedisTLS) config(address string) (*tls.Config, error) {
	host, _, _ := strings.Cut(address, ":")
	config := &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
	if t.ServerName != "" {
		config.ServerName = t.ServerName
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
	if (t.Cert == "") != (t.Key == "") {
		return nil, errors.New("tls: cert and key need each other")
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

// poolKey hashes the settings: they hold a password.
func (s *RedisStore) poolKey() string {
	settings, err := json.Marshal(struct {
		Addresses          []string
		Username, Password string
		DB                 int
		TLS                *RedisTLS
		URLWithTLS         bool
		Timeout            time.Duration
	}{
		s.options.Addresses, s.options.Username, s.options.Password, s.options.DB,
		s.TLS, s.options.TLS != nil, s.options.Timeout,
	})
	if err != nil {
		panic("caddymodule: settings that JSON cannot hold: " + err.Error()) // impossible by their types
	}
	return fmt.Sprintf("redis %x", sha256.Sum256(settings))
}

func (s *RedisStore) describe() string {
	return fmt.Sprintf("redis store %s, database %d", strings.Join(s.options.Addresses, " "), s.options.DB)
}

func (s *RedisStore) operationTimeout() time.Duration { return s.options.Timeout }

func (s *RedisStore) open(logger *zap.Logger, _ Limits) (idempotency.Store, error) {
	options := s.options
	options.Logger = logger
	return redis.Open(options)
}

var (
	_ caddy.Provisioner = (*RedisStore)(nil)
	_ storeModule       = (*RedisStore)(nil)
)
