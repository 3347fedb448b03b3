package integration

import (
	"fmt"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
)

// The commands reach the admin API at a port, whatever address it listens on itself: Caddy
// compares an origin with that, and the operator has come another way.
func TestKeysCommandByAPort(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	for name, admin := range map[string]func(dir string, port int) string{
		"a tunnel to its socket": func(dir string, port int) string {
			tunnel(t, port, adminSocket(dir))
			return "unix/" + adminSocket(dir)
		},
		"all addresses": func(_ string, port int) string { return fmt.Sprintf(":%d", port) },
		"an origin is asked for": func(_ string, port int) string {
			return fmt.Sprintf("localhost:%d {\n\tenforce_origin\n}", port)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, port, adminPort := shortTempDir(t), freeport.Of(t), freeport.Of(t)
			text := conf{store: "store memory", site: lines("dedup", proxyTo(up))}.caddyfile(dir, port)
			text = strings.Replace(text, "admin unix/"+adminSocket(dir), "admin "+admin(dir, adminPort), 1)
			startCaddyfile(t, dir, port, text).post(t, "/", "k", "body")
			address := fmt.Sprintf("localhost:%d", adminPort)
			for _, args := range [][]string{{"keys", "release", "k"}, {"health"}} {
				output, code := command(t, dir, append(args, "--address", address)...)
				if code != 0 {
					t.Errorf("%q ended with %d:\n%s", args, code, output)
				}
			}
		})
	}
}

// tunnel leads from a port to a socket, as `ssh -L` does.
func tunnel(t *testing.T, port int, socket string) {
	t.Helper()
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "socket"}) // which leaves the field Host as it is
	proxy.Transport = overSocket(socket)
	serve(t, fmt.Sprintf("127.0.0.1:%d", port), proxy)
}
