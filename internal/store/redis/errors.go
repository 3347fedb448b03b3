package redis

import (
	"errors"
	"fmt"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// access returns the ACL rules that the store's user needs, for names with this prefix.
func access(prefix string) string { return "~" + prefix + "* &" + prefix + "* " + commands }

// commands are the rules of access without names.
const commands = "+evalsha +eval +set +get +getrange +setrange +exists +del +rename +pexpire +pexpireat " +
	"+type +time +info +scan +publish +subscribe +ping +hello +select +wait +asking +cluster|slots"

// neededCommands are the commands that rename-command must leave. The error of a script does
// not name the one that is missing.
var neededCommands = "rename-command must leave " + strings.ReplaceAll(commands, "+", "") + " as they are"

// sentinelAccess are the ACL rules that a user of the sentinels needs.
const sentinelAccess = "&+switch-master &+replica-reconf-done " +
	"+sentinel|get-master-addr-by-name +sentinel|sentinels +subscribe +ping +hello"

// errReplica keeps a claim from a replica: one that takes writes would lose it.
var errReplica = errors.New("it reports that it is a replica")

// fail returns the store's error for an operation. It names the server, and what to do if that
// is known.
func (s *Store) fail(operation string, err error) error {
	if errors.Is(err, goredis.ErrClosed) {
		return idempotency.ErrClosed
	}
	var unreadable *idempotency.UnreadableError
	if errors.As(err, &unreadable) {
		return err
	}
	if hasCode(err, "WRONGPASS") || hasCode(err, "NOAUTH") {
		s.credentials.refused.Store(true)
	}
	hint := s.hint(err)
	var dial *dialError
	if s.options.Sentinel != "" && errors.As(err, &dial) {
		hint = s.sentinelHint(err)
	}
	if hint != "" {
		hint += ": "
	}
	return fmt.Errorf("%s: %s: %s%w", s.options, operation, hint, err)
}

// hint says what to do about an error, "" if that is not known.
func (s *Store) hint(err error) string {
	says := func(text string) bool { return answered(err) && strings.Contains(err.Error(), text) }
	isReplica := hasCode(err, "READONLY") || errors.Is(err, errReplica)
	switch {
	case hasCode(err, "OOM"):
		return "maxmemory is reached and nothing can be evicted"
	case hasCode(err, "NOAUTH"):
		return "the server wants a password: set password, and username if it has users"
	case hasCode(err, "WRONGPASS"):
		return "the server does not accept the username and password that are set"
	case hasCode(err, "NOPERM"), says("user executing the script can't"):
		return "the user may not do this; it needs the rules " + access(s.options.Prefix)
	case isReplica && (s.options.Sentinel != "" || s.options.clustered()):
		return "the server is a replica: a failover is under way, or has just been"
	case isReplica:
		return "the server is a replica; set the address of the master, or use sentinel"
	case hasCode(err, "MOVED"), hasCode(err, "ASK"):
		return "the server is one of a cluster; set cluster"
	case hasCode(err, "CLUSTERDOWN"):
		return "the cluster has no master for this key at the moment"
	case s.options.clustered() && says("cluster support disabled"):
		return "the server is not one of a cluster; set one address, without cluster"
	case says("syntax error"):
		return fmt.Sprintf("the server does not know SET with NX and GET; caddy-dedup needs Redis %d.0 or newer, or Valkey", minVersion)
	case says("unknown command"):
		return "the server does not know a command that every redis has; it may be a sentinel: set sentinel, with the master's name; " +
			"or the command was renamed: " + neededCommands
	case says("nknown Redis command called from script"):
		return "a command was renamed: " + neededCommands
	case isClosed(err):
		return "the server closed the connection; if it always does, it may want TLS (set tls or rediss://), be in protected mode, or have as many clients as it may"
	default:
		return ""
	}
}

// sentinelHint says what to do about a failed dial behind sentinels, "" if that is not known.
func (s *Store) sentinelHint(err error) string {
	switch {
	case errors.Is(err, goredis.Nil):
		return fmt.Sprintf("no sentinel knows a master of the name %q; set sentinel to the name in their configuration", s.options.Sentinel)
	case hasCode(err, "NOAUTH"), hasCode(err, "WRONGPASS"), hasCode(err, "NOPERM"), hasCode(err, "AUTH"):
		return "the sentinel refuses the connection: set sentinel_password and sentinel_username; a user of it needs the rules " + sentinelAccess
	case strings.Contains(err.Error(), "unknown command"):
		return "the server is no sentinel: set its address without sentinel, or the addresses of sentinels"
	case errors.Is(err, errReplica):
		return "the server is a replica: a failover is under way, or has just been"
	default:
		return ""
	}
}

// hasCode reports whether the server answered with an error of this code. In the error of a
// script, the code is behind other text.
func hasCode(err error, code string) bool {
	if isPlain(err) {
		return false
	}
	var answer goredis.Error
	if !errors.As(err, &answer) {
		return false
	}
	text := answer.Error()
	return strings.HasPrefix(text, code+" ") || strings.Contains(text, " "+code+" ") || strings.Contains(text, "-"+code+" ")
}

// answered reports whether the error is the server's own answer. That of a sentinel, which is
// asked while a connection is made, is not.
func answered(err error) bool {
	if isPlain(err) {
		return err != nil
	}
	var answer goredis.Error
	var dial *dialError
	return errors.As(err, &answer) && !errors.As(err, &dial)
}

// isNil reports whether the server answered that there is nothing. A sentinel that knows no
// master says the same while a connection is made.
func isNil(err error) bool { return answered(err) && errors.Is(err, goredis.Nil) }

// isPlain reports whether an error is one of the two that most commands have: none, or that
// there is nothing. It allocates nothing.
func isPlain(err error) bool {
	return err == nil || err == goredis.Nil //nolint:errorlint // a wrapped one is another
}

// readError returns the error for one that a command on a Redis key got.
func readError(key string, err error) error {
	if hasCode(err, "WRONGTYPE") {
		return unreadable(key, "it is no string, so it was not written by caddy-dedup")
	}
	return err
}

// unreadable names the Redis key that does not hold what the store writes.
func unreadable(key, format string, values ...any) error {
	return &idempotency.UnreadableError{Where: "redis key " + key, Err: fmt.Errorf(format, values...)}
}
