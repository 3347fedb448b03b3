package redis

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

const (
	// maxFlushes is how many flushes to one server run at the same time. The second one
	// starts only where flushes take longer than nearby, or when the first has run for
	// tickInterval.
	maxFlushes = 2
	nearby     = time.Millisecond
	// maxBatch is how many commands go out in one flush.
	maxBatch = 128
	// tickInterval is how often a busy pipe looks for callers whose time is over.
	tickInterval = 10 * time.Millisecond
	// maxIdle is after what time a pipe that is not used may be dropped.
	maxIdle = time.Minute
)

// pipes are the pipes to all servers.
type pipes struct {
	limits *limits
	dialer *dialer
	// clustered reports whether nodes redirect what they are not the master of.
	clustered bool
	sent      atomic.Int64 // commands, for tests
	// work goes to a goroutine that is idle, until closed is closed.
	work     chan func()
	closed   chan struct{}
	channels sync.Pool // of requests

	mu   sync.RWMutex
	open map[target]*pipe
}

// target is where a pipe leads. Commands that wait for replicas have a pipe of their own, so
// that others do not wait with them.
type target struct {
	node  *goredis.Client
	waits bool
}

func newPipes(l *limits, d *dialer, clustered bool) *pipes {
	return &pipes{
		limits: l, dialer: d, clustered: clustered,
		work: make(chan func()), closed: make(chan struct{}), open: make(map[target]*pipe),
		channels: sync.Pool{New: func() any { return make(chan struct{}, 1) }},
	}
}

// run calls a function in another goroutine. It reuses one, because the stack of a new goroutine
// has to grow first.
func (s *pipes) run(f func()) {
	select {
	case s.work <- f:
	default:
		go func() {
			for f(); ; f() {
				select {
				case f = <-s.work:
				case <-s.closed:
					return
				}
			}
		}()
	}
}

// to returns the pipe to a server. When it makes a new one, it drops those that were not used
// for a while: the nodes of a cluster come and go.
func (s *pipes) to(t target) *pipe {
	s.mu.RLock()
	p := s.open[t]
	s.mu.RUnlock()
	if p != nil {
		return p
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p = s.open[t]; p != nil {
		return p
	}
	now := time.Now()
	for other, unused := range s.open {
		if unused.idleSince(now) > maxIdle {
			delete(s.open, other)
		}
	}
	p = &pipe{pipes: s, target: t, clock: serverClock{started: now}, used: now}
	p.connected.Store(unknownReplicas)
	p.buffers.New = func() any {
		return &flushBuffer{
			pipeline: t.node.Pipeline(),
			time:     goredis.NewTimeCmd(context.Background(), "time"),
			wait:     goredis.NewIntCmd(context.Background(), "wait", 0, 0),
		}
	}
	p.ticker = time.AfterFunc(time.Hour, p.tick)
	p.ticker.Stop()
	s.open[t] = p
	return p
}

// pipe sends commands to one server. A command that comes while no flush runs is flushed by
// its caller, in its own goroutine: a handover and back would take as long as the round trip.
// Commands that come meanwhile go out together in the next flush, which costs client and
// server hardly more than a single command does.
type pipe struct {
	pipes *pipes
	target
	clock serverClock
	// connected is how many replicas the server last reported (replicas.go).
	connected atomic.Int64
	buffers   sync.Pool // of flushBuffer

	mu       sync.Mutex
	waiting  []*request // in the order of their seq
	sent     []*request // by the flushes that run, but for those of callers
	seq      int64
	flushes  int // that run
	started  time.Time
	shortest time.Duration // about what the shortest of the last flushes took
	used     time.Time
	ticker   *time.Timer // calls tick while ticking
	ticking  bool
	count    int64 // all flushes, for tests
}

// flushBuffer is what a flush needs and leaves to the next one.
type flushBuffer struct {
	pipeline goredis.Pipeliner
	time     *goredis.TimeCmd
	wait     *goredis.IntCmd // for no replica
	commands []goredis.Cmder
}

func (p *pipe) idleSince(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return now.Sub(p.used)
}

// send has a command executed. It returns with the reply, or at the deadline of the context,
// and reports whether the server may have executed the command. With an error of the context,
// the caller may not touch the command any more.
func (p *pipe) send(ctx context.Context, c *request) (maybeApplied bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, &unsentError{err}
	}
	p.mu.Lock()
	p.used = time.Now()
	if p.flushes == 0 && p.clock.known() && p.node.PoolStats().IdleConns > 0 {
		p.flushes++
		p.started = p.used
		p.mu.Unlock()
		p.flush(ctx, c)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.flushes--
		p.startFlush(time.Now())
		return c.maybeApplied, c.Err()
	}
	p.seq++
	c.seq, c.done = p.seq, p.pipes.channels.Get().(chan struct{})
	c.deadline, _ = ctx.Deadline() // every operation has one ([Store.withTimeout])
	p.waiting = append(p.waiting, c)
	p.startFlush(p.used)
	if !p.ticking {
		p.ticking = true
		p.ticker.Reset(tickInterval)
	}
	p.mu.Unlock()
	<-c.done
	p.pipes.channels.Put(c.done)
	if c.state.Load() == abandonedUnsent {
		return false, &unsentError{p.pipes.dialer.awaited(p.node.Options().Addr, context.DeadlineExceeded)}
	}
	return c.result()
}

// tick abandons the commands of callers whose time is over, and starts a second flush where
// the first takes long. One timer for all is far cheaper than one for each caller.
func (p *pipe) tick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for _, c := range slices.Concat(p.waiting, p.sent) {
		c.abandon(now)
	}
	p.startFlush(now)
	if p.ticking = p.flushes > 0; p.ticking {
		p.ticker.Reset(tickInterval)
	}
}

// startFlush starts one more flush for what waits, if there may be one.
func (p *pipe) startFlush(now time.Time) {
	switch {
	case len(p.waiting) == 0, p.flushes == maxFlushes:
		return
	case p.flushes > 0 && p.shortest < nearby && now.Sub(p.started) < tickInterval && len(p.waiting) < maxBatch:
		return
	}
	p.flushes++
	p.started = now
	p.pipes.run(p.flushAll)
}

// flushAll flushes until nothing waits.
func (p *pipe) flushAll() {
	ctx := context.Background() // each connection has its limits
	for {
		newest, ok := p.pending()
		if !ok {
			return
		}
		// While it connects, the commands stay in the queue: if a caller's time is over, its
		// command is known to be unsent.
		err := p.connect(ctx)
		if err == nil {
			newest = math.MaxInt64
		}
		// Without a connection only those fail that it was made for. A later command might
		// have another server.
		batch := p.take(newest)
		switch {
		case err != nil:
			for _, c := range batch {
				c.SetErr(err)
			}
		case len(batch) > 0:
			p.flush(ctx, batch...)
		}
		for _, c := range batch {
			c.finish()
		}
	}
}

// pending returns the seq of the newest command that waits. If there is none, this flush is
// over.
func (p *pipe) pending() (newest int64, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent = slices.DeleteFunc(p.sent, func(c *request) bool { return c.state.Load() != inFlush })
	if n := len(p.waiting); n > 0 {
		return p.waiting[n-1].seq, true
	}
	p.flushes--
	return 0, false
}

// connect makes a connection if none is idle, and learns the server's time. It waits for as
// long as the pool is full.
func (p *pipe) connect(ctx context.Context) error {
	if p.node.PoolStats().IdleConns > 0 && p.clock.known() {
		return nil
	}
	sent := time.Now()
	now, err := p.node.Time(ctx).Result()
	switch {
	case err == nil:
		p.clock.learn(now.UnixMilli(), sent)
		return nil
	case answered(err):
		return err
	default:
		return &dialError{err}
	}
}

// take takes commands up to the newest one out of the queue.
func (p *pipe) take(newest int64) []*request {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for n < len(p.waiting) && n < maxBatch && p.waiting[n].seq <= newest {
		n++
	}
	batch := slices.Clone(p.waiting[:n])
	p.waiting = slices.Delete(p.waiting, 0, n)
	batch = slices.DeleteFunc(batch, func(c *request) bool { return !c.state.CompareAndSwap(queued, inFlush) })
	p.sent = append(p.sent, batch...)
	p.started = time.Now()
	return batch
}

// flush sends a batch and has the replies when it returns. A TIME is in front if times in the
// commands must be checked. At the end is a WAIT, for the replicas, or for none: it fails on a
// server that was made a replica, and on one that takes writes nothing else does.
func (p *pipe) flush(ctx context.Context, batch ...*request) {
	p.mu.Lock()
	p.count++
	p.mu.Unlock()
	p.pipes.sent.Add(int64(len(batch)))
	f := p.buffers.Get().(*flushBuffer)
	defer p.buffers.Put(f)
	f.time.SetVal(time.Time{})
	f.commands = f.commands[:0]
	if slices.ContainsFunc(batch, (*request).needsTime) {
		f.commands = append(f.commands, f.time)
	}
	sent := time.Now()
	for _, c := range batch {
		c.setTimes(&p.clock)
		f.commands = append(f.commands, c)
	}
	wait := f.wait
	if wait.SetErr(nil); p.waits {
		wait = p.waitForReplicas(ctx)
	}
	f.commands = append(f.commands, wait)
	_ = f.pipeline.BatchProcess(ctx, f.commands...) // they are only queued here
	_, failed := f.pipeline.Exec(ctx)
	clear(f.commands)

	var now int64
	if !f.time.Val().IsZero() {
		now = f.time.Val().UnixMilli()
		p.clock.learn(now, sent)
	}
	demoted := !p.pipes.clustered && (refusesWait(wait.Err()) || slices.ContainsFunc(batch, (*request).wasReadOnly))
	waitTimedOut := p.waits && errors.Is(wait.Err(), os.ErrDeadlineExceeded)
	for _, c := range batch {
		if waitTimedOut && c.Val() != nil {
			c.SetErr(nil) // it has its reply: go-redis sets the error of the WAIT in all commands
		}
		if c.Err() == nil && c.Val() == nil {
			// It was not sent. go-redis leaves the commands of a pipeline without an error if
			// the server refuses the connection.
			c.SetErr(cmp.Or(failed, io.ErrUnexpectedEOF))
		}
		if demoted && isPlain(c.Err()) {
			c.SetErr(errReplica) // it was executed, and the server will lose it
		}
		c.now, c.maybeApplied = now, mayBeApplied(c.Err())
		if wait.Err() == nil {
			c.replicas = wait.Val()
		}
		if answer, ok := scriptReply(c.Val()); ok && c.Err() == nil && answer.now != 0 {
			p.clock.learn(answer.now, sent)
		}
	}
	if demoted {
		p.pipes.dialer.closeAll() // the address may lead to the new master
	}
	p.measure(time.Since(sent))
}

func refusesWait(err error) bool {
	return answered(err) && strings.Contains(err.Error(), "WAIT cannot be used")
}

// measure notes how long a flush took. A short one counts for more than many long ones.
func (p *pipe) measure(took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	took -= p.shortest
	p.shortest += min(took, took/16)
}
