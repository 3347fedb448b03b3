package redis

import (
	"slices"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

const (
	// flushers is how many flushes to one server may be under way. With two, the
	// commands of one are on their way while the replies to the other come.
	flushers = 2
	// near is how long a flush to a server may take that is near. There, what waits goes
	// out together when the replies are there: a flush costs more than all that is in it.
	// The second one begins only when the first has been under way for so long that
	// something is wrong with it. Where the way is long, nobody waits for that.
	near = time.Millisecond
	soon = 10 * time.Millisecond
	// mostInFlush is how many commands go out in one flush. Each may bring a small
	// response: also over a slow network, all replies must come within the time limit.
	mostInFlush = 128
	// unusedAtMost is how long a queue is left that nobody uses.
	unusedAtMost = time.Minute
	// timeAtLeast is how often a server is asked for its time, where the commands do not
	// need it themselves.
	timeAtLeast = time.Second
	// lookAgain is the least time between two looks at the callers' deadlines.
	lookAgain = time.Millisecond
)

// queue are the commands for one server. The mutex of flushes guards it.
type queue struct {
	to      *goredis.Client
	waiting []*request
	// added is how many commands have come so far.
	added int64
	// running is how many goroutines send what waits; idle of them wait for something to
	// send. Each gets a token of wake then, or the channel is closed when they are to end.
	running, idle int
	wake          chan struct{}
	senders       []*sender
	// alone says that a caller makes a flush for its own command, by lone.
	alone bool
	lone  *sender
	// began is when the last flush began, or was about to. shortest is about how long the
	// shortest of the last ones took.
	began    time.Time
	shortest time.Duration
	// timer looks at lookAt for callers whose time is over, and for a flush that takes
	// long. lookAt is zero when the timer is not set.
	timer  *time.Timer
	lookAt time.Time
	// used is when the queue was last used, and timed when the server was last asked for
	// its time.
	used, timed time.Time
}

func (f *flushes) newQueue(to *goredis.Client) *queue {
	q := &queue{to: to, wake: make(chan struct{}, flushers), lone: newSender(f, to)}
	q.timer = time.AfterFunc(time.Hour, func() { f.look(q) })
	q.timer.Stop()
	return q
}

// end has the goroutines of a queue end.
func (q *queue) end() { close(q.wake) }

// add puts a command into the queue of a server. It reports false once the store is
// closed.
func (f *flushes) add(to *goredis.Client, c *request) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false
	}
	q, now := f.queues[to], time.Now()
	if q == nil {
		// The nodes of a cluster come and go.
		for node, q := range f.queues {
			if q.underWay() == 0 && now.Sub(q.used) > unusedAtMost {
				q.end()
				delete(f.queues, node)
			}
		}
		q = f.newQueue(to)
		f.queues[to] = q
	}
	q.used = now
	q.added++
	c.number = q.added
	q.waiting = append(q.waiting, c)
	f.wakeOne(q, now)
	return true
}

// wakeOne has one more goroutine send what waits, if it may, and otherwise the timer look
// again.
func (f *flushes) wakeOne(q *queue, now time.Time) {
	last := q.waiting[len(q.waiting)-1]
	if !last.deadline.IsZero() {
		q.lookBy(last.deadline, now)
	}
	switch n := q.underWay(); {
	case n >= flushers:
		return
	case n > 0 && q.shortest < near && len(q.waiting) < mostInFlush && now.Sub(q.began) < soon:
		q.lookBy(q.began.Add(soon), now)
		return
	}
	q.began = now
	if q.idle > 0 {
		q.idle--
		q.wake <- struct{}{} // there is room for all of them
		return
	}
	q.running++
	s := newSender(f, q.to)
	q.senders = append(q.senders, s)
	f.running.Go(func() { f.run(q, s) })
}

// lookBy has the timer look at a time, or before it.
func (q *queue) lookBy(at, now time.Time) {
	if q.lookAt.IsZero() || at.Before(q.lookAt) {
		q.lookAt = at
		q.timer.Reset(at.Sub(now))
	}
}

// look gives up for the callers whose time is over, and has one more goroutine send what
// waits where a flush takes long.
func (f *flushes) look(q *queue) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	q.lookAt = time.Time{}
	var next time.Time
	over := func(c *request) bool {
		switch {
		case c.deadline.IsZero():
		case !now.Before(c.deadline):
			if c.giveUp() {
				c.done <- struct{}{}
				return true
			}
		case next.IsZero() || c.deadline.Before(next):
			next = c.deadline
		}
		return false
	}
	q.waiting = slices.DeleteFunc(q.waiting, over)
	for _, s := range q.senders {
		for _, c := range s.batch {
			over(c)
		}
	}
	if !next.IsZero() {
		q.lookBy(later(next, now.Add(lookAgain)), now)
	}
	if len(q.waiting) > 0 {
		f.wakeOne(q, now)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
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
// if a command may go out alone: nothing is under way or waits, and there is a connection.
// The caller must be one who does not give up before the reply comes or its time is over.
func (f *flushes) beginAlone(to *goredis.Client, c *request) (q *queue, withTime bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	q = f.queues[to]
	if f.closed || q == nil || q.underWay() > 0 || len(q.waiting) > 0 || to.PoolStats().IdleConns == 0 {
		return nil, false
	}
	q.alone, q.used = true, time.Now()
	q.began, q.lone.began = q.used, q.used
	return q, q.needsTime(c)
}

// endAlone lets others have the place of a flush that one caller has made. If commands
// wait, and nobody sends them yet, somebody does now.
func (f *flushes) endAlone(q *queue) {
	f.mu.Lock()
	defer f.mu.Unlock()
	q.alone = false
	now := time.Now()
	q.took(now.Sub(q.lone.began))
	if len(q.waiting) > 0 {
		f.wakeOne(q, now)
	}
}

// took notes how long a flush has taken. Many longer ones outweigh a short one.
func (q *queue) took(d time.Duration) {
	q.shortest += min(d-q.shortest, (d-q.shortest)/16)
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

// await returns when something waits, with the number of the latest command, or false when
// its caller must end.
func (f *flushes) await(q *queue) (latest int64, goOn bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case len(q.waiting) > 0:
		q.began = time.Now()
	case f.closed:
		return 0, false
	default:
		q.idle++
		f.mu.Unlock()
		_, goOn = <-q.wake
		f.mu.Lock()
		return q.added, goOn
	}
	return q.added, true
}

// finish takes the batch off the sender, and returns it: the queue looks at those commands
// no more. One that could not be sent tells nothing of how far the server is.
func (f *flushes) finish(q *queue, s *sender, sent bool) (batch []*request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if sent && len(s.batch) > 0 {
		q.took(time.Since(s.began))
	}
	s.batch, s.finished = s.finished[:0], s.batch
	return s.finished
}

// forget takes what has been given up out of the queue.
func (f *flushes) forget(q *queue) {
	f.mu.Lock()
	defer f.mu.Unlock()
	q.waiting = slices.DeleteFunc(q.waiting, func(c *request) bool { return c.state.Load() != queued })
}

// take takes what waits, up to a number, and has not been given up, and says whether the
// server is to be asked for its time with it.
func (f *flushes) take(q *queue, s *sender, latest int64) (withTime bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, c := range q.waiting {
		if len(s.batch) == mostInFlush || c.number > latest {
			break
		}
		n++
		if c.state.CompareAndSwap(queued, inFlush) {
			s.batch = append(s.batch, c)
		}
	}
	s.began = time.Now()
	left := copy(q.waiting, q.waiting[n:])
	clear(q.waiting[left:])
	q.waiting = q.waiting[:left]
	return len(s.batch) > 0 && q.needsTime(s.batch...)
}
