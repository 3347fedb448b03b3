package cli

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"

	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
)

// site is where the proxy listens, read as `caddy reverse-proxy` reads it, but for addresses
// of this machine: those say which one to listen on, and want no certificate.
type site struct {
	scheme, host, port string
	ip                 bool
}

// defaultPorts are the ports of the schemes.
var defaultPorts = map[string]string{"http": "80", "https": "443"}

// readSite reads the value of a flag. Empty parts get Caddy's defaults: HTTPS for a name,
// HTTP for all else.
func readSite(flag, text string) (site, error) {
	a, err := httpcaddyfile.ParseAddress(text)
	s := site{scheme: a.Scheme, host: a.Host, port: a.Port}
	if ip, err := netip.ParseAddr(s.host); err == nil {
		s.ip, s.host = true, ip.String()
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
	_, noColon := strconv.Atoi(text)
	switch {
	case err != nil:
	case a.Path != "":
		err = errors.New("it has a path")
	case noColon == nil:
		err = fmt.Errorf("a port has a colon before it: :%s", text)
	case s.port == "0":
		err = errors.New("its port is a number from 1 to 65535")
	}
	if err != nil {
		return s, fmt.Errorf("--%s: %q is not an address to listen on: %w; use one such as :8080, 127.0.0.1:8080, http://:8080 or example.com", flag, text, err)
	}
	return s, nil
}

// address is the site's address in a Caddyfile. One that names no host takes requests for
// every host.
func (s site) address() string {
	if s.scheme == "http" && !s.named() {
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
	url := s.scheme + "://" + net.JoinHostPort(host, s.port)
	return strings.TrimSuffix(url, ":"+defaultPorts[s.scheme])
}

// listener is an address at which the process listens, and the flag because of which it does.
type listener struct{ flag, address string }

// listeners are all of them, but for sockets.
func (p *proxy) listeners(adminAt string) []listener {
	all := []listener{{"--from", net.JoinHostPort(p.site.bound(), p.site.port)}}
	if p.site.scheme == "https" && !p.disableRedirects {
		all = append(all, listener{"--from without --disable-redirects", net.JoinHostPort(p.site.bound(), defaultPorts["http"])})
	}
	if p.health != "" {
		all = append(all, listener{"--health", net.JoinHostPort(p.probes.bound(), p.probes.port)})
	}
	if at, err := parseAdmin(adminAt); err == nil && adminAt != adminOff && !at.IsUnixNetwork() {
		all = append(all, listener{"--admin", at.JoinHostPort(0)})
	}
	return all
}

// checkPorts refuses a port that is taken, by another process or by another flag. Caddy would
// share it, and the kernel would give each listener a part of the requests: a duplicate that
// comes to the other one runs again, or a client reaches the admin API.
func checkPorts(all []listener) error {
	for _, l := range all {
		at, err := net.Listen("tcp", l.address)
		if err == nil { // what else is wrong there Caddy will say
			defer at.Close() // all at once: two flags with one port exclude each other
		} else if errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("%s: another process or flag has this port (%w); choose another one", l.flag, err)
		}
	}
	return nil
}

// listen is what the admin API's socket is named after.
func (s site) listen() string { return net.JoinHostPort(s.host, s.port) }

// directory is the name of the site's own file store: two proxies on one machine need two.
func (s site) directory() string { return "dedup-" + s.port }
