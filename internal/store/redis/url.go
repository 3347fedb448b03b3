package redis

import (
	"crypto/tls"
	"errors"
	"net"
	"net/url"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

const urlForms = "redis://[user:password@]host[:port][/db], rediss:// for TLS, or unix://[user:password@]/path[?db=n]"

// ParseURLs reads the URLs of one Redis: of a single server, or of several
// sentinels or nodes of a cluster, which differ in host and port alone. No error
// shows any part of a URL that could belong to a password.
func ParseURLs(texts ...string) (Options, error) {
	var all Options
	for i, text := range texts {
		one, err := ParseURL(text)
		if err != nil {
			return Options{}, err
		}
		if i == 0 {
			all = one
			continue
		}
		same := all.Username == one.Username && all.Password == one.Password && all.DB == one.DB &&
			(all.TLS == nil) == (one.TLS == nil) && network(all.Addresses[0]) == network(one.Addresses[0])
		all.Addresses = append(all.Addresses, one.Addresses...)
		if !same {
			return Options{}, errors.New("the redis URLs differ in more than host and port; scheme, user, password and database must be the same in all")
		}
	}
	return all, nil
}

// ParseURL reads a Redis URL. What the scheme, user, host and path say comes
// out in the options; the only parameter is db. No error shows any part of the
// URL that could belong to a password.
func ParseURL(text string) (Options, error) {
	// The errors of the URL parser and of go-redis quote what they cannot read. With
	// an unescaped / # ? or @ in the password, that is the password.
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
	if host, port, err := net.SplitHostPort(parsed.Addr); err == nil && u.Scheme != "unix" {
		switch { // here, for CheckAddress would show it
		case !isHost(host):
			return Options{}, errors.New("the redis URL has a host that is none; it takes " + urlForms)
		case !isPort(port):
			return Options{}, errors.New("the redis URL has a port that is none from 1 to 65535")
		}
	}
	options := Options{
		Addresses: []string{parsed.Addr},
		Username:  parsed.Username,
		Password:  parsed.Password,
		DB:        parsed.DB,
	}
	if u.Scheme == "rediss" {
		// Without a name: a certificate is to have that of the host which is dialed,
		// and which a sentinel or another node of a cluster may have named.
		options.TLS = func() (*tls.Config, error) { return &tls.Config{MinVersion: tls.VersionTLS12}, nil }
	}
	return options, options.Check()
}
