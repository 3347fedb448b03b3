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

// DefaultTimeout limits one operation where Options.Timeout is 0.
const DefaultTimeout = 500 * time.Millisecond

// Options say which Redis a store is in: a single server, the master that
// sentinels name, or a cluster.
type Options struct {
	// Addresses are host:port, or the absolute path of a unix socket. With
	// Sentinel they are those of sentinels; otherwise several are nodes of a
	// cluster.
	Addresses []string
	// Sentinel is the name by which sentinels know the master; empty without
	// them.
	Sentinel string
	// SentinelUsername and SentinelPassword are for the sentinels, as Username
	// and Password are for the servers.
	SentinelUsername string
	SentinelPassword string
	// Cluster says that a single address is that of a node of a cluster.
	Cluster bool
	// Username is empty for Redis's default user. Another one needs a Password.
	Username string
	Password string
	// DB is the number of the database.
	DB int
	// TLS is nil for connections in the clear. Otherwise it is called for every new
	// connection, those to sentinels too, so that certificates can change while the
	// store is open. Its error is that of the dial.
	TLS func() (*tls.Config, error)
	// Prefix begins the names of all keys and channels; empty is [DefaultPrefix].
	// Stores with different prefixes share nothing.
	Prefix string
	// Timeout limits one operation with its retry; 0 is [DefaultTimeout].
	Timeout time.Duration
	// WaitReplicas is on how many replicas a kept response is before Settle
	// returns, as far as Timeout allows.
	WaitReplicas int
	// Logger gets what happens in the background; nil logs nothing.
	Logger *zap.Logger

	// logins are those of an open store, nil before.
	logins *logins
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

// clustered reports whether the store is in a cluster.
func (o Options) clustered() bool {
	return o.Cluster || (o.Sentinel == "" && len(o.Addresses) > 1)
}

// String names the Redis to people, without a secret.
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

// Check finds what is wrong with the options.
func (o Options) Check() error {
	if err := o.checkServers(); err != nil {
		return err
	}
	switch {
	case o.Username != "" && o.Password == "":
		return nameAlone("username", "password")
	case o.SentinelUsername != "" && o.SentinelPassword == "":
		return nameAlone("sentinel_username", "sentinel_password")
	default:
		return CheckPrefix(o.Prefix)
	}
}

// nameAlone refuses a name that go-redis would not send: it would be the default user who
// works in Redis, with what that one may do. The name is not shown: in a URL it may be a
// password in the wrong place.
func nameAlone(name, password string) error {
	return fmt.Errorf("redis %s without a %s: Redis logs in by name only with a password, and it would be the default user; "+
		"set %[2]s too, for a user with nopass to any text", name, password)
}

// checkServers finds what is wrong with all but who logs in, of which a URL and other
// settings may each say a part, and with what names begin with.
func (o Options) checkServers() error {
	if len(o.Addresses) == 0 {
		return errors.New("a redis store needs an address, host:port or the path of a unix socket")
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
	case o.Sentinel != "" && o.Cluster:
		return errors.New("redis sentinel and cluster exclude each other; use one of them")
	case o.Sentinel == "" && (o.SentinelUsername != "" || o.SentinelPassword != ""):
		return errors.New("redis sentinel_username and sentinel_password need sentinel, with the master's name")
	case o.DB < 0:
		return fmt.Errorf("redis db %d is negative; databases count from 0", o.DB)
	case o.DB > 0 && o.clustered():
		return fmt.Errorf("redis db %d is not accepted: a cluster has database 0 alone; several addresses are a cluster", o.DB)
	case o.Timeout < 0:
		return fmt.Errorf("redis timeout %s is negative; it takes a duration such as %s", o.Timeout, DefaultTimeout)
	case o.WaitReplicas < 0:
		return fmt.Errorf("redis wait_replicas %d is negative; it takes a number of replicas, or 0 to wait for none", o.WaitReplicas)
	}
	return nil
}

// CheckAddress reports whether a text is an address of [Options]. The error shows it as it
// was written, such as with a placeholder in it, and does not show what may be a URL: that
// has a password.
func CheckAddress(address, written string) error {
	if network(address) == "unix" {
		return nil
	}
	if isURL(address) {
		return fmt.Errorf("%s is a URL or has a user in it; use host:port or the absolute path of a unix socket; a URL stands behind store redis, and in JSON in url", shownAs(written))
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || port == "" {
		return fmt.Errorf("%s is neither host:port nor the absolute path of a unix socket", shownAs(written))
	}
	switch {
	case !isHost(host):
		return fmt.Errorf("%s has a host that is neither a name, such as redis.example.com, nor an IP address, 10.0.0.1 or [::1]", shownAs(written))
	case !isPort(port):
		return fmt.Errorf("%s has a port that is none from 1 to 65535", shownAs(written))
	default:
		return nil
	}
}

// hostName is the form of the names that Go looks up, here without their greatest length.
var hostName = regexp.MustCompile(`^(\w[\w-]*\.)*\w[\w-]*\.?$`)

// isHost reports whether a host can be dialed: other texts fail with every request. Digits
// and points alone are an IP address, or nothing.
func isHost(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil || hostName.MatchString(host) && strings.Trim(host, "0123456789.") != ""
}

func isPort(port string) bool {
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

// CheckDoubled refuses an address that stands among the others twice: one server is no
// cluster, and one sentinel no quorum.
func CheckDoubled(addresses []string) error {
	for i, address := range addresses {
		if slices.ContainsFunc(addresses[:i], func(other string) bool { return strings.EqualFold(other, address) }) {
			return fmt.Errorf("%s is named twice", shownAs(address))
		}
	}
	return nil
}

// shownAs is an address in an error.
func shownAs(address string) string {
	if isURL(address) {
		return "a redis address (not shown, it may hold a password)"
	}
	return fmt.Sprintf("redis address %q", address)
}

// isURL reports whether a text looks like a URL, or like the end of one.
func isURL(text string) bool { return strings.Contains(text, "://") || strings.Contains(text, "@") }

// network is tcp or unix.
func network(address string) string {
	if strings.HasPrefix(address, "/") {
		return "unix"
	}
	return "tcp"
}
