package redis

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// client is what the store needs of go-redis: clients of one server, of a
// sentinel's master and of a cluster all have it.
type client interface {
	goredis.Scripter
	Pipeline() goredis.Pipeliner
	Get(ctx context.Context, key string) *goredis.StringCmd
	Subscribe(ctx context.Context, channels ...string) *goredis.PubSub
	Close() error
}

const (
	poolSize   = 16
	bufferSize = 8 << 10 // larger values bypass the buffers
	// connectionLife is how long a connection is used, so that a change of
	// address or credentials comes through in the end.
	connectionLife       = 30 * time.Minute
	connectionLifeSpread = 5 * time.Minute
	// topologyAge is how old a client's picture of a cluster may be.
	topologyAge = time.Second
)

// newClient returns a client that dials when it is first used.
func newClient(o Options) client {
	logTo(o.Logger)
	switch {
	case o.Sentinel != "":
		c := goredis.NewFailoverClient(failoverOptions(o))
		newContact(c, o.Logger)
		return c
	case o.clustered():
		c := goredis.NewClusterClient(clusterOptions(o))
		c.OnNewNode(func(node *goredis.Client) { newContact(node, o.Logger) })
		return c
	default:
		c := goredis.NewClient(clientOptions(o))
		newContact(c, o.Logger)
		return c
	}
}

func clientOptions(o Options) *goredis.Options {
	part := o.Timeout / 5
	return &goredis.Options{
		Network:  network(o.Addresses[0]),
		Addr:     o.Addresses[0],
		Username: o.Username,
		Password: o.Password,
		DB:       o.DB,
		Dialer:   dialer(o.TLS),
		// Nothing is pushed to us, and RESP2 is what proxies know as well.
		Protocol:        2,
		DisableIdentity: true,
		// Retries are ours (see try): go-redis does not know which commands may
		// be sent twice.
		MaxRetries:            -1,
		DialerRetries:         1,
		ContextTimeoutEnabled: true,
		// Two attempts fit into the timeout.
		DialTimeout:  2 * part,
		ReadTimeout:  2 * part,
		WriteTimeout: 2 * part,
		PoolTimeout:  part,
		PoolSize:     poolSize,
		// No second pool for pipelines: they are as short as all else here.
		PipelinePoolSize:         -1,
		ConnMaxLifetime:          connectionLife,
		ConnMaxLifetimeJitter:    connectionLifeSpread,
		ReadBufferSize:           bufferSize,
		WriteBufferSize:          bufferSize,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// failoverOptions are for the master that sentinels name.
func failoverOptions(o Options) *goredis.FailoverOptions {
	c := clientOptions(o)
	return &goredis.FailoverOptions{
		MasterName:       o.Sentinel,
		SentinelAddrs:    o.Addresses,
		SentinelUsername: o.SentinelUsername,
		SentinelPassword: o.SentinelPassword,
		Username:         c.Username,
		Password:         c.Password,
		DB:               c.DB,
		Dialer:           c.Dialer,
		Protocol:         c.Protocol,
		DisableIdentity:  c.DisableIdentity,

		MaxRetries:            c.MaxRetries,
		DialerRetries:         c.DialerRetries,
		ContextTimeoutEnabled: c.ContextTimeoutEnabled,
		// To dial is also to ask a sentinel, and, where that one hangs, to give
		// it up after two tries and to ask the others. Who waits for the
		// connection does so no longer than its operation may take.
		DialTimeout:  4 * c.DialTimeout,
		ReadTimeout:  c.ReadTimeout,
		WriteTimeout: c.WriteTimeout,
		PoolTimeout:  c.PoolTimeout,
		PoolSize:     c.PoolSize,

		PipelinePoolSize:      c.PipelinePoolSize,
		ConnMaxLifetime:       c.ConnMaxLifetime,
		ConnMaxLifetimeJitter: c.ConnMaxLifetimeJitter,
		ReadBufferSize:        c.ReadBufferSize,
		WriteBufferSize:       c.WriteBufferSize,
	}
}

// clusterOptions are for the masters of a cluster, each with a pool of its own.
// go-redis itself follows redirects, and tries again what got no reply, which
// the owner's token makes safe for all scripts.
func clusterOptions(o Options) *goredis.ClusterOptions {
	c := clientOptions(o)
	return &goredis.ClusterOptions{
		Addrs:           o.Addresses,
		Username:        c.Username,
		Password:        c.Password,
		Dialer:          c.Dialer,
		Protocol:        c.Protocol,
		DisableIdentity: c.DisableIdentity,

		MaxRetries:            c.MaxRetries,
		DialerRetries:         c.DialerRetries,
		ContextTimeoutEnabled: c.ContextTimeoutEnabled,
		DialTimeout:           c.DialTimeout,
		ReadTimeout:           c.ReadTimeout,
		WriteTimeout:          c.WriteTimeout,
		PoolTimeout:           c.PoolTimeout,
		PoolSize:              c.PoolSize,

		PipelinePoolSize:      c.PipelinePoolSize,
		ConnMaxLifetime:       c.ConnMaxLifetime,
		ConnMaxLifetimeJitter: c.ConnMaxLifetimeJitter,
		ReadBufferSize:        c.ReadBufferSize,
		WriteBufferSize:       c.WriteBufferSize,

		// A node that refuses connections does not make go-redis ask who has its
		// slots now (go-redis #3979); only time does.
		ClusterStateReloadInterval: topologyAge,
		// The first command is not to wait for the table of all commands, which
		// is read under a time limit of go-redis's own. We need none of it.
		DisableRoutingPolicies:   true,
		MaintNotificationsConfig: c.MaintNotificationsConfig,
	}
}

// dialer does what go-redis's own does, but that each connection asks for its TLS
// settings, and that the TLS handshake ends with the context as well.
func dialer(settings func() (*tls.Config, error)) func(ctx context.Context, network, address string) (net.Conn, error) {
	plain := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
		Enable:   true,
		Idle:     15 * time.Second,
		Interval: 5 * time.Second,
		Count:    3,
	}}
	if settings == nil {
		return plain.DialContext
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		config, err := settings()
		if err != nil {
			return nil, err
		}
		return (&tls.Dialer{NetDialer: plain, Config: config}).DialContext(ctx, network, address)
	}
}
