package keyscommand

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
)

// probeFor limits the wait for a process of which nobody knows yet whether it is meant.
const probeFor = 5 * time.Second

// address returns that of the flag, "" where it is not given. An empty one is what a variable
// leaves that is not set: the keys of another process would be released.
func (c *call) address() (string, error) {
	text := c.text("address")
	if text == "" && c.Flags().Changed("address") {
		return "", wrongUsage("--address is empty; leave it out, or give it a value")
	}
	return text, nil
}

// findAdmin returns a client of the admin API at the address, or, without one, where
// the environment says, where Caddy's is by default, or where a proxy's is. One that hangs,
// or may not be asked, could be the one that is meant: then no other is taken for it.
func (p Program) findAdmin(ctx context.Context, address string) (*adminClient, error) {
	if address != "" {
		return p.newClient(address, "--address")
	}
	if os.Getenv("CADDY_ADMIN") != "" {
		return p.newClient(p.DefaultAddress(), "$CADDY_ADMIN") // it has that value
	}
	client, err := p.newClient(p.DefaultAddress(), "the default")
	if err != nil {
		return nil, err
	}
	tried := client.isOurs(ctx)
	if tried == nil {
		return client, nil
	}
	clients, err := p.socketClients()
	said := askAll(ctx, clients)
	var found []*adminClient
	var addresses []string
	if hangs(tried) {
		addresses = append(addresses, tried.Error())
	}
	tried = errors.Join(tried, err)
	for i, client := range clients {
		switch err := said[i]; {
		case err == nil:
			found = append(found, client)
			addresses = append(addresses, client.address)
		case isSilent(err):
			addresses = append(addresses, err.Error())
			fallthrough
		default:
			tried = errors.Join(tried, err)
		}
	}
	switch {
	case len(found) == 0:
		return nil, exitError{exitNoAnswer, fmt.Errorf("no admin API of caddy-dedup answers, at %s or at a socket %s in %s; name it with --address\n%w",
			p.DefaultAddress(), admin.SocketNames, p.Directory(), tried)}
	case len(addresses) == 1:
		return found[0], nil
	case len(addresses) == len(found):
		return nil, wrongUsage("several proxies run here; choose one with --address:\n%s", strings.Join(addresses, "\n"))
	default:
		return nil, exitError{exitNoAnswer, fmt.Errorf("not all answer that may be meant; choose one with --address:\n%s", strings.Join(addresses, "\n"))}
	}
}

// socketClients returns clients of the sockets of proxies. The error is that nobody knows
// which there are.
func (p Program) socketClients() (clients []*adminClient, err error) {
	sockets, err := admin.Sockets(p.Directory())
	for _, socket := range sockets {
		client, err := p.newClient(socket, "the socket")
		if err != nil {
			return nil, err
		}
		clients = append(clients, client)
	}
	return clients, err
}

// askAll asks all at once whether they are a caddy-dedup: one that hangs takes no time from
// the others.
func askAll(ctx context.Context, clients []*adminClient) []error {
	said := make([]error, len(clients))
	var asked sync.WaitGroup
	for i, client := range clients {
		asked.Go(func() { said[i] = client.isOurs(ctx) })
	}
	asked.Wait()
	return said
}

// isOurs returns nil if the admin API of a caddy-dedup answers. It makes a mistake on
// purpose, for which no store has to be asked.
func (c *adminClient) isOurs(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeFor)
	defer cancel()
	err := c.do(ctx, http.MethodGet, admin.KeysPath, nil, nil)
	if p, ok := errors.AsType[*admin.Problem](err); ok && p.Status == http.StatusBadRequest {
		return nil
	}
	return err
}

// isSilent reports whether somebody may be at a socket who has not answered: one that hangs,
// or that this user may not ask. Nobody is there where nobody listens any more.
func isSilent(err error) bool {
	if errors.Is(err, errNotOurs) {
		return false
	}
	op, ok := errors.AsType[*net.OpError](err)
	return !ok || op.Op != "dial" || hangs(err) || errors.Is(err, fs.ErrPermission)
}

// hangs reports whether somebody took too long to answer. At a port it may be any program
// that answers otherwise.
func hangs(err error) bool {
	slow, ok := errors.AsType[net.Error](err)
	return ok && slow.Timeout()
}
