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
	// connLifetime is how long a connection is used. A new one resolves the address and
	// reads the certificates again.
	connLifetime       = 30 * time.Minute
	connLifetimeJitter = 5 * time.Minute
	// topologyInterval is how often a client asks a cluster which node has which slots.
	topologyInterval = time.Second
	// noLimit leaves the limits to each connection ([conn]), and that on waiting for one to
	// the operations.
	noLimit = time.Hour
)

// newClient returns a client that dials when it is first used.
func newClient(o Options, d *dialer, c *credentials) goredis.UniversalClient {
	goredis.SetLogger(clientLog{o.Logger.Named("client")}) // one for the process: that of the newest store
	u := &goredis.UniversalOptions{
		Addrs: o.Addresses, MasterName: o.Sentinel, DB: o.DB,
		Username: o.Username, Password: o.Password, CredentialsProviderContext: c.provide,
		SentinelUsername: o.SentinelUsername, SentinelPassword: o.SentinelPassword,
		Dialer:    d.dialConn,
		OnConnect: (&prober{log: o.Logger, clustered: o.clustered(), dialer: d}).probe,
		// The store needs no push messages, and proxies in front of Redis know RESP2.
		Protocol: 2, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		// The store retries by itself (try): go-redis does not know what may be sent twice.
		MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true,
		DialTimeout: noLimit, ReadTimeout: noLimit, WriteTimeout: noLimit, PoolTimeout: noLimit,
		// Pipelines need no pool of their own: they are as short as other commands.
		PoolSize: poolSize, PipelinePoolSize: -1,
		ConnMaxLifetime: connLifetime, ConnMaxLifetimeJitter: connLifetimeJitter,
		ReadBufferSize: bufferSize, WriteBufferSize: bufferSize,
	}
	// NewUniversalClient does the same, without the two options of a cluster below.
	switch {
	case o.Sentinel != "":
		client := goredis.NewFailoverClient(u.Failover())
		client.AddHook(d)
		return client
	case o.clustered():
		options := u.Cluster()
		// go-redis does not ask for the slots when a node refuses connections (go-redis
		// #3979), only after this time.
		options.ClusterStateReloadInterval = topologyInterval
		// Otherwise the first command waits for a table of all commands.
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

// nodeOf returns the client of the server that has the record of this name.
func (s *Store) nodeOf(ctx context.Context, name string) (*goredis.Client, error) {
	switch c := s.client.(type) {
	case *goredis.Client:
		return c, nil
	case *goredis.ClusterClient:
		if err := s.learnSlots(ctx, c); err != nil {
			return nil, err
		}
		return c.MasterForKey(ctx, name)
	default:
		return nil, fmt.Errorf("a client of the type %T", c)
	}
}

// learnSlots waits until the cluster has told once which node has which slots. That goes on when
// the caller's time is over; later, go-redis asks in the background.
func (s *Store) learnSlots(ctx context.Context, c *goredis.ClusterClient) error {
	if s.slotsKnown.Load() {
		return nil
	}
	learned := s.learning.DoChan("", func() (any, error) {
		background, cancel := context.WithTimeout(s.dialer.ctx, dialTimeout)
		defer cancel()
		err := c.ForEachMaster(background, func(context.Context, *goredis.Client) error { return nil })
		s.slotsKnown.Store(err == nil)
		return nil, err
	})
	select {
	case result := <-learned:
		return result.Err
	case <-ctx.Done():
		return &unsentError{s.dialer.awaited("", ctx.Err())}
	}
}

// masters returns a client for each server that has records, in the order of their
// addresses.
func (s *Store) masters(ctx context.Context) ([]*goredis.Client, error) {
	cluster, ok := s.client.(*goredis.ClusterClient)
	if !ok {
		only, err := s.nodeOf(ctx, "")
		return []*goredis.Client{only}, err
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

// clientLog takes what go-redis logs in addition to the errors that operations return, such
// as failed dials in the background.
type clientLog struct{ log *zap.Logger }

// Printf implements go-redis's logging interface.
func (l clientLog) Printf(_ context.Context, format string, values ...any) {
	l.log.Debug(fmt.Sprintf(format, values...))
}
