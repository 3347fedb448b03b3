package redis

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// request is one command on a record. While a flush has it, only that flush may use it: a caller that
// times out abandons it.
type request struct {
	goredis.Cmd
	// value is what the command writes. setTimes writes into it the expiry, unless life is 0, and
	// the end of the lease, unless lease is 0.
	value       []byte
	lease, life time.Duration
	// until is the time after which the server refuses the command. setTimes replaces the argument
	// with index deadlineArg, 0 for none, by that time of the server's clock.
	until       time.Time
	deadlineArg int

	// now is the server's time, in ms, from the same flush; 0 if the flush did not ask for it.
	now int64
	// replicas is how many replicas have acknowledged the command, -1 if that is unknown.
	replicas int64

	// These are for the pipe: the position in its queue, the caller's deadline, and the state of
	// the command. done receives a value when the command is replied or abandoned.
	seq      int64
	deadline time.Time
	state    atomic.Int32
	done     chan struct{}
}

const (
	queued = iota
	inFlush
	replied
	abandonedUnsent // the caller timed out before the command was sent
	abandonedSent   // the caller timed out after that
)

func newRequest(ctx context.Context, args ...any) *request {
	c := new(request)
	c.Cmd, c.replicas = *goredis.NewCmd(ctx, args...), -1
	return c
}

// newScriptRequest returns a command that runs a script by its hash, or by its text. An argument that is a
// time is its deadline.
func newScriptRequest(ctx context.Context, script *script, byText bool, keys []string, args ...any) *request {
	const firstKey = 3
	all := make([]any, firstKey, firstKey+len(keys)+len(args))
	all[0], all[1], all[2] = "evalsha", script.hash, len(keys)
	if byText {
		all[0], all[1] = "eval", script.source
	}
	for _, key := range keys {
		all = append(all, key)
	}
	c := newRequest(ctx, append(all, args...)...)
	c.SetFirstKeyPos(firstKey)
	for i, arg := range args {
		if until, ok := arg.(time.Time); ok {
			c.until, c.deadlineArg = until, firstKey+len(keys)+i
		}
	}
	return c
}

// NoRetry keeps go-redis from resending the command after a lost reply. go-redis still follows
// redirects.
func (c *request) NoRetry() bool { return true }

// needsTime reports whether the flush must ask for the server's time, to check the times in the
// command.
func (c *request) needsTime() bool { return c.lease > 0 || c.deadlineArg > 0 }

// wasReadOnly reports whether the server refused the command because it is a replica.
func (c *request) wasReadOnly() bool { return hasCode(c.Err(), "READONLY") }

// setTimes writes the deadline, the lease and the expiry into the command, by the clock of a server.
func (c *request) setTimes(clock *serverClock) {
	now := clock.at(time.Now())
	if c.deadlineArg > 0 {
		c.Args()[c.deadlineArg] = clock.at(c.until)
	}
	if c.lease > 0 {
		putDigits(c.value[atLease:atExpiry], now+toMillis(c.lease))
	}
	if c.life > 0 {
		putDigits(c.value[atExpiry:atToken], now+toMillis(c.life))
	}
}

// finish notifies the caller of the reply, unless the command was abandoned. After that, only the
// caller may use the request.
func (c *request) finish() {
	if c.state.CompareAndSwap(inFlush, replied) {
		c.done <- struct{}{}
	}
}

// abandon notifies the caller if its deadline has passed and there is no reply. A flush may still have
// the command.
func (c *request) abandon(now time.Time) {
	if now.Before(c.deadline) {
		return
	}
	if c.state.CompareAndSwap(queued, abandonedUnsent) || c.state.CompareAndSwap(inFlush, abandonedSent) {
		c.done <- struct{}{}
	}
}

// errAbandoned is the error if a caller times out after its command was sent.
var errAbandoned = fmt.Errorf("no reply came in time: %w", context.DeadlineExceeded)

// unsentError is the error if a caller times out before its command was sent.
type unsentError struct{ err error }

func (e *unsentError) Error() string { return fmt.Sprintf("the command was not sent: %v", e.err) }
func (e *unsentError) Unwrap() error { return e.err }

// mayBeApplied reports whether the server may have executed a command that failed with err, or may
// still execute it.
func mayBeApplied(err error) bool {
	switch {
	case isPlain(err), answered(err), errors.Is(err, goredis.ErrClosed):
		return false
	case errors.As(err, new(*dialError)), errors.As(err, new(*unsentError)), errors.As(err, new(*idempotency.UnreadableError)):
		return false
	default:
		return true
	}
}
