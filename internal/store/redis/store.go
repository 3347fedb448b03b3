package redis

import (
	"context"
	"errors"
	"net"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Store is an [idempotency.Store] in Redis. Every operation returns within
// Options.Timeout, whatever the server does.
type Store struct {
	client client
	// options are those that the store was opened with. Its errors name them.
	options Options
	timeout time.Duration
	// patience is how long after a call the server may still execute a claim, or free
	// a record.
	patience time.Duration
	names    names
	flushes  *flushes
	inbox    *inbox
	replicas *replicas
	log      *zap.Logger
}

// Open returns a store. It dials nothing: the first operation does. Errors are
// those of the options.
func Open(o Options) (*Store, error) {
	o = o.withDefaults()
	if err := o.Check(); err != nil {
		return nil, err
	}
	o.logins = enterLogins(o)
	return newStore(newClient(o), o), nil
}

func newStore(c client, o Options) *Store {
	n := names{prefix: o.Prefix}
	return &Store{
		client:   c,
		options:  o,
		timeout:  o.Timeout,
		patience: idempotency.ClaimPatience,
		names:    n,
		flushes:  newFlushes(o.Timeout),
		inbox:    newInbox(c, n, o.Timeout, o.Logger),
		replicas: newReplicas(o),
		log:      o.Logger,
	}
}

// Close implements [idempotency.Store].
func (s *Store) Close() error {
	s.inbox.close()
	s.flushes.close()
	err := s.client.Close()
	s.flushes.wait()
	s.replicas.background.Wait()
	s.options.logins.leave()
	if lost := (*net.OpError)(nil); errors.As(err, &lost) {
		return nil // TLS says goodbye, and the server had hung up: the connection is closed anyway
	}
	return err
}

// Subscribe implements [idempotency.Store]. The server is not asked before the
// first claim.
func (s *Store) Subscribe(wake func(idempotency.Key)) (stop func()) {
	return s.inbox.subscribers.Subscribe(wake)
}

// Succeed has a store that was not used yet wake also those who wait for a run since a
// time when another store was in use in this process, over the same Redis and under
// other options. When nobody uses the earlier one any more, and before it is closed,
// takeOver is called: it returns when nothing that the server tells can be missed.
func (s *Store) Succeed(earlier idempotency.Store) (takeOver func()) {
	before, ok := earlier.(*Store)
	if !ok {
		return func() {}
	}
	s.inbox.succeed(before.inbox)
	return func() { s.inbox.takeOver(before.inbox) }
}

// withTimeout bounds one operation with its retry.
func (s *Store) withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= s.timeout {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, s.timeout)
}
