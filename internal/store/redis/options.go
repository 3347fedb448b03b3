package redis

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/zap"
)

// DefaultTimeout limits one operation where Options.Timeout is 0.
const DefaultTimeout = 500 * time.Millisecond

// Options say which Redis a store is in.
type Options struct {
	// Addresses are host:port, or the absolute path of a unix socket. There must
	// be exactly one.
	Addresses []string
	// Username is empty for Redis's default user.
	Username string
	Password string
	// DB is the number of the database.
	DB int
	// TLS is nil for a connection in the clear.
	TLS *tls.Config
	// Timeout limits one operation with its retry; 0 is [DefaultTimeout].
	Timeout time.Duration
	// Logger gets what happens in the background; nil logs nothing.
	Logger *zap.Logger
}

func (o Options) withDefaults() Options {
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	return o
}

func (o Options) check() error {
	if len(o.Addresses) != 1 {
		return fmt.Errorf("a redis store takes one address, host:port or the path of a unix socket; it got %d", len(o.Addresses))
	}
	if err := CheckAddress(o.Addresses[0]); err != nil {
		return err
	}
	if o.DB < 0 {
		return fmt.Errorf("redis db %d is negative; databases count from 0", o.DB)
	}
	if o.Timeout < 0 {
		return fmt.Errorf("redis timeout %s is negative; it takes a duration such as %s", o.Timeout, DefaultTimeout)
	}
	return nil
}

// CheckAddress reports whether a text is an address of [Options].
func CheckAddress(address string) error {
	if network(address) == "unix" {
		return nil
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || port == "" {
		return fmt.Errorf("redis address %q is neither host:port nor the absolute path of a unix socket", address)
	}
	return nil
}

// network is tcp or unix.
func network(address string) string {
	if strings.HasPrefix(address, "/") {
		return "unix"
	}
	return "tcp"
}

const urlForms = "redis://[user:password@]host[:port][/db], rediss:// for TLS, or unix://[user:password@]/path[?db=n]"

// ParseURL reads a Redis URL. What the scheme, user, host and path say comes
// out in the options; the only parameter is db. No error shows any part of the
// URL that could belong to a password.
func ParseURL(text string) (Options, error) {
	// The errors of the URL parser and of go-redis quote what they trip over,
	// which is the password as soon as it has an unescaped / # ? or @ in it.
	unreadable := errors.New("the redis URL cannot be read; it takes " + urlForms +
		", with the characters / # ? @ : % of a password percent-encoded")
	u, err := url.Parse(text)
	if err != nil {
		return Options{}, unreadable
	}
	switch u.Scheme {
	case "redis", "rediss", "unix":
	default:
		return Options{}, errors.New("the redis URL has another scheme than redis, rediss and unix; it takes " + urlForms)
	}
	if u.Fragment != "" || u.Opaque != "" {
		return Options{}, unreadable
	}
	for name := range u.Query() {
		if name != "db" {
			return Options{}, errors.New("the redis URL has a parameter other than db; timeouts and TLS are settings of their own")
		}
	}
	if u.Scheme == "unix" && u.Host != "" {
		return Options{}, errors.New("the redis URL of a unix socket has a host; its path is absolute: unix:///path/to/redis.sock")
	}
	if u.Scheme != "unix" && u.Query().Has("db") && strings.Trim(u.Path, "/") != "" {
		return Options{}, errors.New("the redis URL names the database twice, in its path and as db; one of them is enough")
	}
	parsed, err := goredis.ParseURL(text)
	if err != nil {
		return Options{}, unreadable
	}
	if _, port, err := net.SplitHostPort(parsed.Addr); err == nil && u.Scheme != "unix" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return Options{}, errors.New("the redis URL has a port that is none from 1 to 65535")
		}
	}
	options := Options{
		Addresses: []string{parsed.Addr},
		Username:  parsed.Username,
		Password:  parsed.Password,
		DB:        parsed.DB,
		TLS:       parsed.TLSConfig,
	}
	return options, options.check()
}
