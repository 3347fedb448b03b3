package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.uber.org/zap"
)

const (
	poolSize   = 16
	bufferSize = 8 << 10 // larger values bypass the buffers
	// connLifetime is how long a connection is used. A new connection resolves the address and
	// reads the certificates again.
	connLifetime       = 30 * time.Minute
	connLifetimeJitter = 5 * time.Minute
	// topologyInterval is the interval at which a client asks a cluster which node has which slots.
	topologyInterval = time.Second
	// noLimit disables go-redis's own timeouts: each connection limits its reads and writes
	// ([conn]), and each operation limits its wait for a connection.
	noLimit = time.Hour
)

// newBodyClient returns a client for the bodies of one server, which is that of a client for small commands.
// Behind sentinels it asks none of them ([dialer.dialBody]).
func newBodyClient(d *dialer, n *bodyNode, address string) *goredis.Client {
	o := d.options
	o.Sentinel, o.Cluster, o.Addresses = "", false, []string{address}
	return newClient(o, d, d.dialBody(n)).(*goredis.Client)
}

// newClient returns a client that dials when it is first used, by d's hooks and a function of d.
func newClient(o Options, d *dialer, dial dialFunc) goredis.UniversalClient {
	goredis.SetLogger(clientLog{o.Logger.Named("client")}) // one for the process: that of the newest store
	u := &goredis.UniversalOptions{
		Addrs: o.Addresses, MasterName: o.Sentinel,
		SentinelUsername: o.SentinelUsername, SentinelPassword: o.SentinelPassword,
		Dialer: dial, // the handshake logs in and selects the database
		// The store needs no push messages, and every proxy for Redis supports RESP2.
		Protocol: 2, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		// The store retries by itself (try): go-redis does not know which commands may be sent twice.
		MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true,
		DialTimeout: noLimit, ReadTimeout: noLimit, WriteTimeout: noLimit, PoolTimeout: noLimit,
		// Pipelines need no separate pool, because they are as short as other commands.
		PoolSize: poolSize, PipelinePoolSize: -1,
		ConnMaxLifetime: connLifetime, ConnMaxLifetimeJitter: connLifetimeJitter,
		ReadBufferSize: bufferSize, WriteBufferSize: bufferSize,
	}
	// NewUniversalClient does the same, but cannot set the two cluster options below.
	switch {
	case o.Sentinel != "":
		client := goredis.NewFailoverClient(u.Failover())
		client.AddHook(d)
		return client
	case o.clustered():
		options := u.Cluster()
		// go-redis does not reload the slots when a node refuses connections (go-redis #3979),
		// only at this interval.
		options.ClusterStateReloadInterval = topologyInterval
		// Without this, the first command waits until go-redis has loaded the COMMAND table.
		options.DisableRoutingPolicies = true
		cluster := goredis.NewClusterClient(options)
		cluster.OnNewNode(func(node *goredis.Client) { node.AddHook(d) })
		return cluster
	default:
		client := goredis.NewClient(u.Simple())
		client.AddHook(d)
		return client
	}
}

// nodeOf returns the client of the server that stores the record with this name.
func (s *Store) nodeOf(ctx context.Context, name string) (node *goredis.Client, err error) {
	cluster, ok := s.client.(*goredis.ClusterClient)
	if !ok {
		return s.client.(*goredis.Client), nil
	}
	if err = s.loadSlots(ctx, cluster); err == nil {
		node, err = cluster.MasterForKey(ctx, name)
	}
	if err != nil && !answered(err) {
		err = &dialError{err}
	}
	return node, err
}

// loadSlots waits until the client has loaded once which node has which slots. The loading continues
// after the caller's timeout. Later, go-redis reloads the slots in the background.
func (s *Store) loadSlots(ctx context.Context, c *goredis.ClusterClient) error {
	if s.slotsLoaded.Load() {
		return nil
	}
	loaded := s.slotLoads.DoChan("", func() (any, error) {
		background, cancel := context.WithTimeout(s.dialer.ctx, dialTimeout)
		defer cancel()
		err := c.ForEachMaster(background, func(context.Context, *goredis.Client) error { return nil })
		s.slotsLoaded.Store(err == nil)
		return nil, err
	})
	select {
	case result := <-loaded:
		return result.Err
	case <-ctx.Done():
		return &unsentError{s.dialer.explainNoConn("", ctx.Err())}
	}
}

// masters returns a client for each server that stores records, sorted by address.
func (s *Store) masters(ctx context.Context) ([]*goredis.Client, error) {
	cluster, ok := s.client.(*goredis.ClusterClient)
	if !ok {
		return []*goredis.Client{s.client.(*goredis.Client)}, nil
	}
	var mu sync.Mutex
	var all []*goredis.Client
	err := cluster.ForEachMaster(ctx, func(_ context.Context, master *goredis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, master)
		return nil
	})
	if err == nil && len(all) == 0 {
		err = errors.New("no master has any slots")
	}
	slices.SortFunc(all, func(a, b *goredis.Client) int { return cmp.Compare(a.Options().Addr, b.Options().Addr) })
	return all, err
}

// clientLog logs what go-redis reports besides the errors of operations, such as failed dials in the
// background.
type clientLog struct{ logger *zap.Logger }

// Printf implements go-redis's logging interface.
func (l clientLog) Printf(_ context.Context, format string, values ...any) {
	l.logger.Debug(fmt.Sprintf(format, values...))
}
