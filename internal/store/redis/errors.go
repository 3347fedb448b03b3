package redis

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// access returns the rules that the user needs at a Redis with access control, for
// names with this prefix.
func access(prefix string) string { return "~" + prefix + "* &" + prefix + "* " + commands }

// commands are the rules of access without names.
const commands = "+evalsha +eval +set +get +getrange +setrange +exists +del +rename +pexpire +pexpireat " +
	"+type +time +info +scan +publish +subscribe +ping +hello +select +wait +asking +cluster|slots"

// neededCommands says what a server whose commands were renamed must have. Where a script
// calls one of them, the server does not say which.
var neededCommands = "rename-command must leave " + strings.ReplaceAll(commands, "+", "") + " as they are"

// sentinelAccess are the rules that a user of sentinels with access control needs.
const sentinelAccess = "&+switch-master &+replica-reconf-done " +
	"+sentinel|get-master-addr-by-name +sentinel|sentinels +subscribe +ping +hello"

// fail returns the store's error for one that an operation met. It names the server,
// and says what to do where that is known.
func (s *Store) fail(operation string, err error) error {
	if errors.Is(err, goredis.ErrClosed) {
		return idempotency.ErrClosed
	}
	var unreadable *idempotency.UnreadableError
	if errors.As(err, &unreadable) {
		return err
	}
	if refusesLogin(err) {
		s.options.logins.refused(time.Now())
	}
	where := fmt.Sprintf("%s: %s", s.options, operation)
	var dial *dialError
	isReplica := hasCode(err, "READONLY") || errors.Is(err, errReplica)
	switch {
	case s.options.Sentinel != "" && errors.As(err, &dial):
		return fmt.Errorf("%s: %s%w", where, s.sentinelHint(err), err)
	case hasCode(err, "OOM"):
		return fmt.Errorf("%s: maxmemory is reached and nothing can be evicted: %w", where, err)
	case hasCode(err, "NOAUTH"):
		return fmt.Errorf("%s: the server wants a password: set password, and username if it has users: %w", where, err)
	case hasCode(err, "WRONGPASS"):
		return fmt.Errorf("%s: the server does not accept the username and password that are set: %w", where, err)
	case hasCode(err, "NOPERM"), answered(err) && strings.Contains(err.Error(), "user executing the script can't"):
		return fmt.Errorf("%s: the user may not do this; it needs the rules %s: %w", where, access(s.options.Prefix), err)
	case isReplica && (s.options.Sentinel != "" || s.options.clustered()):
		return fmt.Errorf("%s: the server is a replica: a failover is under way, or has just been: %w", where, err)
	case isReplica:
		return fmt.Errorf("%s: the server is a replica; set the address of the master, or let sentinels name it: %w", where, err)
	case hasCode(err, "MOVED"), hasCode(err, "ASK"):
		return fmt.Errorf("%s: the server is one of a cluster; set cluster: %w", where, err)
	case hasCode(err, "CLUSTERDOWN"):
		return fmt.Errorf("%s: the cluster has no master for this key at the moment: %w", where, err)
	case s.options.clustered() && answered(err) && strings.Contains(err.Error(), "cluster support disabled"):
		return fmt.Errorf("%s: the server is not one of a cluster; set one address, without cluster: %w", where, err)
	case answered(err) && strings.Contains(err.Error(), "syntax error"):
		return fmt.Errorf("%s: the server does not know SET with NX and GET; caddy-dedup needs Redis %d.0 or newer, or Valkey: %w", where, oldestRedis, err)
	case answered(err) && unknownCommand(err):
		return fmt.Errorf("%s: the server does not know a command that every redis has; it may be a sentinel: set sentinel, with the master's name; "+
			"or the command was renamed: %s: %w", where, neededCommands, err)
	case answered(err) && strings.Contains(err.Error(), "nknown Redis command called from script"):
		return fmt.Errorf("%s: a command was renamed: %s: %w", where, neededCommands, err)
	default:
		return fmt.Errorf("%s: %w", where, err)
	}
}

// sentinelHint says what to do about the answer of a sentinel, where that is known.
func (s *Store) sentinelHint(err error) string {
	switch {
	case errors.Is(err, goredis.Nil):
		return fmt.Sprintf("no sentinel knows a master of the name %q; set sentinel to the name in their configuration: ", s.options.Sentinel)
	case hasCode(err, "NOAUTH"), hasCode(err, "WRONGPASS"), hasCode(err, "NOPERM"), hasCode(err, "AUTH"):
		return "the sentinel does not let us in: set sentinel_password and sentinel_username; a user of it needs the rules " + sentinelAccess + ": "
	case unknownCommand(err):
		return "the server is no sentinel: set its address without sentinel, or the addresses of sentinels: "
	default:
		return ""
	}
}

func unknownCommand(err error) bool { return strings.Contains(err.Error(), "unknown command") }

// hasCode reports whether the server answered with an error of this code. Before
// Redis 7, the error of a command in a script stands behind another text.
func hasCode(err error, code string) bool {
	if common(err) {
		return false
	}
	var answer goredis.Error
	if !errors.As(err, &answer) {
		return false
	}
	text := answer.Error()
	return strings.HasPrefix(text, code+" ") || strings.Contains(text, " "+code+" ") || strings.Contains(text, "-"+code+" ")
}

// connectionFailed reports whether an operation failed because there was no reply,
// so that another connection may help. It would not help against a reply that breaks
// the protocol.
func connectionFailed(err error) bool {
	if common(err) || answered(err) || errors.Is(err, goredis.ErrPoolTimeout) {
		return false
	}
	var network net.Error
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &network)
}

// mayBeExecuted reports whether the server may execute the failed command, now
// or later.
func mayBeExecuted(err error) bool {
	if common(err) {
		return false
	}
	var dial *dialError
	var unsent *unsentError
	var old *tooOldError
	var unreadable *idempotency.UnreadableError
	switch {
	case answered(err), errors.As(err, &unreadable), errors.As(err, &dial), errors.Is(err, errReplica):
		return false
	case errors.As(err, &unsent), errors.As(err, &old):
		return false
	case errors.Is(err, goredis.ErrPoolTimeout), errors.Is(err, goredis.ErrPoolExhausted), errors.Is(err, goredis.ErrClosed):
		return false
	default:
		return true
	}
}

// answered reports whether the error is the server's own answer. The answer of a
// sentinel, which is asked while a connection is made, does not count.
func answered(err error) bool {
	if common(err) {
		return err != nil
	}
	var answer goredis.Error
	var dial *dialError
	return errors.As(err, &answer) && !errors.As(err, &dial)
}

// isNil reports whether the server answered that there is nothing. A sentinel that knows
// no master says the same while a connection is made.
func isNil(err error) bool { return answered(err) && errors.Is(err, goredis.Nil) }

// common reports whether an error is one of the two that most commands have: none, or
// that there is nothing. To look at others takes room on the heap.
func common(err error) bool {
	return err == nil || err == goredis.Nil //nolint:errorlint // a wrapped one is another
}

// unreadable names the Redis key that does not hold what we write.
func unreadable(key, format string, values ...any) error {
	return &idempotency.UnreadableError{Where: "redis key " + key, Err: fmt.Errorf(format, values...)}
}

// errReplica keeps a claim from a replica. One that takes writes would lose it.
var errReplica = errors.New("it says that it is a replica")
