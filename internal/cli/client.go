package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/spf13/cobra"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

const (
	// dialTimeout and answerTimeout limit the wait for the admin API, which answers within
	// [admin.FindTimeout] and a little more.
	dialTimeout   = 5 * time.Second
	answerTimeout = admin.FindTimeout + 15*time.Second
	// probeTimeout limits the wait for the process at Caddy's default address, which may be any server.
	probeTimeout = 5 * time.Second
	// maxAnswer is the maximum size of an answer: a page of a thousand records, or a response.
	maxAnswer = 256 << 20
)

// parseAdmin parses the address of an admin API like Caddy, and refuses one that cannot be dialled.
func parseAdmin(text string) (caddy.NetworkAddress, error) {
	at, err := caddy.ParseNetworkAddressWithDefaults(text, "tcp", 2019)
	at.Host, _, _ = strings.Cut(at.Host, "|") // the mode of a socket
	_, notNumber := strconv.Atoi(text)
	isTCP := at.Network == "tcp" || at.Network == "tcp4" || at.Network == "tcp6"
	switch {
	case notNumber == nil:
		err = fmt.Errorf("a port has a colon before it: localhost:%s", text)
	case err != nil, at.Network == "unix" && at.Host != "":
	case !isTCP || at.PortRangeSize() != 1 || strings.ContainsAny(at.Host, "/ \t\r\n,") || strings.HasPrefix(text, "/"):
		err = errors.New("it is not one address that can be dialled") // Caddy takes a URL, or a path after the port, as a host
	}
	if err != nil {
		return at, wrongUsage("%q is not an address of an admin API, such as localhost:2019 or unix//run/caddy/admin.sock: %w", text, err)
	}
	return at, nil
}

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
		conn, err := net.DialTimeout("unix", strings.TrimPrefix(socket, "unix/"), dialTimeout)
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

// adminClient asks the admin API at one address.
type adminClient struct {
	address string // for people
	base    string // the beginning of its URLs
	http    *http.Client

	mayOrigin bool // requests may need an Origin (not over a unix socket)
	origin    bool // they do
}

// newClient returns a client of the admin API at an address.
func newClient(address string) (*adminClient, error) {
	at, err := parseAdmin(address)
	if err != nil {
		return nil, err
	}
	base := "http://" + at.JoinHostPort(0)
	if at.IsUnixNetwork() {
		base = "http://127.0.0.1" // a host that the admin API accepts on a socket
	}
	dialer := net.Dialer{Timeout: dialTimeout}
	return &adminClient{address: address, base: base, mayOrigin: !at.IsUnixNetwork(), http: &http.Client{
		Timeout: answerTimeout,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return dialer.DialContext(ctx, at.Network, at.JoinHostPort(0))
			},
		},
	}}, nil
}

// isOurs returns nil if the admin API of a caddy-dedup answers. It sends an invalid request on purpose, which
// needs no store.
func (c *adminClient) isOurs(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	err := c.do(ctx, http.MethodGet, admin.KeysPath, nil, nil)
	if p, ok := errors.AsType[*admin.Problem](err); ok && p.Status == http.StatusBadRequest {
		return nil
	}
	return err
}

// send sends a request with a JSON body, or with none. It repeats it with an Origin if the admin API
// refuses it without one (enforce_origin). An Origin with each request would fail behind a tunnel and where
// the API listens on all addresses, because Caddy compares it with the address of its listener.
func (c *adminClient) send(ctx context.Context, method, target string, content []byte) (*http.Response, error) {
	for {
		r, err := http.NewRequestWithContext(ctx, method, c.base+target, bytes.NewReader(content))
		if err != nil {
			return nil, wrongUsage("%s is not an address that can be asked: %w", c.address, err)
		}
		if content != nil {
			r.Header.Set("Content-Type", "application/json")
		}
		if c.origin {
			r.Header.Set("Origin", c.base)
		}
		answer, err := c.http.Do(r)
		if err != nil {
			return nil, exitError{exitNoAnswer, fmt.Errorf("%s does not answer: %w", c.address, err)}
		}
		if answer.StatusCode != http.StatusForbidden || !c.mayOrigin || c.origin {
			return answer, nil
		}
		answer.Body.Close()
		c.origin = true
	}
}

// do sends a request with a JSON body, or with none, and decodes the answer. An error has its exit status.
func (c *adminClient) do(ctx context.Context, method, target string, send, into any) error {
	var content []byte
	if send != nil {
		var err error
		if content, err = json.Marshal(send); err != nil {
			return err
		}
	}
	answer, err := c.send(ctx, method, target, content)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	kind := answer.Header.Get("Content-Type")
	body := io.LimitReader(answer.Body, maxAnswer)
	switch {
	case kind == "application/problem+json":
		p := new(admin.Problem)
		if err := json.NewDecoder(body).Decode(p); err != nil {
			return c.notOurs(fmt.Errorf("a problem that cannot be read: %w", err))
		}
		return exitError{exitOf(p.Status), p}
	case answer.StatusCode == http.StatusNoContent && into == nil:
		return nil
	case answer.StatusCode == http.StatusOK && kind == "application/json" && into != nil:
		if err := json.NewDecoder(body).Decode(into); err != nil {
			return c.notOurs(err)
		}
		if !isAnswer(into) {
			return c.notOurs(fmt.Errorf("the JSON for %s lacks members that each answer has", target))
		}
		return nil
	default:
		said, _ := io.ReadAll(io.LimitReader(body, 200)) // as much as can be read
		return c.notOurs(fmt.Errorf("%s: %.200q", answer.Status, said))
	}
}

// isAnswer reports whether an answer has the members that each one has. Other JSON would be an empty list,
// or a ready process.
func isAnswer(decoded any) bool {
	switch answer := decoded.(type) {
	case *admin.Page:
		return answer.Keys != nil
	case *admin.LookupAnswer:
		return answer.Keys != nil && answer.Missing != nil
	case *admin.Record:
		return answer.Key != ""
	case *admin.ReadyAnswer:
		return len(answer.Stores) > 0
	default:
		return true
	}
}

// notOurs returns the error for the answer of another server.
func (c *adminClient) notOurs(err error) error {
	return exitError{exitNoAnswer, fmt.Errorf("%s does not answer as the admin API of a caddy-dedup of this version: %w", c.address, err)}
}

// exitOf returns the exit status for the status of a problem.
func exitOf(status int) int {
	switch status {
	case http.StatusBadRequest, http.StatusMethodNotAllowed:
		return exitUsage
	case http.StatusServiceUnavailable:
		return exitNoAnswer
	default:
		return exitFailed
	}
}

// walk calls see with each page of a list, in the order of the stores. The error says which stores could
// not be read to their end.
func (c *adminClient) walk(ctx context.Context, query url.Values, see func(admin.Page)) error {
	query.Set(admin.ParamOrder, admin.OrderStore)
	query.Set(admin.ParamLimit, strconv.Itoa(admin.MaxKeys))
	var failed error
	failedStores := make(map[string]bool)
	for first := true; ; first = false {
		var page admin.Page
		if err := c.do(ctx, http.MethodGet, admin.ListPath+"?"+query.Encode(), nil, &page); err != nil {
			if !first { // no wrong usage, even if a store has closed and its cursor is invalid
				err = exitError{exitNoAnswer, err}
			}
			return errors.Join(failed, err)
		}
		see(page)
		for _, store := range page.Unavailable {
			if !failedStores[store.Store] {
				failedStores[store.Store] = true
				failed = errors.Join(failed, notAsked(store))
			}
		}
		if page.Incomplete && len(failedStores) == 0 {
			failed = exitError{exitNoAnswer, fmt.Errorf("the stores have more records than the %d that could be read in time", page.Seen)}
		}
		if page.Next == "" {
			return failed
		}
		query.Set(admin.ParamCursor, page.Next)
	}
}

// notAsked returns the error for a store that failed.
func notAsked(store admin.Readiness) error {
	return exitError{exitNoAnswer, fmt.Errorf("%s could not be asked: %s", store.Store, store.Error)}
}

// show returns the records of a key in all stores, with their responses if withBody
// is set.
func (c *adminClient) show(ctx context.Context, key string, withBody bool) ([]admin.Record, error) {
	target := admin.KeysPath + key
	if withBody {
		target += "?body=true"
	}
	var record admin.Record
	if err := c.do(ctx, http.MethodGet, target, nil, &record); err != nil {
		return nil, err
	}
	all := append([]admin.Record{record}, record.Others...)
	all[0].Others = nil
	return all, nil
}

// withBody returns the present record with its response. With an error, it returns the given record.
func (c *adminClient) withBody(ctx context.Context, found admin.Record) (admin.Record, error) {
	all, err := c.show(ctx, found.Key, true)
	if err != nil {
		return found, err
	}
	for _, record := range all {
		if record.Store == found.Store {
			return record, nil
		}
	}
	return found, fmt.Errorf("%s does not have it any more", found.Store)
}

// findDigits adds the records whose keys have the digits of lists. It reads all keys.
func (c *adminClient) findDigits(ctx context.Context, digits map[string][]admin.Record, provider string) error {
	return c.walk(ctx, make(url.Values), func(page admin.Page) {
		for _, r := range page.Keys {
			if records, wanted := digits[keyDigits(r.Key)]; wanted && mayBeOf(r, provider) {
				digits[keyDigits(r.Key)] = append(records, r)
			}
		}
	})
}

// mayBeOf reports whether a record can be one of a provider, "" for any.
func mayBeOf(r admin.Record, provider string) bool {
	return provider == "" || r.Provider == provider || r.State == admin.StateUnreadable
}

// find returns the records that an argument names: a key, or all keys of a delivery ID. A delivery ID may
// look like a key, because some senders use hashes. With an error it returns the records of the other
// stores. unavailable are failed stores that no request uses.
func (c *adminClient) find(ctx context.Context, arg, provider string) (found []admin.Record, unavailable []admin.Readiness, err error) {
	if _, err := idempotency.ParseKey(arg); err == nil {
		records, err := c.show(ctx, arg, false)
		if p, ok := errors.AsType[*admin.Problem](err); err != nil && (!ok || p.Status != http.StatusNotFound) {
			return nil, nil, err
		}
		found = slices.DeleteFunc(records, func(r admin.Record) bool { return !mayBeOf(r, provider) })
		if len(found) > 0 {
			return found, nil, nil
		}
	}
	// The ID is in the body, because Caddy logs the targets of requests to the admin API.
	var answer admin.LookupAnswer
	err = c.do(ctx, http.MethodPost, admin.LookupPath, admin.LookupRequest{Provider: provider, IDs: []string{arg}}, &answer)
	if p, ok := errors.AsType[*admin.Problem](err); ok {
		return p.Keys, nil, err
	}
	return answer.Keys, answer.Unavailable, err
}
