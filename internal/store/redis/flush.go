package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

const (
	// flushers is how many flushes to one server may be under way. With two, the
	// commands of one are on their way while the replies to the other come.
	flushers = 2
	// mostInFlush is how many commands go out in one flush. Each may bring a small
	// response: also over a slow network, all replies must come within the time limit.
	mostInFlush = 128
	// unusedAtMost is how long a queue is left that nobody uses.
	unusedAtMost = time.Minute
	// timeAtLeast is how often a server is asked for its time, where the commands do not
	// need it themselves.
	timeAtLeast = time.Second
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
	// count is how many flushes there were, and sent how many commands in them, for
	// tests.
	count, sent atomic.Int64
}

// queue are the commands for one server.
type queue struct {
	waiting []*request
	// running is how many goroutines send what waits; idle of them wait for something to
	// send. Each gets a token of wake then, or the channel is closed when they are to end.
	running, idle int
	wake          chan struct{}
	// alone says that a caller makes a flush for its own command.
	alone bool
	// used is when the queue was last used, and timed when the server was last asked for
	// its time.
	used, timed time.Time
}

func newFlushes(timeout time.Duration) *flushes {
	ctx, cancel := context.WithCancel(context.Background())
	return &flushes{timeout: timeout, ctx: ctx, cancel: cancel, queues: make(map[*goredis.Client]*queue)}
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
	if q, withTime := f.beginAlone(ctx, to, c); q != nil {
		f.exec(ctx, to, []*request{c}, withTime)
		f.endAlone(to, q)
		return c.doubt, c.Err()
	}
	c.done = make(chan struct{})
	if !f.add(to, c) {
		return false, goredis.ErrClosed
	}
	select {
	case <-c.done:
		return c.doubt, c.Err()
	case <-ctx.Done():
	}
	if c.taken.CompareAndSwap(false, true) {
		return false, &unsentError{ctx.Err()}
	}
	return true, ctx.Err()
}

// add puts a command into the queue of a server. It reports false once the store is
// closed.
func (f *flushes) add(to *goredis.Client, c *request) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false
	}
	q := f.queues[to]
	if q == nil {
		// The nodes of a cluster come and go.
		for node, q := range f.queues {
			if q.underWay() == 0 && time.Since(q.used) > unusedAtMost {
				close(q.wake)
				delete(f.queues, node)
			}
		}
		q = &queue{wake: make(chan struct{}, flushers)}
		f.queues[to] = q
	}
	q.used = time.Now()
	q.waiting = append(q.waiting, c)
	f.wakeOne(to, q)
	return true
}

// wakeOne has one more goroutine send what waits, if it may.
func (f *flushes) wakeOne(to *goredis.Client, q *queue) {
	switch {
	case q.underWay() >= flushers:
	case q.idle > 0:
		q.idle--
		q.wake <- struct{}{} // there is room for all of them
	default:
		q.running++
		f.running.Go(func() { f.run(to, q) })
	}
}

// underWay returns how many flushes there are, or are about to be.
func (q *queue) underWay() int {
	n := q.running - q.idle
	if q.alone {
		n++
	}
	return n
}

// beginAlone returns the queue of a server, and whether it is to be asked for its time,
// if a command may go out alone: nothing is under way or waits, there is a connection,
// and the caller will not give up before the reply comes or its time is over.
func (f *flushes) beginAlone(ctx context.Context, to *goredis.Client, c *request) (q *queue, withTime bool) {
	if !endsByTimeAlone(ctx) || to.PoolStats().IdleConns == 0 {
		return nil, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	q = f.queues[to]
	if f.closed || q == nil || q.underWay() > 0 || len(q.waiting) > 0 {
		return nil, false
	}
	q.alone, q.used = true, time.Now()
	return q, q.needsTime(c)
}

// endAlone lets others have the place of a flush that one caller has made. If commands
// wait, somebody sends them already; this may take a part of them off him.
func (f *flushes) endAlone(to *goredis.Client, q *queue) {
	f.mu.Lock()
	defer f.mu.Unlock()
	q.alone = false
	if len(q.waiting) > 0 && !f.closed {
		f.wakeOne(to, q)
	}
}

// endsByTimeAlone reports whether a context cannot end before its deadline.
func endsByTimeAlone(ctx context.Context) bool {
	_, timed := ctx.(idempotency.TimedContext)
	return timed
}

// needsTime reports whether the server is to be asked for its time, together with these
// commands: where the reply decides whether the times in a command are right, and now and
// then, so that the estimate of its clock stays good.
func (q *queue) needsTime(batch ...*request) bool {
	now := time.Now()
	if now.Sub(q.timed) < timeAtLeast && !slices.ContainsFunc(batch, (*request).needsTime) {
		return false
	}
	q.timed = now
	return true
}

// run makes flushes until the store is closed, or the server is not used any more.
func (f *flushes) run(to *goredis.Client, q *queue) {
	var batch []*request
	var withTime bool
	for f.await(q) {
		err := f.connect(to)
		if errors.Is(err, errNoConnection) {
			f.forget(q)
			continue
		}
		batch, withTime = f.take(q, batch[:0])
		switch {
		case err != nil:
			for _, c := range batch {
				c.SetErr(err)
				close(c.done)
			}
		case len(batch) > 0:
			f.flush(to, batch, withTime)
		}
		clear(batch)
	}
}

// await returns when something waits, or false when its caller must end.
func (f *flushes) await(q *queue) bool {
	f.mu.Lock()
	if len(q.waiting) > 0 {
		f.mu.Unlock()
		return true
	}
	if f.closed {
		f.mu.Unlock()
		return false
	}
	q.idle++
	f.mu.Unlock()
	_, open := <-q.wake
	return open
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

// forget takes what has been given up out of the queue.
func (f *flushes) forget(q *queue) {
	f.mu.Lock()
	defer f.mu.Unlock()
	q.waiting = slices.DeleteFunc(q.waiting, func(c *request) bool { return c.taken.Load() })
}

// take takes what waits and has not been given up, and says whether the server is to be
// asked for its time with it.
func (f *flushes) take(q *queue, batch []*request) (_ []*request, withTime bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, c := range q.waiting {
		if len(batch) == mostInFlush {
			break
		}
		n++
		if c.taken.CompareAndSwap(false, true) {
			batch = append(batch, c)
		}
	}
	left := copy(q.waiting, q.waiting[n:])
	clear(q.waiting[left:])
	q.waiting = q.waiting[:left]
	return batch, q.needsTime(batch...)
}

// flush sends commands together and hands out the replies.
func (f *flushes) flush(to *goredis.Client, batch []*request, withTime bool) {
	ctx, cancel := context.WithTimeout(f.ctx, f.timeout)
	defer cancel()
	f.exec(ctx, to, batch, withTime)
	for _, c := range batch {
		close(c.done)
	}
}

// exec sends commands together, and has the replies when it returns. In front of them
// the server may be asked for its time, which contact takes.
func (f *flushes) exec(ctx context.Context, to *goredis.Client, batch []*request, withTime bool) {
	f.sent.Add(int64(len(batch)))
	f.count.Add(1)
	pipeline := to.Pipeline()
	if withTime {
		pipeline.Time(ctx)
	}
	for _, c := range batch {
		_ = pipeline.Process(ctx, c) // it is only queued here
	}
	_, _ = pipeline.Exec(ctx) // each command has its own error
}

// close ends the flushes. What is under way fails when the connections are closed,
// and wait returns then.
func (f *flushes) close() {
	f.mu.Lock()
	f.closed = true
	for _, q := range f.queues {
		close(q.wake)
	}
	f.mu.Unlock()
	f.cancel()
}

func (f *flushes) wait() { f.running.Wait() }
