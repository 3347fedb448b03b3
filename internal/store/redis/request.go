package redis

import (
	"context"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// request is one command on a record. The hook of a connection (contact.go) sees it at
// each attempt: there it gets its times, by the clock of the server that it goes to,
// and what the attempt tells is noted in it.
//
// Until there is a reply, these belong to the goroutine that sends it: no caller that
// has given up may look at them.
type request struct {
	goredis.Cmd
	// claims says that the command could make a run, or asks whether others could: a
	// replica must not execute it.
	claims bool
	// asks says that the command is there to learn whether others may claim: the server is
	// asked for its role again first, also where it was a master.
	asks bool
	// until is the time, by the clock of this process, after which a server refuses the
	// command, which has that time as the argument deadlineArg. Zero for none.
	until       time.Time
	deadlineArg int
	// value gets its expiry unless life is 0, and the end of its lease unless lease is.
	value       []byte
	lease, life time.Duration

	// attempts is how often the command was sent.
	attempts int
	// doubt says that a server may have executed the command, or may still do so,
	// in any of the attempts.
	doubt bool
	// aimed is the server's time, in ms, as it was estimated for the last attempt, and
	// now what the server then said, 0 where it was not asked.
	aimed, now int64
	// by is the server that executed the command.
	by executor

	// For flushes: how many commands its queue had got with it, how far it is, when its caller
	// gives up, which the queue looks at unless it is zero, and the channel that tells a caller
	// who waits. Whoever changes the state to the last one sends on it, once.
	number   int64
	state    atomic.Int32
	deadline time.Time
	done     chan struct{}
}

// The states of a command that waits for a flush.
const (
	queued = iota
	inFlush
	replied
	leftUnsent // its caller gave up before it was sent,
	leftSent   // or after that
)

// giveUp ends the wait for a reply. It reports false if that has come.
func (c *request) giveUp() bool {
	return c.state.CompareAndSwap(queued, leftUnsent) || c.state.CompareAndSwap(inFlush, leftSent)
}

// answer tells the caller that the reply is there, unless it has given up.
func (c *request) answer() {
	if c.state.CompareAndSwap(inFlush, replied) {
		c.done <- struct{}{}
	}
}

func newRequest(ctx context.Context, args ...any) *request {
	c := new(request)
	c.begin(ctx, args)
	return c
}

// begin makes a command of a zero one.
func (c *request) begin(ctx context.Context, args []any) { c.Cmd = *goredis.NewCmd(ctx, args...) }

// bytesArg is an argument that needs no room on the heap beside its bytes: go-redis takes
// a pointer to it.
type bytesArg []byte

// MarshalBinary implements [encoding.BinaryMarshaler].
func (b *bytesArg) MarshalBinary() ([]byte, error) { return *b, nil }

// newScript returns a command that runs a script by its hash, or by its text.
func newScript(ctx context.Context, script *script, byText bool, keys []string, args ...any) *request {
	all := make([]any, 3, 3+len(keys)+len(args))
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

// firstKey is the argument of a script that is its first key.
const firstKey = 3

// aim writes the times into the command, by the clock of a server.
func (c *request) aim(to *server) {
	c.attempts++
	c.aimed = to.clock.at(time.Now())
	if c.deadlineArg > 0 {
		c.Args()[c.deadlineArg] = to.clock.at(c.until)
	}
	if c.life == 0 {
		return
	}
	if c.lease > 0 {
		putDigits(c.value[atLease:atExpiry], c.aimed+toMillis(c.lease))
	}
	putDigits(c.value[atExpiry:atToken], c.aimed+toMillis(c.life))
}

// needsTime reports whether the server's time must come with the reply: without it,
// nobody knows whether the lease or the deadline in the command was right.
func (c *request) needsTime() bool { return c.lease > 0 || c.deadlineArg > 0 }

// executor is a server that has executed a script, and the client that is connected to
// it. After a failover the same client has another server.
type executor struct {
	client  *goredis.Client
	address string
}
