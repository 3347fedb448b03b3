package redis

import (
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
	client goredis.UniversalClient
	limits *limits

	mu     sync.Mutex
	nodes  map[string]*bodyNode
	failed map[string]*failedBody // by token
}

// bodyNode is what all bodies of one server share.
type bodyNode struct {
	idempotency.Progress
	writes, reads *semaphore.Weighted
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

func newBodies(l *limits) *bodies {
	return &bodies{limits: l, nodes: make(map[string]*bodyNode), failed: make(map[string]*failedBody)}
}

// node returns the state of the server with this address. A store without a cluster has one server at a
// time, with the address "".
func (b *bodies) node(address string) *bodyNode {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.nodes[address]
	if n == nil {
		n = &bodyNode{writes: semaphore.NewWeighted(maxWrites * largeBody), reads: semaphore.NewWeighted(maxReads * largeBody)}
		b.nodes[address] = n
	}
	return n
}

// bodyAddress returns the address for [bodies.node].
func (o Options) bodyAddress(address string) string {
	if o.clustered() {
		return address
	}
	return ""
}

// bodyNodeOf returns the client for the bodies of the server that has a name, and their state.
func (s *Store) bodyNodeOf(ctx context.Context, name string) (*goredis.Client, *bodyNode, error) {
	client, ok := s.bodies.client.(*goredis.Client)
	if cluster, clustered := s.bodies.client.(*goredis.ClusterClient); clustered {
		var err error
		if client, err = cluster.MasterForKey(ctx, name); err != nil {
			return nil, nil, err
		}
	} else if !ok {
		return nil, nil, fmt.Errorf("a client of the type %T", s.bodies.client)
	}
	return client, s.bodies.node(s.options.bodyAddress(client.Options().Addr)), nil
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

// setBody writes a body under a temporary name.
func (s *Store) setBody(ctx context.Context, name string, body []byte) error {
	_, n, err := s.bodyNodeOf(ctx, name)
	if err != nil {
		return err
	}
	_, err = moveBody(ctx, s, n, n.writes, len(body), func() (string, error) {
		return s.bodies.client.Set(ctx, name, body, unsettledLife).Result()
	})
	return err
}

// getBody reads a large value.
func (s *Store) getBody(ctx context.Context, name string) ([]byte, error) {
	_, n, err := s.bodyNodeOf(ctx, name)
	if err != nil {
		return nil, err
	}
	return moveBody(ctx, s, n, n.reads, largeBody, func() ([]byte, error) {
		return s.bodies.client.Get(ctx, name).Bytes()
	})
}

// failedBodyLife is how long a failed body is remembered; longer than the engine's pause between two
// attempts.
const failedBodyLife = time.Minute

// countFailure counts a settlement that has failed in its body. answers is how many flushes the server has
// answered so far, those of small commands. If it answers those, and again and again not the body, the
// error is an [idempotency.ErrTooLarge].
func (b *bodies) countFailure(token string, size int, answers int64, err error) error {
	refused := answered(err) && strings.Contains(err.Error(), "Protocol error") // as if it closed the connection
	switch {
	case errors.As(err, new(*dialError)), errors.As(err, new(*unsentError)):
		return err // it was not sent
	case !errors.Is(err, errAbandoned) && !connectionFailed(err) && !refused:
		return err // the server refuses all values
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	for other, f := range b.failed {
		if now.Sub(f.at) > failedBodyLife {
			delete(b.failed, other)
		}
	}
	f := b.failed[token]
	if f == nil {
		f = &failedBody{answers: -1}
		b.failed[token] = f
	}
	f.at = now
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

// keepWritten remembers a body that the server has, and whose script has failed.
func (b *bodies) keepWritten(token string, f failedBody) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f.answers, f.at = -1, time.Now()
	b.failed[token] = &f
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
