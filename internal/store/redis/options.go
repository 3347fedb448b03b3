package redis

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
)

// DefaultTimeout limits one operation if Options.Timeout is 0.
const DefaultTimeout = 500 * time.Millisecond

// Options configure a store: in a single Redis server, in the master that sentinels name, or in a
// cluster.
type Options struct {
	// Addresses are host:port, or the absolute path of a unix socket. With Sentinel they are
	// the addresses of sentinels; otherwise several are nodes of a cluster.
	Addresses []string
	// Sentinel is the name of the master in the configuration of the sentinels; empty without
	// sentinels.
	Sentinel string
	// SentinelUsername and SentinelPassword are those for the sentinels. They are independent of
	// Username and Password, which are for the servers.
	SentinelUsername string
	SentinelPassword string
	// Cluster reports whether a single address is that of a cluster node. It is false with Sentinel.
	Cluster bool
	// Username is empty for Redis's default user. Any other user needs a Password.
	Username string
	Password string
	// DB is the number of the database.
	DB int
	// TLS is nil for connections without TLS. Otherwise the store calls it for every new
	// connection, including those to sentinels, so that certificates can change while the
	// store is open. If TLS returns an error, the dial fails with it.
	TLS func() (*tls.Config, error)
	// Prefix is the prefix of the names of all keys and channels; empty is [DefaultPrefix].
	// Stores with different prefixes share nothing.
	Prefix string
	// Timeout limits one operation with its retries; 0 is [DefaultTimeout].
	Timeout time.Duration
	// WaitReplicas is the number of replicas that must have a kept response before Settle
	// returns. Settle waits for them for up to Timeout.
	WaitReplicas int
	// Logger logs what happens in the background; nil logs nothing.
	Logger *zap.Logger

	dial dialFunc // in tests
}

func (o Options) withDefaults() Options {
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	return o
}

// clustered reports whether the servers are a cluster.
func (o Options) clustered() bool {
	return o.Cluster || (o.Sentinel == "" && len(o.Addresses) > 1)
}

// String describes the servers for errors and logs, without secrets.
func (o Options) String() string {
	addresses := strings.Join(o.Addresses, ", ")
	switch {
	case o.Sentinel != "":
		return fmt.Sprintf("redis %q by the sentinels at %s", o.Sentinel, addresses)
	case o.clustered():
		return "redis cluster at " + addresses
	default:
		return "redis at " + addresses
	}
}

// Check returns an error if the options are invalid. The configuration checks what depends on one setting
// alone, or on which ones are set, because it knows the line.
func (o Options) Check() error {
	if err := o.checkServers(); err != nil {
		return err
	}
	switch {
	case o.Username != "" && o.Password == "":
		return usernameWithoutPassword("username", "password")
	case o.SentinelUsername != "" && o.SentinelPassword == "":
		return usernameWithoutPassword("sentinel_username", "sentinel_password")
	default:
		return CheckPrefix(o.Prefix)
	}
}

// usernameWithoutPassword returns the error for a username without a password: go-redis would not send
// the name, and the store would act as the default user. The error does not show the name, which in a
// URL may be a password in the wrong place.
func usernameWithoutPassword(name, password string) error {
	return fmt.Errorf("redis %s without a %s: Redis takes a name only with a password, and the store would be the default user; "+
		"set %[2]s too, for a user with nopass to any text", name, password)
}

// checkServers checks everything but the prefix, the user and the password: a URL may have the user
// and the configuration the password.
func (o Options) checkServers() error {
	if len(o.Addresses) == 0 {
		return errors.New("no server is set: write a URL, such as redis://localhost:6379, or an address; a variable such as {$REDIS_URL} may be empty")
	}
	for _, address := range o.Addresses {
		if err := CheckAddress(address, address); err != nil {
			return err
		}
		if network(address) == "unix" && (o.Sentinel != "" || o.clustered()) {
			return fmt.Errorf("redis address %q is a unix socket; sentinels and nodes of a cluster are host:port", address)
		}
	}
	if err := CheckDoubled(o.Addresses); err != nil {
		return err
	}
	switch {
	case o.Sentinel == "" && (o.SentinelUsername != "" || o.SentinelPassword != ""):
		return errors.New("redis sentinel_username and sentinel_password need sentinel, with the master's name")
	case o.DB < 0:
		return fmt.Errorf("redis db %d is negative; databases count from 0", o.DB)
	case o.DB > 0 && o.clustered():
		return fmt.Errorf("redis db %d is not accepted: a cluster has database 0 alone; several addresses are a cluster", o.DB)
	}
	return nil
}

// CheckAddress returns an error if a text is not valid as an address in [Options]. The error shows the
// address as it was written, perhaps with a placeholder, unless it may be a URL with a password.
func CheckAddress(address, written string) error {
	if network(address) == "unix" {
		return nil
	}
	if isURL(address) {
		return fmt.Errorf("%s is a URL or has a user in it; use host:port or the absolute path of a unix socket; write a URL behind store redis, or in JSON in url", shownAs(written))
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || port == "" {
		return fmt.Errorf("%s is neither host:port nor the absolute path of a unix socket", shownAs(written))
	}
	switch {
	case !isHost(host):
		return fmt.Errorf("%s has a host that is neither a name, such as redis.example.com, nor an IP address, 10.0.0.1 or [::1]", shownAs(written))
	case !isPort(port):
		return fmt.Errorf("%s has a port that is not a number from 1 to 65535", shownAs(written))
	default:
		return nil
	}
}

// hostName matches the names that Go resolves.
var hostName = regexp.MustCompile(`^(\w[\w-]*\.)*\w[\w-]*\.?$`)

// isHost reports whether a host can be dialed. A text of digits and dots must be an IP address.
func isHost(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil || hostName.MatchString(host) && strings.Trim(host, "0123456789.") != ""
}

func isPort(port string) bool {
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

// CheckDoubled returns an error if an address is listed twice: one server is not a cluster, and one
// sentinel is not a quorum.
func CheckDoubled(addresses []string) error {
	for i, address := range addresses {
		if slices.ContainsFunc(addresses[:i], func(other string) bool { return strings.EqualFold(other, address) }) {
			return fmt.Errorf("%s is named twice", shownAs(address))
		}
	}
	return nil
}

// shownAs returns an address as errors show it.
func shownAs(address string) string {
	if isURL(address) {
		return "a redis address (not shown, it may hold a password)"
	}
	return fmt.Sprintf("redis address %q", address)
}

// isURL reports whether a text looks like a URL or a part of one.
func isURL(text string) bool { return strings.Contains(text, "://") || strings.Contains(text, "@") }

// network returns the network of an address, tcp or unix.
func network(address string) string {
	if strings.HasPrefix(address, "/") {
		return "unix"
	}
	return "tcp"
}
