package redis

import (
	"context"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// client is what the store needs of go-redis: clients of one server, of a
// sentinel's master and of a cluster all have it.
type client interface {
	Pipeline() goredis.Pipeliner
	Process(ctx context.Context, command goredis.Cmder) error
	Get(ctx context.Context, key string) *goredis.StringCmd
	Subscribe(ctx context.Context, channels ...string) *goredis.PubSub
	Close() error
}

const (
	poolSize   = 16
	bufferSize = 8 << 10 // larger values bypass the buffers
	// connectionLife is how long a connection is used. A new one looks up the address
	// and reads the certificates again.
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
		o.logins.dialBy(c.Options().Dialer)
		newContact(c, o.Logger).refused = o.logins.dialAsLatest
		return c
	case o.clustered():
		c := goredis.NewClusterClient(clusterOptions(o))
		c.OnNewNode(func(node *goredis.Client) { newContact(node, o.Logger).fixed = true })
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
		Network:                    network(o.Addresses[0]),
		Addr:                       o.Addresses[0],
		Username:                   o.Username,
		Password:                   o.Password,
		DB:                         o.DB,
		Dialer:                     dialer(o.TLS, 2*part),
		CredentialsProviderContext: o.logins.provider(),
		// We need no push messages, and proxies in front of Redis know RESP2 too.
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
		// Nothing but its own time limits how long an operation waits for a connection.
		PoolTimeout: o.Timeout,
		PoolSize:    poolSize,
		// Pipelines need no pool of their own: they are as short as the other commands.
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

		CredentialsProviderContext: c.CredentialsProviderContext,

		MaxRetries:            c.MaxRetries,
		DialerRetries:         c.DialerRetries,
		ContextTimeoutEnabled: c.ContextTimeoutEnabled,
		// A dial asks a sentinel first. If that one hangs, go-redis gives it up after
		// two tries and asks the others. An operation that waits for the connection
		// still waits no longer than its own timeout.
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
// go-redis follows redirects by itself, and sends a command again that got no reply.
// All scripts may be executed twice: those that write compare tokens first.
func clusterOptions(o Options) *goredis.ClusterOptions {
	c := clientOptions(o)
	return &goredis.ClusterOptions{
		Addrs:           o.Addresses,
		Username:        c.Username,
		Password:        c.Password,
		Dialer:          c.Dialer,
		Protocol:        c.Protocol,
		DisableIdentity: c.DisableIdentity,

		CredentialsProviderContext: c.CredentialsProviderContext,

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

		// When a node refuses connections, go-redis does not ask who has its slots now
		// (go-redis #3979). It asks only after this time.
		ClusterStateReloadInterval: topologyAge,
		// Otherwise the first command waits for the table of all commands, under a
		// time limit of go-redis's own. We do not need that table.
		DisableRoutingPolicies:   true,
		MaintNotificationsConfig: c.MaintNotificationsConfig,
	}
}
