package redis

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// access returns the ACL rules that the user of a store with this prefix needs.
func access(prefix string) string { return "~" + prefix + "* &" + prefix + "* " + commands }

// commands are the rules of access that name commands.
const commands = "+evalsha +eval +set +get +getrange +setrange +exists +del +rename +pexpire +pexpireat " +
	"+type +time +info +scan +publish +subscribe +ping +select +wait +asking +cluster|slots"

// neededCommands is part of a hint. It lists all commands, because the error of a script does not name
// the missing one.
var neededCommands = "rename-command must leave " + strings.ReplaceAll(commands, "+", "") + " as they are"

// sentinelAccess are the ACL rules that a user of the sentinels needs.
const sentinelAccess = "&+switch-master &+replica-reconf-done " +
	"+sentinel|get-master-addr-by-name +sentinel|sentinels +subscribe +ping +hello"

// errReplica is the error for a server that is a replica. Claims must not go to one: a replica that
// accepts writes would lose them.
var errReplica = errors.New("it reports that it is a replica")

// fail returns the error of an operation. To one that the rules do not name, it adds the server and, if
// it is known, a hint what to do.
func (s *Store) fail(operation string, err error) error {
	if errors.Is(err, goredis.ErrClosed) {
		return idempotency.ErrClosed
	}
	_, unreadable := errors.AsType[*idempotency.UnreadableError](err)
	if err == nil || unreadable || errors.Is(err, idempotency.ErrGone) || errors.Is(err, idempotency.ErrFenced) {
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
	failed := fmt.Errorf("%s: %s: %s%w", s.options, operation, hint, err)
	if refused(err) {
		return &idempotency.RefusedError{Err: failed}
	}
	return failed
}

// refused reports whether the server answered with an error, other than those that it gives to every command.
func refused(err error) bool {
	return answered(err) && !slices.ContainsFunc(unavailableCodes, func(code string) bool { return hasCode(err, code) })
}

// unavailableCodes are the codes, or other words, of errors with which a server refuses reads as well.
var unavailableCodes = []string{
	"LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "MOVED", "ASK", "TRYAGAIN", "NOAUTH", "WRONGPASS", "max number of clients",
}

// hint returns what to do about an error, "" if that is not known.
func (s *Store) hint(err error) string {
	contains := func(text string) bool { return answered(err) && strings.Contains(err.Error(), text) }
	isReplica := hasCode(err, "READONLY") || errors.Is(err, errReplica)
	switch {
	case hasCode(err, "OOM"):
		return "maxmemory is reached and nothing can be evicted"
	case hasCode(err, "NOAUTH"):
		return "the server requires a password: set password, and username if it has users"
	case hasCode(err, "WRONGPASS"):
		return "the server does not accept the username and password that are set"
	case hasCode(err, "NOPERM"), contains("user executing the script can't"), contains("ACL failure in script"):
		return "the user may not do this; it needs the rules " + access(s.options.Prefix)
	case isReplica && (s.options.Sentinel != "" || s.options.clustered()):
		return "the server is a replica: a failover is under way, or has just happened"
	case isReplica:
		return "the server is a replica; set the address of the master, or use sentinel"
	case hasCode(err, "MOVED"), hasCode(err, "ASK"):
		return "the server is a node of a cluster; set cluster"
	case hasCode(err, "CLUSTERDOWN"):
		return "the cluster has no master for this key at the moment"
	case s.options.clustered() && contains("cluster support disabled"):
		return "the server is not a node of a cluster; set one address, without cluster"
	case contains("syntax error"):
		return fmt.Sprintf("the server does not know SET with NX and GET; caddy-dedup needs Redis %d.0 or newer, or Valkey", minVersion)
	case contains("unknown command"):
		return "the server does not know a command that every redis has; it may be a sentinel: set sentinel to the master's name; " +
			"or the command was renamed: " + neededCommands
	case contains("nknown Redis command called from script"), contains("nknown command called from script"):
		return "a command was renamed: " + neededCommands
	case isTimeout(err) && s.dialer.recommendedTimeout() > s.limits.timeout():
		return fmt.Sprintf("the link to the server is slow: its first reply took %s; set timeout to %s or more",
			time.Duration(s.dialer.roundTrip.Load()).Round(time.Millisecond), s.dialer.recommendedTimeout())
	case isClosed(err):
		return "the server closed the connection; if it always does, it may require TLS (set tls or rediss://), be in protected mode, or have reached maxclients"
	default:
		return ""
	}
}

// sentinelHint returns what to do about a failed dial behind sentinels, "" if that is not known.
func (s *Store) sentinelHint(err error) string {
	switch {
	case errors.Is(err, goredis.Nil):
		return fmt.Sprintf("no sentinel knows a master with the name %q; set sentinel to the name in their configuration", s.options.Sentinel)
	case hasCode(err, "NOAUTH"), hasCode(err, "WRONGPASS"), hasCode(err, "NOPERM"), hasCode(err, "AUTH"):
		return "the sentinel refuses the connection: set sentinel_password and sentinel_username; a user of it needs the rules " + sentinelAccess
	case strings.Contains(err.Error(), "unknown command"):
		return "the server is not a sentinel: set its address without sentinel, or the addresses of sentinels"
	case errors.Is(err, errReplica):
		return "the server is a replica: a failover is under way, or has just happened"
	default:
		return ""
	}
}

// hasCode reports whether the server answered with an error that has this code. In the error of a
// script, the code follows other text.
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

// answered reports whether the error is an answer of the server. An answer of a sentinel, which is asked
// during a dial, does not count.
func answered(err error) bool {
	if isPlain(err) {
		return err != nil
	}
	var answer goredis.Error
	var dial *dialError
	return errors.As(err, &answer) && !errors.As(err, &dial)
}

// isNil reports whether the server answered that there is no value. A sentinel that knows no master
// gives the same answer during a dial, which does not count.
func isNil(err error) bool { return answered(err) && errors.Is(err, goredis.Nil) }

// isPlain reports whether an error is nil or goredis.Nil, as for most commands. It does not allocate.
func isPlain(err error) bool {
	return err == nil || err == goredis.Nil //nolint:errorlint // a wrapped one is another
}

// readError returns the error for a command on a Redis key that got err.
func readError(key string, err error) error {
	if hasCode(err, "WRONGTYPE") {
		return unreadable(key, "it is not a string, so it was not written by caddy-dedup")
	}
	return err
}

// unreadable returns the error for a Redis key whose value cannot be read.
func unreadable(key, format string, values ...any) error {
	return &idempotency.UnreadableError{Where: "redis key " + key, Err: fmt.Errorf(format, values...)}
}
