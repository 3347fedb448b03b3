package redis

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"golang.org/x/sync/singleflight"
)

const (
	// maxFlushes is the maximum number of concurrent flushes to one server. The second one
	// starts only if flushes take longer than fastFlush, or when the first has run for
	// tickInterval.
	maxFlushes = 2
	fastFlush  = time.Millisecond
	// maxBatch is the maximum number of commands in one flush.
	maxBatch = 128
	// tickInterval is the interval at which a busy pipe looks for callers that have timed out.
	tickInterval = 10 * time.Millisecond
	// pipeIdleTimeout is how long a pipe must be unused before it may be dropped.
	pipeIdleTimeout = time.Minute
)

// pipes are the pipes to all servers.
type pipes struct {
	limits *limits
	dialer *dialer
	// work hands a function to an idle goroutine. The goroutines end when closed is closed.
	work     chan func()
	closed   chan struct{}
	channels sync.Pool // of requests

	mu   sync.RWMutex
	open map[target]*pipe
}

// target identifies a pipe. Commands that wait for replicas have a separate pipe, so that others do not
// wait with them.
type target struct {
	node  *goredis.Client
	waits bool
}

func newPipes(d *dialer) *pipes {
	return &pipes{
		limits: d.limits, dialer: d,
		work: make(chan func()), closed: make(chan struct{}), open: make(map[target]*pipe),
		channels: sync.Pool{New: func() any { return make(chan struct{}, 1) }},
	}
}

// run calls a function in another goroutine. It reuses an idle one, because the stack of a new
// goroutine would have to grow.
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

// to returns the pipe to a target. When it creates a new one, it drops the pipes that are idle, because
// cluster nodes join and leave.
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
		if unused.idleSince(now) > pipeIdleTimeout {
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

// pipe sends commands to one server. If no flush runs, a caller flushes its command in its own
// goroutine: handing it to another goroutine and back would take as long as the round trip. Commands
// that arrive during a flush are sent together in the next one, which costs client and server hardly
// more than a single command.
type pipe struct {
	pipes *pipes
	target
	clock serverClock
	// connected is how many replicas the server last reported (replicas.go).
	connected atomic.Int64
	counts    singleflight.Group // shares the asking
	buffers   sync.Pool          // of flushBuffer

	mu            sync.Mutex
	waiting       []*request // in the order of their seq
	sent          []*request // by the running flushes, except those that callers flush themselves
	seq           int64
	flushes       int           // number of running flushes
	started       time.Time     // start of the last flush
	shortestFlush time.Duration // about what the shortest of the last flushes took
	used          time.Time
	ticker        *time.Timer // calls tick while ticking
	ticking       bool

	answers atomic.Int64 // flushes with an answer
}

// flushBuffer has the commands of a flush, for reuse by later ones.
type flushBuffer struct {
	pipeline goredis.Pipeliner
	time     *goredis.TimeCmd
	wait     *goredis.IntCmd // WAIT for 0 replicas
	commands []goredis.Cmder
}

func (p *pipe) idleSince(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return now.Sub(p.used)
}

// send sends a command and returns with the reply, or at the deadline of the context. After an error
// of the context, the caller must not use the command any more.
func (p *pipe) send(ctx context.Context, c *request) error {
	if err := ctx.Err(); err != nil {
		return &unsentError{err}
	}
	p.mu.Lock()
	p.used = time.Now()
	deadline, _ := ctx.Deadline() // every operation has one ([Store.withTimeout])
	// A caller that times out during its own flush would close the connection.
	hasTime := deadline.Sub(p.used) >= max(p.pipes.limits.attemptTimeout(), 2*p.shortestFlush)
	if hasTime && p.flushes == 0 && p.clock.known() && p.node.PoolStats().IdleConns > 0 {
		p.flushes++
		p.started = p.used
		p.mu.Unlock()
		p.flush(ctx, c)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.flushes--
		p.startFlush(time.Now())
		return c.Err()
	}
	p.seq++
	c.seq, c.done = p.seq, p.pipes.channels.Get().(chan struct{})
	c.deadline = deadline
	p.waiting = append(p.waiting, c)
	p.startFlush(p.used)
	if !p.ticking {
		p.ticking = true
		p.ticker.Reset(tickInterval)
	}
	p.mu.Unlock()
	<-c.done
	p.pipes.channels.Put(c.done)
	switch c.state.Load() {
	case abandonedUnsent:
		return &unsentError{p.pipes.dialer.explainNoConn(p.node.Options().Addr, context.DeadlineExceeded)}
	case abandonedSent:
		return errAbandoned
	default:
		return c.Err()
	}
}

// tick abandons the commands of callers that have timed out, and starts a second flush if the first
// takes long. One timer for all callers is far cheaper than one for each.
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

// startFlush starts another flush if commands wait and another flush is allowed.
func (p *pipe) startFlush(now time.Time) {
	switch {
	case len(p.waiting) == 0, p.flushes == maxFlushes:
		return
	case p.flushes > 0 && p.shortestFlush < fastFlush && now.Sub(p.started) < tickInterval && len(p.waiting) < maxBatch:
		return
	}
	p.flushes++
	p.started = now
	p.pipes.run(p.flushAll)
}

// flushAll flushes until no command waits.
func (p *pipe) flushAll() {
	ctx := context.Background() // conn limits each read and write
	for {
		newest, ok := p.pending()
		if !ok {
			return
		}
		// Commands stay in the queue while flushAll connects, so a command whose caller times
		// out is known to be unsent.
		err := p.connect(ctx)
		// If connecting fails, only the commands fail that waited before. For later ones, the
		// address may lead to another server.
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

// pending returns the seq of the newest waiting command. If there is none, it ends this flush and
// returns false.
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

// connect dials if no connection is idle, and learns the server's time. It waits while the pool is
// full.
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

// take removes up to maxBatch commands, none later than newest, from the queue.
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

// flush sends a batch and returns with the replies. A TIME precedes the batch if times in the commands
// must be checked. A WAIT follows it, for the replicas or for none: WAIT fails on a master that became
// a replica, which is the only sign if the replica accepts writes.
func (p *pipe) flush(ctx context.Context, batch ...*request) {
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
	_ = f.pipeline.BatchProcess(ctx, f.commands...) // this only queues them
	_, failed := f.pipeline.Exec(ctx)
	clear(f.commands)

	if failed == nil || answered(wait.Err()) {
		p.answers.Add(1)
	}
	var now int64
	if !f.time.Val().IsZero() {
		now = f.time.Val().UnixMilli()
		p.clock.learn(now, sent)
	}
	demoted := !p.pipes.dialer.options.clustered() && (refusesWait(wait.Err()) || slices.ContainsFunc(batch, (*request).wasReadOnly))
	waitTimedOut := p.waits && errors.Is(wait.Err(), os.ErrDeadlineExceeded)
	for _, c := range batch {
		if waitTimedOut && c.Val() != nil {
			c.SetErr(nil) // it has its reply, but go-redis sets the error of the WAIT in all commands
		}
		if c.Err() == nil && c.Val() == nil {
			// The command was not sent. If the server refuses the connection, go-redis sets no
			// error in the commands of a pipeline.
			c.SetErr(cmp.Or(failed, io.ErrUnexpectedEOF))
		}
		if demoted && isPlain(c.Err()) {
			c.SetErr(errReplica) // executed, but the server will lose it
		}
		c.now = now
		if wait.Err() == nil {
			c.replicas = wait.Val()
		}
		if answer, ok := scriptReply(c.Val()); ok && c.Err() == nil && answer.now != 0 {
			p.clock.learn(answer.now, sent)
		}
	}
	if demoted {
		p.pipes.dialer.closeOpen(func(*conn) bool { return true }) // the address may lead to the new master
	}
	p.measure(time.Since(sent))
}

func refusesWait(err error) bool {
	return answered(err) && strings.Contains(err.Error(), "WAIT cannot be used")
}

// measure updates shortestFlush. A short flush counts for more than many long ones.
func (p *pipe) measure(took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shortestFlush == 0 {
		p.shortestFlush = took
	}
	took -= p.shortestFlush
	p.shortestFlush += min(took, took/16)
}
