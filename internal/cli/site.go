package cli

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
)

// site is where the proxy listens. It is parsed as by `caddy reverse-proxy`, except that an IP address or
// localhost is the address to listen on, and has no certificate.
type site struct {
	scheme, host, port string
	ip                 bool

	hostText, portText string // in a Caddyfile, where placeholders stay
}

// defaultPorts are the ports of the schemes.
var defaultPorts = map[string]string{"http": "80", "https": "443"}

// readSite reads the value of a flag. Empty parts get Caddy's defaults: HTTPS for a name,
// HTTP for all else.
func readSite(flag, given string) (site, error) {
	text := resolve(given)
	a, err := httpcaddyfile.ParseAddress(text)
	s := site{scheme: strings.ToLower(a.Scheme), host: a.Host, port: a.Port}
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
	case strings.ContainsAny(text, " \t\r\n,"):
		err = errors.New("it has a space or a comma, and the command listens on one address")
	case err != nil:
	case defaultPorts[s.scheme] == "":
		err = fmt.Errorf("its scheme is %s; it takes http or https", s.scheme)
	case !s.ip && strings.ContainsFunc(s.host, notInNames):
		err = fmt.Errorf("no name of a host has %q in it", s.host[strings.IndexFunc(s.host, notInNames)])
	case a.Path != "":
		err = errors.New("it has a path")
	case noColon == nil:
		err = fmt.Errorf("a port has a colon before it: :%s", given)
	case s.port == "0":
		err = errors.New("its port is a number from 1 to 65535")
	case s.scheme == "http" && s.port == defaultPorts["https"], s.scheme == "https" && s.port == defaultPorts["http"]:
		err = fmt.Errorf("%s:// on port %s violates the convention of these ports", s.scheme, s.port)
	}
	if err != nil {
		return s, fmt.Errorf("--%s: %q is not an address to listen on: %w; use one such as :8080, 127.0.0.1:8080, http://:8080 or example.com", flag, given, err)
	}
	_, rest, isURL := strings.Cut(given, "://")
	if !isURL {
		rest = given
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		host = rest
	}
	s.hostText, s.portText = partInCaddyfile(host, s.host), partInCaddyfile(port, s.port)
	return s, nil
}

// notInNames reports whether no name of a host has a character, in Unicode or with a wildcard.
func notInNames(c rune) bool {
	return !unicode.IsLetter(c) && !unicode.IsMark(c) && !unicode.IsDigit(c) && !strings.ContainsRune("-._*", c)
}

// partInCaddyfile returns a part of an address as a Caddyfile has it: with its placeholders if they make up
// the value.
func partInCaddyfile(given, value string) string {
	if resolve(given) == value {
		return inCaddyfile(given)
	}
	return value
}

// envPlaceholder matches the variables in a value.
var envPlaceholder = regexp.MustCompile(`\{env\.([^{}:\s]+)\}`)

// unsetVariable returns the first variable in a value that is empty, "" if none is.
func unsetVariable(text string) string {
	for _, match := range envPlaceholder.FindAllStringSubmatch(text, -1) {
		if os.Getenv(match[1]) == "" {
			return match[1]
		}
	}
	return ""
}

// resolve returns a flag's value with those of the variables in it.
func resolve(text string) string {
	return envPlaceholder.ReplaceAllStringFunc(text, func(placeholder string) string {
		return os.Getenv(envPlaceholder.FindStringSubmatch(placeholder)[1])
	})
}

// inCaddyfile returns a value as a Caddyfile has it, for which Caddy replaces the variables before it
// reads the Caddyfile.
func inCaddyfile(text string) string { return envPlaceholder.ReplaceAllString(text, "{$$$1}") }

// each returns the results of a function for texts.
func each(texts []string, of func(string) string) []string {
	results := make([]string, len(texts))
	for i, text := range texts {
		results[i] = of(text)
	}
	return results
}

// checkService refuses an address that `reverse_proxy` would take as a host name although it is not one, and the
// site's own.
func (s site) checkService(given, text string) error {
	scheme, rest, hasScheme := strings.Cut(text, "://")
	scheme = strings.ToLower(scheme)
	if !hasScheme {
		rest = text
	}
	defaultPort := uint(80)
	if scheme == "https" {
		defaultPort = 443
	}
	at, err := caddy.ParseNetworkAddressWithDefaults(rest, "tcp", defaultPort)
	_, notNumber := strconv.Atoi(rest)
	switch {
	case strings.Contains(rest, "{"): // resolved for each request
		return nil
	case rest == "":
		err = errors.New("it is empty")
	case strings.ContainsAny(text, " \t\r\n,") && !at.IsUnixNetwork():
		err = errors.New("it has a space or a comma; several addresses are several --to, or one with commas between them")
	case hasScheme && !slices.Contains([]string{"http", "https", "h2c"}, scheme):
		err = fmt.Errorf("its scheme is %s; a service is reached over http, https or h2c", scheme)
	case err != nil:
	case notNumber == nil:
		err = fmt.Errorf("a port has a colon before it: localhost:%s", given)
	case caddy.IsFdNetwork(at.Network):
		err = errors.New("a file descriptor cannot be dialed")
	case at.IsUnixNetwork() && !slices.Contains([]string{"unix", "unix+h2c"}, at.Network): // Caddy takes any that starts with unix
		err = fmt.Errorf("its network is %s; the socket is unix//%s", at.Network, strings.TrimPrefix(at.Host, "/"))
	case at.IsUnixNetwork() && !hasScheme:
	case strings.Contains(rest, "/") && !slices.Contains([]string{"tcp", "tcp4", "tcp6"}, at.Network), strings.Contains(at.Host, "/"), hasScheme && strings.Contains(rest, "/"):
		err = errors.New("it has a path, but requests keep their own")
	case at.StartPort == 0:
		err = errors.New("its port is a number from 1 to 65535")
	}
	if err != nil {
		return fmt.Errorf("--to: %q is not the address of a service: %w; use one such as localhost:3000, https://example.com or unix//run/service.sock", given, err)
	}
	if s.isAt(at) {
		return fmt.Errorf("--to: %q is where the proxy itself listens, by --from; give the service another port", given)
	}
	return nil
}

// isAt reports whether the site listens at the address of a service on this machine: each request would come back.
func (s site) isAt(service caddy.NetworkAddress) bool {
	ip, bound := net.ParseIP(service.Host), net.ParseIP(s.bound())
	isHere := service.Host == "" || service.Host == "localhost" || ip.IsLoopback() || ip.IsUnspecified()
	switch {
	case strconv.FormatUint(uint64(service.StartPort), 10) != s.port:
		return false
	case bound == nil || bound.IsUnspecified():
		return isHere
	default:
		return bound.Equal(ip) || isHere && ip == nil && bound.IsLoopback()
	}
}

// address is the site's address in a Caddyfile. One that names no host takes requests for
// every host.
func (s site) address() string {
	if !s.hostOnly() {
		return "http://:" + s.portText
	}
	return s.urlOf(s.hostText, s.portText)
}

// hostOnly reports whether the site takes only requests for its host.
func (s site) hostOnly() bool { return s.scheme == "https" || s.host != "" && !s.ip }

// bound is the address of this machine that the site listens on, empty for all.
func (s site) bound() string {
	if !s.ip {
		return ""
	}
	return s.host
}

// url is the site's address for a client on this machine.
func (s site) url() string { return s.urlOf(s.host, s.port) }

// hostOr returns the host in one of its forms, or localhost where the site listens on all addresses:
// a URL and a certificate need a name.
func (s site) hostOr(form string) string {
	if ip, err := netip.ParseAddr(s.host); s.host == "" || err == nil && ip.IsUnspecified() {
		return "localhost"
	}
	return form
}

func (s site) urlOf(host, port string) string {
	url := s.scheme + "://" + net.JoinHostPort(s.hostOr(host), port)
	return strings.TrimSuffix(url, ":"+defaultPorts[s.scheme])
}

// listener is an address at which the process listens, and its flag.
type listener struct{ flag, address string }

// listeners returns all but sockets.
func (p *proxy) listeners() []listener {
	all := []listener{{"--from", net.JoinHostPort(p.site.bound(), p.site.port)}}
	if p.site.scheme == "https" && !p.disableRedirects {
		all = append(all, listener{"--from without --disable-redirects", net.JoinHostPort(p.site.bound(), defaultPorts["http"])})
	}
	if p.health != "" {
		all = append(all, listener{"--health", net.JoinHostPort(p.probes.bound(), p.probes.port)})
	}
	if at, err := parseAdmin(resolve(p.admin)); err == nil && resolve(p.admin) != adminOff && !at.IsUnixNetwork() {
		all = append(all, listener{"--admin", at.JoinHostPort(0)})
	}
	return all
}

// checkDistinct refuses two flags with one address, also with --print, which does not listen.
func checkDistinct(all []listener) error {
	for i, l := range all {
		host, port, _ := net.SplitHostPort(l.address)
		for _, other := range all[:i] {
			if otherHost, otherPort, _ := net.SplitHostPort(other.address); port == otherPort && (host == otherHost || host == "" || otherHost == "") {
				return fmt.Errorf("%s: %s has the port of %s; use another one, such as :8081", l.flag, l.address, other.flag)
			}
		}
	}
	return nil
}

// checkPorts refuses a port that another process or flag uses. Caddy would share it, and the kernel would
// distribute the requests: duplicates would run again, or clients reach the admin API.
func checkPorts(all []listener) error {
	for _, l := range all {
		at, err := net.Listen("tcp", l.address)
		if err == nil { // Caddy reports other errors
			defer at.Close() // keep it open, so that two flags with one port conflict
		} else if errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("%s: another process or flag has this port (%w); choose another one", l.flag, err)
		}
	}
	return nil
}

// directoryOf returns the name of the file store of a port: two proxies on one machine need two.
func directoryOf(port string) string { return "dedup-" + port }
