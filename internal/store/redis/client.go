package redis

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.uber.org/zap"
)

// client is what the store needs of go-redis: clients of one server, of a
// sentinel's master and of a cluster all have it.
type client interface {
	goredis.Scripter
	Pipeline() goredis.Pipeliner
	Get(ctx context.Context, key string) *goredis.StringCmd
	Scan(ctx context.Context, cursor uint64, match string, count int64) *goredis.ScanCmd
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
)

// newClient returns a client that dials when it is first used.
func newClient(o Options) client {
	logOnce.Do(func() { goredis.SetLogger(clientLog{o.Logger.Named("client")}) })
	return goredis.NewClient(clientOptions(o))
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
		// Retries are ours (see Store.try): go-redis does not know which
		// commands may be sent twice.
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

// dialError is an error before a connection was had: no command was sent.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// dialer does what go-redis's own does, but that the TLS handshake ends with
// the context as well, and that its errors can be told from later ones.
func dialer(config *tls.Config) func(ctx context.Context, network, address string) (net.Conn, error) {
	plain := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
		Enable:   true,
		Idle:     15 * time.Second,
		Interval: 5 * time.Second,
		Count:    3,
	}}
	dial := plain.DialContext
	if config != nil {
		dial = (&tls.Dialer{NetDialer: plain, Config: config}).DialContext
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, &dialError{err}
		}
		return conn, nil
	}
}

// logOnce: go-redis has one logger for the whole process, and the first store
// gives it one. It reports failed dials, which operations return as well.
var logOnce sync.Once

type clientLog struct{ log *zap.Logger }

func (l clientLog) Printf(_ context.Context, format string, values ...any) {
	l.log.Debug(fmt.Sprintf(format, values...))
}
