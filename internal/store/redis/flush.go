package redis

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// flushes sends commands that wait at the same time together, in one flush over one
// connection: each costs client and server far less then. Those for different servers
// wait in different queues, so that a slow server delays its own alone.
//
// A command waits until a flush can take it or until its caller gives up, and for
// nothing else. A flush has a time limit of its own, and does not end with any of
// the callers.
//
// A command that comes while nothing is under way to its server goes out alone, from its
// caller's own goroutine: to hand it over, and the reply back, would take as long again.
type flushes struct {
	timeout time.Duration
	// ctx ends when the store is closed.
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex
	queues map[*goredis.Client]*queue
	closed bool
	// channels are those of commands that nobody sends on any more.
	channels sync.Pool
	// count is how many flushes there were, and sent how many commands in them, for
	// tests.
	count, sent atomic.Int64
}

func newFlushes(timeout time.Duration) *flushes {
	ctx, cancel := context.WithCancel(context.Background())
	return &flushes{
		timeout: timeout, ctx: ctx, cancel: cancel, queues: make(map[*goredis.Client]*queue),
		channels: sync.Pool{New: func() any { return make(chan struct{}, 1) }},
	}
}

// unsentError says that a command waited until its caller gave up, and was not sent.
type unsentError struct{ err error }

func (e *unsentError) Error() string {
	return fmt.Sprintf("the command was not sent: %v", e.err)
}
func (e *unsentError) Unwrap() error { return e.err }

// send sends a command in the next flush to a server and waits for the reply, or until
// the context ends. doubt says that a server may have executed the command, or may
// still do so. With an error of the context, the caller must not look at the command
// any more.
func (f *flushes) send(ctx context.Context, to *goredis.Client, c *request) (doubt bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, &unsentError{err}
	}
	timed := endsByTimeAlone(ctx)
	if timed {
		if q, withTime := f.beginAlone(to, c); q != nil {
			q.lone.exec(f, q.lone.limitWithin(f, ctx), c, withTime)
			f.endAlone(q)
			return c.doubt, c.Err()
		}
		c.deadline, _ = ctx.Deadline()
	}
	c.done = f.channels.Get().(chan struct{})
	if !f.add(to, c) {
		return false, goredis.ErrClosed
	}
	if timed {
		<-c.done // the queue looks at the time
	} else {
		select {
		case <-c.done:
		case <-ctx.Done():
			if !c.giveUp() {
				<-c.done // the reply has just come
			}
		}
	}
	f.channels.Put(c.done)
	switch c.state.Load() {
	case leftUnsent:
		return false, &unsentError{idempotency.EndOf(ctx)}
	case leftSent:
		return true, idempotency.EndOf(ctx)
	default:
		return c.doubt, c.Err()
	}
}

// endsByTimeAlone reports whether a context cannot end before its deadline.
func endsByTimeAlone(ctx context.Context) bool {
	_, timed := ctx.(idempotency.TimedContext)
	return timed
}

// run makes flushes until the store is closed, or the server is not used any more.
func (f *flushes) run(q *queue, s *sender) {
	defer s.end()
	for {
		latest, goOn := f.await(q)
		if !goOn {
			return
		}
		err := f.connect(q.to)
		switch {
		case errors.Is(err, errNoConnection):
			f.forget(q)
			continue
		case err == nil:
			latest = math.MaxInt64
		}
		// Without a connection only those fail for whom it was to be made. Who came while a
		// server was dialed that stood still would lose its second try to a dial of others.
		withTime := f.take(q, s, latest)
		switch {
		case err != nil:
			for _, c := range s.batch {
				c.SetErr(err)
			}
		case len(s.batch) > 0:
			s.exec(f, s.limit(f), nil, withTime)
		}
		batch := f.finish(q, s, err == nil)
		for _, c := range batch {
			c.answer() // who is told may use it again
		}
		clear(batch)
	}
}

// connect makes a connection if none is at hand. This comes before anything is taken out
// of the queue: while it is still there, a caller that gives up knows that its command is
// not sent.
func (f *flushes) connect(to *goredis.Client) error {
	if to.PoolStats().IdleConns > 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(f.ctx, f.timeout)
	defer cancel()
	err := to.Process(ctx, goredis.NewTimeCmd(ctx, "time"))
	if f.ctx.Err() == nil && (ctx.Err() != nil || errors.Is(err, goredis.ErrPoolTimeout)) {
		return errNoConnection
	}
	return err
}

// errNoConnection says that others had all connections for as long as an operation may
// take. The commands go on waiting, each for as long as its own caller does: the last of
// them may have only just come.
var errNoConnection = errors.New("no connection was free")

// sender makes one flush after the other, and keeps what they all need.
type sender struct {
	// batch are the commands of the flush that is under way since it began, and finished
	// has room for the next one.
	batch, finished []*request
	began           time.Time

	pipeline goredis.Pipeliner
	commands []goredis.Cmder
	time     *goredis.TimeCmd
	// ctx is the time limit of the flushes that begin before renewed.
	ctx     context.Context
	cancel  context.CancelFunc
	renewed time.Time
}

func newSender(f *flushes, to *goredis.Client) *sender {
	return &sender{pipeline: to.Pipeline(), time: goredis.NewTimeCmd(f.ctx, "time"), cancel: func() {}}
}

// limit returns the time limit of a flush: nearly that of one operation. A few that
// follow each other have the same, because each costs a timer.
func (s *sender) limit(f *flushes) context.Context {
	if now := time.Now(); !now.Before(s.renewed) {
		part := f.timeout / 16
		s.cancel()
		s.ctx, s.cancel = context.WithTimeout(f.ctx, f.timeout-part)
		s.renewed = now.Add(part)
	}
	return s.ctx
}

// limitWithin returns the time limit of a flush that a caller makes for its own command:
// it is over no later than the caller's. One that only is looked at costs no timer.
func (s *sender) limitWithin(f *flushes, ctx context.Context) context.Context {
	limit := s.limit(f)
	end, _ := limit.Deadline()
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(end) {
		return ctx
	}
	return limit
}

// end gives up what the sender has.
func (s *sender) end() { s.cancel() }

// exec sends the batch, or one command alone, and has the replies when it returns. In
// front of them the server may be asked for its time, which contact takes.
func (s *sender) exec(f *flushes, ctx context.Context, alone *request, withTime bool) {
	s.commands = s.commands[:0]
	if withTime {
		s.time.SetErr(nil)
		s.time.SetVal(time.Time{})
		s.commands = append(s.commands, s.time)
	}
	if alone != nil {
		s.commands = append(s.commands, alone)
		f.sent.Add(1)
	}
	for _, c := range s.batch {
		s.commands = append(s.commands, c)
	}
	f.sent.Add(int64(len(s.batch)))
	f.count.Add(1)
	_ = s.pipeline.BatchProcess(ctx, s.commands...) // they are only queued here
	_, _ = s.pipeline.Exec(ctx)                     // each command has its own error
	clear(s.commands)
}

// close ends the flushes. What waits fails; what is under way does so when the
// connections are closed, and wait returns then.
func (f *flushes) close() {
	f.mu.Lock()
	f.closed = true
	for _, q := range f.queues {
		for _, c := range q.waiting {
			if c.state.CompareAndSwap(queued, inFlush) {
				c.SetErr(goredis.ErrClosed)
				c.answer()
			}
		}
		q.waiting = nil
		q.end()
	}
	f.mu.Unlock()
	f.cancel()
}

func (f *flushes) wait() { f.running.Wait() }
