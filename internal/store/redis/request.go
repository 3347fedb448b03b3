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

// request is one command on a record. While a flush has it, only that flush may read or write
// it: a caller whose time is over leaves it behind.
type request struct {
	goredis.Cmd
	// value is what the command writes. It gets its expiry unless life is 0, and the end of
	// its lease unless lease is, by the clock of the server.
	value       []byte
	lease, life time.Duration
	// until is the time after which the server refuses the command, as its argument
	// deadlineArg says by the clock of the server; 0 for none.
	until       time.Time
	deadlineArg int

	// maybeApplied reports whether the server may have executed the command, or still may.
	maybeApplied bool
	// now is the server's time in ms from the same flush, 0 without.
	now int64
	// replicas is how many replicas have acknowledged the command, -1 if that is unknown.
	replicas int64

	// For a pipe: the place in its queue, when the caller's time is over, and how far the
	// command is. done receives when it is replied or abandoned.
	seq      int64
	deadline time.Time
	state    atomic.Int32
	done     chan struct{}
}

const (
	queued = iota
	inFlush
	replied
	abandonedUnsent // the caller's time was over before the command was sent,
	abandonedSent   // or after that
)

func newRequest(ctx context.Context, args ...any) *request {
	c := new(request)
	c.Cmd, c.replicas = *goredis.NewCmd(ctx, args...), -1
	return c
}

// newScriptRequest returns a command that runs a script by its hash, or by its text.
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
	return c
}

// NoRetry keeps go-redis from sending the command again when the reply was lost. It still
// follows redirects.
func (c *request) NoRetry() bool { return true }

// needsTime reports whether the server's time must come with the reply, to check the times in
// the command.
func (c *request) needsTime() bool { return c.lease > 0 || c.deadlineArg > 0 }

// wasReadOnly reports whether the server refused the command because it is a replica.
func (c *request) wasReadOnly() bool { return hasCode(c.Err(), "READONLY") }

// setTimes writes the times into the command, by the clock of a server.
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

// finish notifies the caller of the reply, unless it has abandoned the command. After that
// the caller may use the request again.
func (c *request) finish() {
	if c.state.CompareAndSwap(inFlush, replied) {
		c.done <- struct{}{}
	}
}

// abandon notifies the caller if its time is over and there is no reply. A flush may still have
// the command.
func (c *request) abandon(now time.Time) {
	if now.Before(c.deadline) {
		return
	}
	if c.state.CompareAndSwap(queued, abandonedUnsent) || c.state.CompareAndSwap(inFlush, abandonedSent) {
		c.done <- struct{}{}
	}
}

// result returns how the command ended for its caller. With an error of the context, the
// caller may not touch the command any more.
func (c *request) result() (maybeApplied bool, err error) {
	if c.state.Load() == abandonedSent {
		return true, errAbandoned
	}
	return c.maybeApplied, c.Err()
}

// errAbandoned reports that the time of a caller was over before the reply came.
var errAbandoned = fmt.Errorf("no reply came in time: %w", context.DeadlineExceeded)

// unsentError reports that the time of a caller was over before its command was sent.
type unsentError struct{ err error }

func (e *unsentError) Error() string { return fmt.Sprintf("the command was not sent: %v", e.err) }
func (e *unsentError) Unwrap() error { return e.err }

// mayBeApplied reports whether the server may execute the failed command, now or later.
func mayBeApplied(err error) bool {
	if isPlain(err) {
		return false
	}
	var dial *dialError
	var unsent *unsentError
	var unreadable *idempotency.UnreadableError
	switch {
	case answered(err), errors.As(err, &dial), errors.As(err, &unsent), errors.As(err, &unreadable):
		return false
	case errors.Is(err, goredis.ErrPoolTimeout), errors.Is(err, goredis.ErrPoolExhausted), errors.Is(err, goredis.ErrClosed):
		return false
	default:
		return true
	}
}
