package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"golang.org/x/sync/semaphore"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Large bodies have connections of their own, with their own deadline: it moves while bytes move. Only a
// few bodies share the link to a server at a time, because with many none would get through. Others wait
// for their turn.
const (
	// largeBody is the size in bytes from which a body counts as one of maxWrites. Smaller ones count
	// for less, at least minBody, so that they do not wait for a whole round trip each.
	largeBody = 512 << 10
	minBody   = 64 << 10
	maxWrites = 2
	maxReads  = 4
	// sendBuffer is the size of the send buffer of such a connection. The kernel would hold megabytes,
	// and the reply would come only when all of them are sent.
	sendBuffer = 128 << 10
	pieceSize  = 32 << 10 // of a write
	// maxBodyFailures and maxBodyCloses are how often a body may fail, and how often in a row the
	// server may close the connection behind it, while the server answers other commands.
	maxBodyFailures = 4
	maxBodyCloses   = 2
)

// bodies moves the bodies of large responses.
type bodies struct {
	dialer *dialer

	mu     sync.Mutex
	nodes  map[string]*bodyNode   // by address
	failed map[string]*failedBody // by token
}

// bodyNode is what all bodies of one server share.
type bodyNode struct {
	idempotency.Progress
	client        *goredis.Client
	writes, reads *semaphore.Weighted
	used          time.Time // when it was last needed; guarded by bodies.mu
}

// failedBody is what is known of a body whose settlement has failed.
type failedBody struct {
	failures, closes int
	answers          int64 // how many flushes the server had answered at the last failure
	at               time.Time
	// name is the temporary name under which the server has the body, until expiry; "" for none. size is
	// that of the body, and head the head of its response. A later settlement may be encrypted differently;
	// it becomes this one.
	name   string
	head   []byte
	size   int
	expiry time.Time
}

func newBodies(d *dialer) *bodies {
	return &bodies{dialer: d, nodes: make(map[string]*bodyNode), failed: make(map[string]*failedBody)}
}

// node returns the server with the address that its client for small commands has. When it creates a new
// one, it drops those that are idle, because cluster nodes join and leave.
func (b *bodies) node(address string) *bodyNode {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	n := b.nodes[address]
	if n == nil {
		for other, old := range b.nodes {
			if now.Sub(old.used) > pipeIdleTimeout && old.idle() {
				_ = old.client.Close()
				delete(b.nodes, other)
			}
		}
		n = &bodyNode{writes: semaphore.NewWeighted(maxWrites * largeBody), reads: semaphore.NewWeighted(maxReads * largeBody)}
		n.client = newBodyClient(b.dialer, n, address)
		b.nodes[address] = n
	}
	n.used = now
	return n
}

// idle reports whether no body moves.
func (n *bodyNode) idle() bool {
	if !n.writes.TryAcquire(maxWrites * largeBody) {
		return false
	}
	defer n.writes.Release(maxWrites * largeBody)
	if !n.reads.TryAcquire(maxReads * largeBody) {
		return false
	}
	n.reads.Release(maxReads * largeBody)
	return true
}

func (b *bodies) close() (err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range b.nodes {
		err = errors.Join(err, n.client.Close())
	}
	return err
}

// moveBody waits for the body's turn at a server, and then calls move, which moves it. If the server closes the
// connection, moveBody repeats the move: once, and as long as the connections may have been closed while they
// were idle. It repeats none that takes too long. If the context ends, moveBody returns; the move goes on until
// its connection is idle for too long.
func moveBody[T any](ctx context.Context, s *Store, n *bodyNode, turns *semaphore.Weighted, size int, move func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var none T
	weight := int64(min(max(size, minBody), largeBody))
	idempotency.Follow(ctx, &n.Progress)
	if err := turns.Acquire(ctx, weight); err != nil {
		return none, &unsentError{fmt.Errorf("no other body gets through, and this one waits for its turn: %w", ctx.Err())}
	}
	idempotency.Follow(ctx, &n.Progress)
	done := make(chan result, 1)
	s.pipes.run(func() {
		defer turns.Release(weight)
		for retries := 0; ; retries++ {
			started := time.Now()
			value, err := move()
			repeats := isClosed(err) && (retries == 0 || wasIdle(err, started)) || !connectionFailed(err)
			if !repeats || !mayRetry(err, retries) || ctx.Err() != nil {
				done <- result{value, err}
				return
			}
		}
	})
	select {
	case got := <-done:
		return got.value, got.err
	case <-ctx.Done():
		return none, errAbandoned
	}
}

// wasIdle reports whether an error is that of a connection that was dialed before a time.
func wasIdle(err error, before time.Time) bool {
	var failed *bodyError
	return errors.As(err, &failed) && failed.dialed.Before(before)
}

// redirect is a server to which a cluster redirects a command.
type redirect struct {
	to   *bodyNode // nil for none
	asks bool      // an ASKING must precede the command
}

// maxRedirects is as in go-redis.
const maxRedirects = 3

// redirected returns the server to which the answer to a command redirects it.
func (s *Store) redirected(err error) redirect {
	if isPlain(err) || !s.options.clustered() {
		return redirect{}
	}
	address, asks := goredis.IsAskError(err)
	if moved, ok := goredis.IsMovedError(err); ok {
		address = moved
	}
	if address == "" {
		return redirect{}
	}
	return redirect{s.bodies.node(address), asks}
}

// moveValue sends one command that moves a body: to a redirect, or to the server of the name if there is
// none. It follows further redirects.
func moveValue[C goredis.Cmder](ctx context.Context, s *Store, at redirect, name string, writes bool, size int, add func(goredis.Pipeliner) C) (command C, err error) {
	if at.to == nil {
		node, err := s.nodeOf(ctx, name)
		if err != nil {
			return command, err
		}
		at.to = s.bodies.node(node.Options().Addr)
	}
	for redirects := 0; ; redirects++ {
		turns := at.to.reads
		if writes {
			turns = at.to.writes
		}
		command, err = moveBody(ctx, s, at.to, turns, size, func() (C, error) {
			p := at.to.client.Pipeline()
			if at.asks {
				p.Do(ctx, "asking")
			}
			c := add(p)
			_, err := p.Exec(ctx)
			return c, cmp.Or(c.Err(), err)
		})
		next := s.redirected(err)
		if next.to == nil || redirects == maxRedirects {
			return command, err
		}
		at = next
	}
}

// setBody writes a body under a temporary name.
func (s *Store) setBody(ctx context.Context, at redirect, name string, body []byte) error {
	_, err := moveValue(ctx, s, at, name, true, len(body), func(p goredis.Pipeliner) *goredis.StatusCmd {
		return p.Set(ctx, name, body, unsettledLife)
	})
	return err
}

// getBody reads a large value.
func (s *Store) getBody(ctx context.Context, name string) ([]byte, error) {
	get, err := moveValue(ctx, s, redirect{}, name, false, largeBody, func(p goredis.Pipeliner) *goredis.StringCmd {
		return p.Get(ctx, name)
	})
	if err != nil {
		return nil, err
	}
	return get.Bytes()
}

// failedBodyLife is how long a failed body is remembered; longer than the engine's pause between two
// attempts. maxFailedBodies is how many are.
const (
	failedBodyLife  = time.Minute
	maxFailedBodies = 1024
)

// countFailure counts a settlement that has failed in its body, after some of it was sent. before and
// answers are how many flushes the server had answered when the settlement began, and now, those of small
// commands. If it answers those, and again and again not the body, the error is an [idempotency.ErrTooLarge].
func (b *bodies) countFailure(token string, size int, before, answers int64, err error) error {
	refused := answered(err) && strings.Contains(err.Error(), "Protocol error") // as if it closed the connection
	var failed *bodyError
	sent := errors.As(err, &failed) && failed.sent && !errors.As(err, new(*dialError))
	if !sent && !refused {
		return err // or the server refuses all values
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.failed[token]
	if f == nil {
		f = &failedBody{answers: before}
	}
	b.rememberLocked(token, f)
	if answers == f.answers {
		return err // the server answers nothing
	}
	f.answers = answers
	f.failures++
	if f.closes++; !isClosed(err) && !refused {
		f.closes = 0
	}
	var why string
	switch {
	case f.closes >= maxBodyCloses:
		why = fmt.Sprintf("the server answers other commands, and closed the connection %d times in a row within a body of %d bytes; "+
			"raise its limit for one value (proto-max-bulk-len, maxmemory-clients, that of the service), or lower max_response_body", f.closes, size)
	case f.failures >= maxBodyFailures:
		why = fmt.Sprintf("the server answers other commands, and %d times a body of %d bytes did not get through; "+
			"the link is too slow or stalls: use a faster one, or lower max_response_body", f.failures, size)
	default:
		return err
	}
	delete(b.failed, token)
	return fmt.Errorf("%w: %s: %w", idempotency.ErrTooLarge, why, err)
}

// rememberLocked remembers a failed body, and forgets old ones.
func (b *bodies) rememberLocked(token string, f *failedBody) {
	f.at = time.Now()
	for other, old := range b.failed {
		if f.at.Sub(old.at) > failedBodyLife || len(b.failed) >= maxFailedBodies {
			delete(b.failed, other)
		}
	}
	b.failed[token] = f
}

// keepWritten remembers a body that the server has, and whose script has failed.
func (b *bodies) keepWritten(token string, f failedBody) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rememberLocked(token, &f)
}

// written returns what is known of a body that the server has under its temporary name, nil for none.
func (b *bodies) written(token string, size int) *failedBody {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.failed[token]
	if f == nil || f.name == "" || f.size != size || time.Now().After(f.expiry) {
		return nil
	}
	return f
}

// forget forgets a body that is settled, or that the server does not have any more.
func (b *bodies) forget(token string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.failed, token)
}
