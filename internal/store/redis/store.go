package redis

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"golang.org/x/sync/singleflight"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Store is an [idempotency.Store] in Redis. Every operation ends with the server's reply or
// at its timeout, whatever the server does. It does not end earlier when its context is
// canceled: a command that was sent cannot be taken back.
type Store struct {
	client      goredis.UniversalClient
	options     Options // as the store was opened, for its errors
	limits      *limits
	names       names
	credentials *credentials
	dialer      *dialer
	pipes       *pipes
	inbox       *inbox
	log         *zap.Logger
	// slotsKnown reports whether a cluster has told its slots, learning asks for them.
	slotsKnown atomic.Bool
	learning   singleflight.Group
	// executeWithin is how long after a call the server may still execute a claim by
	// script, or release a key.
	executeWithin time.Duration
	unreplicated  atomic.Int64
}

// limits are the settings of an open store that can change.
type limits struct {
	timeoutNanos atomic.Int64
	replicaCount atomic.Int64
}

func (l *limits) set(timeout time.Duration, waitReplicas int) {
	l.timeoutNanos.Store(int64(timeout))
	l.replicaCount.Store(int64(waitReplicas))
}

// timeout limits one operation.
func (l *limits) timeout() time.Duration { return time.Duration(l.timeoutNanos.Load()) }

// attempt limits a write and a read each: an operation has time for two of them.
func (l *limits) attempt() time.Duration { return l.timeout() * 2 / 5 }

// greeting limits how long a server may be silent at the start of a connection.
func (l *limits) greeting() time.Duration { return max(minGreeting, l.timeout()) }

// replicas is how many replicas a kept response waits for.
func (l *limits) replicas() int64 { return l.replicaCount.Load() }

// Open returns a store. It dials nothing: the first operation does. Errors are those of
// [Options.Check].
func Open(o Options) (*Store, error) {
	o = o.withDefaults()
	if err := o.Check(); err != nil {
		return nil, err
	}
	s := &Store{
		options: o, limits: new(limits), names: names{prefix: o.Prefix}, log: o.Logger,
		credentials: enterCredentials(o), executeWithin: idempotency.ClaimTimeout,
	}
	s.limits.set(o.Timeout, o.WaitReplicas)
	s.dialer = newDialer(o, s.limits)
	s.client = newClient(o, s.dialer, s.credentials)
	s.pipes = newPipes(s.limits, s.dialer, o.clustered())
	s.inbox = newInbox(s.client, s.names, s.limits, o.Logger)
	return s, nil
}

// Tune changes [Options.Timeout] and [Options.WaitReplicas], for operations that begin from
// now on.
func (s *Store) Tune(timeout time.Duration, waitReplicas int) { s.limits.set(timeout, waitReplicas) }

// Close implements [idempotency.Store].
func (s *Store) Close() error {
	s.inbox.close()
	err := s.client.Close()
	s.dialer.cancel()
	close(s.pipes.closed)
	s.credentials.leave()
	if lost := (*net.OpError)(nil); errors.As(err, &lost) {
		return nil // the server closed the connection first
	}
	return err
}

// Subscribe implements [idempotency.Store]. The server is not asked before the first claim.
func (s *Store) Subscribe(wake func(idempotency.Key)) (stop func()) {
	return s.inbox.subscribers.Subscribe(wake)
}

// withTimeout limits one operation with its retries.
func (s *Store) withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	timeout := s.limits.timeout()
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= timeout {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, timeout)
}
