package commands

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
)

// site is where the proxy listens, read as `caddy reverse-proxy` reads it, but for
// addresses of this machine: those say which one to listen on, and want no certificate.
type site struct {
	scheme, host, port string
	ip                 bool
}

// defaultPorts are the ports of the schemes, and otherPorts those that cannot be meant with
// them.
var (
	defaultPorts = map[string]string{"http": "80", "https": "443"}
	otherPorts   = map[string]string{"http": "443", "https": "80"}
)

// readSite reads the value of a flag. Empty parts get Caddy's defaults: HTTPS for a name,
// HTTP for all else.
func readSite(flag, text string) (site, error) {
	wrong := func(why string) (site, error) {
		return site{}, fmt.Errorf("--%s: %q is not an address to listen on: %s; use one such as :8080, 127.0.0.1:8080, http://:8080 or example.com", flag, text, why)
	}
	if strings.Contains(text, "@") { // it may have a password
		return site{}, fmt.Errorf("--%s takes no user, and its value has an @; use an address to listen on such as :8080, 127.0.0.1:8080, http://:8080 or example.com", flag)
	}
	address, err := httpcaddyfile.ParseAddress(text)
	switch {
	case err != nil:
		return wrong(err.Error())
	case text == "":
		return wrong("it is empty")
	case address.Path != "":
		return wrong("it has a path")
	case address.Scheme != "" && address.Scheme != "http" && address.Scheme != "https":
		return wrong("its scheme is neither http nor https")
	}
	s := site{scheme: address.Scheme, host: address.Host, port: address.Port}
	if ip, err := netip.ParseAddr(s.host); err == nil {
		s.ip, s.host = true, ip.String()
	}
	if !s.ip && s.host != "" && !isName(s.host) {
		if _, err := strconv.ParseUint(text, 10, 16); err == nil {
			return wrong("a port has a colon before it: :" + text)
		}
		return wrong("its host is neither a name nor an IP address")
	}
	if s.scheme == "" {
		s.scheme = "https"
		if s.ip || s.host == "" || s.port == "80" {
			s.scheme = "http"
		}
	}
	if s.port == "" {
		s.port = defaultPorts[s.scheme]
	}
	if n, err := strconv.ParseUint(s.port, 10, 16); err != nil || n == 0 {
		return wrong("its port is not a number from 1 to 65535")
	}
	if s.port == otherPorts[s.scheme] {
		return wrong("port " + s.port + " is not for " + s.scheme)
	}
	if s.scheme == "https" && s.host == "" {
		return wrong("HTTPS needs the name that the certificate is for")
	}
	return s, nil
}

// isName reports whether a text can be the name of a host: labels with dots between them,
// of which the last is not a number. None begins with a hyphen, as a flag does that stands
// where a value should.
func isName(host string) bool {
	labels := strings.Split(host, ".")
	for _, label := range labels {
		if label == "" || label[0] == '-' {
			return false
		}
		for _, c := range []byte(label) {
			switch {
			case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c >= 0x80:
			case c == '-', c == '_', c == '*':
			default:
				return false
			}
		}
	}
	_, err := strconv.ParseUint(labels[len(labels)-1], 10, 64)
	return err != nil
}

// address is the site's address in a Caddyfile. One that names no host takes requests
// for every host.
func (s site) address() string {
	if s.scheme == "http" && (s.ip || s.host == "") {
		return "http://:" + s.port
	}
	return s.url()
}

// named reports whether the site has the name of a host.
func (s site) named() bool { return s.host != "" && !s.ip }

// hostOnly reports whether the site takes only requests for its host.
func (s site) hostOnly() bool { return s.scheme == "https" || s.named() }

// bound is the address of this machine that the site listens on, empty for all.
func (s site) bound() string {
	if !s.ip {
		return ""
	}
	return s.host
}

// url is the site's address for a client on this machine.
func (s site) url() string {
	host := s.host
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "localhost"
	}
	if s.port == defaultPorts[s.scheme] {
		if s.ip && host == s.host && netip.MustParseAddr(host).Is6() {
			host = "[" + host + "]"
		}
		return s.scheme + "://" + host
	}
	return s.scheme + "://" + net.JoinHostPort(host, s.port)
}

// isAt reports whether the site listens at the address of a service on this machine. What a
// name is an address of, other than localhost, is not asked.
func (s site) isAt(service string) bool {
	scheme, rest, hasScheme := strings.Cut(service, "://")
	if !hasScheme {
		scheme, rest = "http", service
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		host, port = rest, defaultPorts[scheme]
	}
	own, _ := netip.ParseAddr(s.bound())
	ip, err := netip.ParseAddr(host)
	switch {
	case port != s.port || err != nil && host != "" && host != "localhost":
		return false
	case !own.IsValid() || own.IsUnspecified():
		return err != nil || ip.IsLoopback() || ip.IsUnspecified()
	default:
		return ip == own
	}
}

// listen is what the admin API's socket is named after.
func (s site) listen() string { return net.JoinHostPort(s.host, s.port) }

// directory is the name of the site's own file store: two proxies on one machine need
// two.
func (s site) directory() string { return "dedup-" + s.port }
