package redis

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
)

// subscribing is the key of the channels in the context of a subscription.
type subscribing struct{}

// handshake makes a dialed connection usable, in one write: it logs in, selects the database, asks what the
// server is, and subscribes if the connection is for that. go-redis would do it in several round trips, and
// would close the connection if the first caller that needs it timed out.
//
// INFO has the server's version, its role and whether it may evict records: after a failover, an address
// may lead to another server. A server that cannot be used gets no command of the store.
func (c *conn) handshake(ctx context.Context) error {
	d := c.dialer
	var commands []byte
	var needed []string // the replies that must not be errors, in order
	if username, password := d.credentials.newest(); password != "" {
		commands = appendCommand(commands, "auth", username, password)
		needed = append(needed, "log in")
	}
	if d.options.DB > 0 {
		commands = appendCommand(commands, "select", strconv.Itoa(d.options.DB))
		needed = append(needed, "select the database")
	}
	commands = appendCommand(commands, "info")
	if channels, ok := ctx.Value(subscribing{}).([]string); ok {
		commands = appendCommand(commands, append([]string{"subscribe"}, channels...)...)
	}
	defer context.AfterFunc(d.ctx, func() { _ = c.Close() })()
	started := time.Now()
	_ = c.Conn.SetDeadline(started.Add(d.limits.handshakeTimeout())) // fails only if it is closed, as the write does
	if _, err := c.Conn.Write(commands); err != nil {
		return noReply(err)
	}
	in := bufio.NewReader(c.Conn)
	if _, err := in.Peek(1); err != nil {
		return noReply(err)
	}
	c.roundTrip = time.Since(started)
	d.roundTrip.Store(int64(c.roundTrip))
	c.awaits.Store(nil)
	for _, what := range needed {
		if _, err := readText(in); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	info, err := readText(in)
	if err != nil && !hasCode(err, "NOPERM") && !strings.Contains(err.Error(), "unknown command") { // it need not have INFO
		return fmt.Errorf("ask what the server is: %w", err)
	}
	c.early, _ = in.Peek(in.Buffered())
	_ = c.Conn.SetDeadline(time.Time{})
	return d.accept(c, info)
}

func noReply(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("%s: %w", awaitingReply, err)
	}
	return initError(err)
}

// appendCommand appends a command in the form in which Redis reads it.
func appendCommand(dst []byte, words ...string) []byte {
	dst = fmt.Appendf(dst, "*%d\r\n", len(words))
	for _, word := range words {
		dst = fmt.Appendf(dst, "$%d\r\n%s\r\n", len(word), word)
	}
	return dst
}

// maxInfo is the maximum size of the reply to INFO, in bytes; that of a server is 7 KB.
const maxInfo = 1 << 20

// readText reads a reply that is a text. The error of the server is a [serverError].
func readText(in *bufio.Reader) (string, error) {
	line, err := in.ReadSlice('\n')
	if err != nil {
		return "", initError(err)
	}
	text := strings.TrimRight(string(line[1:]), "\r\n")
	switch line[0] {
	case '+':
		return text, nil
	case '-':
		return "", serverError(text)
	case '$':
		if size, err := strconv.Atoi(text); err == nil && size >= 0 && size <= maxInfo {
			bulk := make([]byte, size+len("\r\n"))
			if _, err = io.ReadFull(in, bulk); err != nil {
				return "", initError(err)
			}
			return string(bulk[:size]), nil
		}
	}
	return "", initError(fmt.Errorf("the server answered %.40q, so it is no Redis", line))
}

// serverError is an error that the server answered during the handshake.
type serverError string

func (e serverError) Error() string { return string(e) }

// RedisError implements [goredis.Error].
func (serverError) RedisError() {}

// accept returns an error if the server, by its INFO, cannot be used. It logs what the operator should know
// of a server that it has not seen before.
func (d *dialer) accept(c *conn, info string) error {
	if infoField(info, "redis_mode") == "sentinel" {
		return nil // its error for the first command is more precise
	}
	if err := checkVersion(info); err != nil {
		return initError(err)
	}
	runID, address := infoField(info, "run_id"), zap.String("address", c.address)
	if !d.options.clustered() && infoField(info, "role") == "slave" {
		if _, known := d.refused.LoadOrStore(runID, true); !known {
			d.options.Logger.Error("this redis is a replica: requests with a key are refused until it becomes a master; set the address of the master, or use sentinel", address)
		}
		return initError(errReplica)
	}
	switch {
	case c.body == nil:
		if before := d.master.Swap(&c.address); d.options.Sentinel != "" && before != nil && *before != c.address {
			// One for bodies that leads to a master that hangs would stay until it is used.
			d.closeOpen(func(old *conn) bool { return old.body != nil && old.address != c.address })
		}
	case d.options.Sentinel != "" && *d.master.Load() != c.address:
		return initError(errors.New("the sentinels have named another master meanwhile"))
	}
	d.comparesValues.Store(comparesValues(info))
	if _, known := d.accepted.LoadOrStore(runID, true); known || runID == "" {
		return nil
	}
	if d.connected.Swap(true) && !d.options.clustered() {
		d.options.Logger.Info("connected to another redis server than before, after a failover or because the name has several addresses", address)
	}
	if policy := evictionPolicy(info); policy != "" {
		d.options.Logger.Warn("this redis may evict records, and an evicted key runs again; set maxmemory-policy noeviction",
			address, zap.String("maxmemory_policy", policy))
	}
	return nil
}

// minVersion is the first version of Redis in which SET takes both NX and GET.
const minVersion = 7

// checkVersion returns an error if INFO has a version that is too old. Without a version there is no error.
func checkVersion(info string) error {
	if infoField(info, "valkey_version") != "" || infoField(info, "dragonfly_version") != "" {
		return nil // these report an old version of Redis for compatibility
	}
	version := infoField(info, "redis_version")
	major, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(major); err == nil && n < minVersion {
		return fmt.Errorf("the server is Redis %s; caddy-dedup needs Redis %d.0 or newer, or Valkey", version, minVersion)
	}
	return nil
}

// comparesValues reports whether the server has SET with IFEQ: Valkey 8.1, Redis 8.4.
func comparesValues(info string) bool {
	since := [2]int{8, 4}
	version := infoField(info, "redis_version")
	if valkey := infoField(info, "valkey_version"); valkey != "" {
		version, since = valkey, [2]int{8, 1}
	}
	var has [2]int
	_, err := fmt.Sscanf(version, "%d.%d", &has[0], &has[1])
	return err == nil && slices.Compare(has[:], since[:]) >= 0
}

// evictionPolicy returns the policy by which the server evicts keys; "" if it evicts none, or that is not
// known.
func evictionPolicy(info string) string {
	limit, policy := infoField(info, "maxmemory"), infoField(info, "maxmemory_policy")
	if limit == "" || limit == "0" || policy == "noeviction" {
		return ""
	}
	return policy
}

// infoField returns the value of a field in a reply to INFO, "" if there is none.
func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if field, value, _ := strings.Cut(strings.TrimSpace(line), ":"); field == name {
			return value
		}
	}
	return ""
}
