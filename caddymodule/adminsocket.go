package caddymodule

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/caddyserver/caddy/v2"
)

const (
	socketNetwork = "unix/"
	// socketMode lets only the process's user reach the admin API.
	socketMode = "|0600"
	// longestSocket is the length of a path that every system takes for a unix
	// socket (sun_path in unix(7) has 108 bytes, elsewhere 104, with a NUL).
	longestSocket = 103
)

// adminSocketAt returns the address of the admin API of a proxy that listens on
// the given address.
func adminSocketAt(listen string) string {
	name := strings.NewReplacer(":", "-", "[", "", "]", "", "%", "-").Replace(strings.TrimPrefix(listen, ":"))
	return socketNetwork + filepath.Join(caddy.AppDataDir(), "dedup-admin-"+name+".sock") + socketMode
}

// adminSocket is the path of a unix socket for the admin API, "" for none.
type adminSocket string

// newAdminSocket makes room for the admin API's socket, if it is one: its
// directory is made, and one that an earlier process has left is fine. One that
// still answers is another proxy's.
func newAdminSocket(config *caddy.AdminConfig) (adminSocket, error) {
	address, isSocket := strings.CutPrefix(config.Listen, socketNetwork)
	if config.Disabled || !isSocket {
		return "", nil
	}
	path, _, _ := strings.Cut(address, "|")
	if len(path) > longestSocket {
		return "", fmt.Errorf("the admin API's socket %s has %d bytes in its path, and %d are possible; set XDG_DATA_HOME to a shorter directory, or use --admin off",
			path, len(path), longestSocket)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", fmt.Errorf("the directory of the admin API's socket cannot be made (%w); set XDG_DATA_HOME to one that can be written, or use --admin off", err)
	}
	if conn, err := net.Dial("unix", path); err == nil {
		conn.Close()
		return "", fmt.Errorf("another proxy with this address runs: it answers on the admin API's socket %s", path)
	}
	return adminSocket(path), nil
}

// remove removes the socket of a process that did not start.
func (s adminSocket) remove() {
	if s != "" {
		_ = os.Remove(string(s)) // it may not be there yet
	}
}
