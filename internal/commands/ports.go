package commands

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
)

// listener is an address at which the process listens.
type listener struct {
	site    site
	address string // for [net.Listen]
	flag    string // because of which it listens, with its value
	does    string // what it does there
	instead string // what helps where the port is taken
}

// redirects returns where Caddy redirects to HTTPS, if it does.
func (w *written) redirects() (at site, ok bool) {
	at = w.site
	at.scheme, at.port = "http", defaultPorts["http"]
	return at, w.site.scheme == "https" && !w.flags.disableRedirects
}

// redirectsAt reports whether Caddy redirects on a port.
func (w *written) redirectsAt(port string) bool {
	at, ok := w.redirects()
	return ok && at.port == port
}

// listeners are all of them, but for sockets.
func (w *written) listeners() (all []listener) {
	const another = "choose another port"
	add := func(at site, flag, does, instead string) {
		all = append(all, listener{at, net.JoinHostPort(at.bound(), at.port), flag, does, instead})
	}
	from := "--from " + w.flags.from.Text
	add(w.site, from, "listens, so that each request would come back", another)
	if at, ok := w.redirects(); ok {
		add(at, from, "redirects to HTTPS", "use --disable-redirects")
	}
	if w.flags.health.Given {
		add(w.health, "--health "+w.flags.health.Text, "answers probes", another)
	}
	if at, address, ok := w.adminPort(); ok {
		all = append(all, listener{at, address, w.adminFlag() + " " + w.admin, "has the admin API", another})
	}
	return all
}

// adminFlag is where the address of the admin API comes from.
func (w *written) adminFlag() string {
	if !w.flags.admin.Given && w.caddyAdmin != "" {
		return "$CADDY_ADMIN"
	}
	return "--admin"
}

// adminPort is where the admin API listens, if that is a port.
func (w *written) adminPort() (at site, address string, ok bool) {
	if w.admin == adminOff {
		return site{}, "", false
	}
	read, err := parseAdminAddress(w.admin)
	if err != nil || read.Socket {
		return site{}, "", false
	}
	host, port, err := net.SplitHostPort(read.Address)
	if err != nil {
		return site{}, "", false
	}
	at = site{scheme: "http", port: port}
	if ip, err := netip.ParseAddr(host); err == nil {
		at.host, at.ip = ip.String(), true
	} else if host != "" && host != "localhost" {
		at.port = "" // which address a name is of is not asked
	}
	return at, read.Address, true
}

// checkPorts refuses a port on which another process listens. Caddy would share it, and
// the kernel would give each of the two a part of the requests: a duplicate that comes to
// the other one runs again.
func (w *written) checkPorts() error {
	for _, l := range w.listeners() {
		at, err := net.Listen("tcp", l.address)
		if errors.Is(err, syscall.EADDRINUSE) {
			_, port, _ := net.SplitHostPort(l.address)
			flag, _, _ := strings.Cut(l.flag, " ")
			return fmt.Errorf("%s: another process listens on port %s (%w); stop it, or %s", flag, port, err, l.instead)
		}
		if err == nil { // what else is wrong there Caddy will say
			_ = at.Close()
		}
	}
	return nil
}
