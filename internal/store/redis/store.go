package redis

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"golang.org/x/sync/singleflight"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Store is an [idempotency.Store] in Redis. Every operation ends with the server's reply or at its
// timeout, whatever the server does; while a large body moves, its timeout moves ([bodies]). It does not
// end earlier if its context is cancelled: a command that was sent cannot be withdrawn.
type Store struct {
	client      goredis.UniversalClient
	options     Options // as the store was opened; Tune does not change them
	limits      *limits
	names       names
	credentials *credentials
	dialer      *dialer
	pipes       *pipes
	bodies      *bodies
	inbox       *inbox
	// slotsLoaded reports whether the client has loaded the slots of a cluster. slotLoads shares
	// the loading.
	slotsLoaded  atomic.Bool
	slotLoads    singleflight.Group
	unreplicated atomic.Int64
}

// limits are the settings that can change while the store is open.
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

// attemptTimeout limits each read and each write. An operation has time for two attempts.
func (l *limits) attemptTimeout() time.Duration { return l.timeout() * 2 / 5 }

// idleTimeout is how long a connection that moves a body may move nothing. It ends shortly before the step
// ([idempotency.WithProgress]), so that the step gets the error of the connection.
func (l *limits) idleTimeout() time.Duration { return idempotency.IdleTimeout(l.timeout()) * 19 / 20 }

// handshakeTimeout limits connecting, the TLS handshake, and the first reply on a connection.
func (l *limits) handshakeTimeout() time.Duration { return max(minHandshakeTimeout, l.timeout()) }

// replicas is the number of replicas that a kept response waits for.
func (l *limits) replicas() int64 { return l.replicaCount.Load() }

// Open returns a store. It dials nothing: the first operation does. Errors are those of
// [Options.Check].
func Open(o Options) (*Store, error) {
	o = o.withDefaults()
	if err := o.Check(); err != nil {
		return nil, err
	}
	s := &Store{
		options: o, limits: new(limits), names: names{prefix: o.Prefix},
		credentials: registerCredentials(o),
	}
	s.limits.set(o.Timeout, o.WaitReplicas)
	s.dialer = newDialer(o, s.limits, s.credentials)
	s.client = newClient(o, s.dialer, s.dialer.dialConn)
	s.bodies = newBodies(s.dialer)
	s.pipes = newPipes(s.dialer)
	s.inbox = newInbox(s.client, s.names, o.Logger)
	return s, nil
}

// Tune changes [Options.Timeout] and [Options.WaitReplicas] for later operations.
func (s *Store) Tune(timeout time.Duration, waitReplicas int) { s.limits.set(timeout, waitReplicas) }

// Close implements [idempotency.Store].
func (s *Store) Close() error {
	s.inbox.close()
	err := errors.Join(s.client.Close(), s.bodies.close())
	s.dialer.cancel()
	close(s.pipes.closed)
	s.credentials.unregister()
	if lost := (*net.OpError)(nil); errors.As(err, &lost) {
		return nil // the server closed the connection first
	}
	return err
}

// Subscribe implements [idempotency.Store]. It does not dial: the next claim does.
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
