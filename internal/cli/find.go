package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/spf13/cobra"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
)

// parseAdmin parses the address of an admin API like Caddy, and refuses one that cannot be dialled.
func parseAdmin(text string) (caddy.NetworkAddress, error) {
	at, err := caddy.ParseNetworkAddressWithDefaults(text, "tcp", 2019)
	at.Host, _, _ = strings.Cut(at.Host, "|") // the mode of a socket
	one := at.PortRangeSize() == 1
	_, notNumber := strconv.Atoi(text)
	switch at.Network { // Caddy takes a URL, or a path after the port, as a host
	case "unix":
		one = at.Host != ""
	case "tcp", "tcp4", "tcp6":
		one = one && !strings.ContainsAny(at.Host, "/ \t\r\n,") && !strings.HasPrefix(text, "/")
	default:
		one = false
	}
	if notNumber == nil {
		err = fmt.Errorf("a port has a colon before it: localhost:%s", text)
	} else if err == nil && !one {
		err = errors.New("it is not one address that can be dialled")
	}
	if err != nil {
		return at, wrongUsage("%q is not an address of an admin API, such as localhost:2019 or unix//run/caddy/admin.sock: %w", text, err)
	}
	return at, nil
}

// maxProbe limits the wait for the process at Caddy's default address, which may be any server.
const maxProbe = 5 * time.Second

// findAdmin returns a client of the admin API at --address or $CADDY_ADMIN, else at Caddy's
// default address, else at the socket of the only proxy that runs.
func findAdmin(cmd *cobra.Command) (*adminClient, error) {
	// With an explicit address, no other process is tried.
	address, from := cmd.Flag("address").Value.String(), "--address"
	if address == "" {
		address, from = os.Getenv("CADDY_ADMIN"), "CADDY_ADMIN"
	}
	if address != "" {
		client, err := newClient(address)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", from, err)
		}
		return client, nil
	}
	client, err := newClient(caddy.DefaultAdminListen)
	if err != nil {
		return nil, err
	}
	tried := client.isOurs(cmd.Context())
	if tried == nil {
		return client, nil
	}
	sockets, err := admin.Sockets(caddy.AppDataDir())
	var running []string
	for _, socket := range sockets {
		conn, err := net.DialTimeout("unix", strings.TrimPrefix(socket, "unix/"), maxProbe)
		if err == nil {
			conn.Close()
		}
		// One that does not answer, or that this user may not use, may be the right one.
		if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist) {
			running = append(running, socket)
		}
	}
	switch len(running) {
	case 0:
		return nil, exitError{exitNoAnswer, fmt.Errorf("no admin API of caddy-dedup answers, at %s or at a socket %s in %s; name it with --address\n%w",
			caddy.DefaultAdminListen, admin.SocketNames, caddy.AppDataDir(), errors.Join(tried, err))}
	case 1:
		return newClient(running[0])
	default:
		return nil, wrongUsage("several proxies run here; choose one with --address:\n%s", strings.Join(running, "\n"))
	}
}

// isOurs returns nil if the admin API of a caddy-dedup answers. It sends an invalid request on purpose, which
// needs no store.
func (c *adminClient) isOurs(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, maxProbe)
	defer cancel()
	err := c.do(ctx, http.MethodGet, admin.KeysPath, nil, nil)
	if p, ok := errors.AsType[*admin.Problem](err); ok && p.Status == http.StatusBadRequest {
		return nil
	}
	return err
}
