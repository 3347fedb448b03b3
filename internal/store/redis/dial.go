package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"
)

const (
	// dialTimeout limits a dial with its DNS lookup, which takes 5 s if the first name server does
	// not answer. Callers do not wait that long; the connection serves later ones.
	dialTimeout = 10 * time.Second
	// minHandshakeTimeout is the minimum timeout of connecting, of the TLS handshake, and of the first
	// reply on a connection. A distant server takes some round trips, and a proxy first connects to its
	// own server.
	minHandshakeTimeout = 2 * time.Second
	// minAddressTimeout is the minimum timeout of connecting to one of the addresses of a name.
	minAddressTimeout = 500 * time.Millisecond
)

// What a dial waits for. Errors quote it.
const (
	awaitingLookup  = "its name is not resolved"
	awaitingConnect = "it does not answer"
	awaitingTLS     = "the TLS handshake is not answered: the server is slow, or does not use TLS on this port"
	awaitingReply   = "the server does not answer the first command"
)

// dialTLS dials an address and, if the store uses TLS, makes the handshake. Unlike go-redis, it gets
// the TLS settings for each connection, and the handshake ends with the context. It reports what it
// waits for.
func (d *dialer) dialTLS(ctx context.Context, network, address string, report func(string)) (net.Conn, error) {
	if d.options.TLS == nil {
		return d.connect(ctx, network, address, report)
	}
	config, err := d.options.TLS()
	if err != nil {
		return nil, err
	}
	if config.ServerName == "" {
		config = config.Clone()
		config.ServerName, _, _ = net.SplitHostPort(address)
	}
	raw, err := d.connect(ctx, network, address, report)
	if err != nil {
		return nil, err
	}
	report(awaitingTLS)
	ctx, cancel := context.WithTimeout(ctx, d.limits.handshakeTimeout())
	defer cancel()
	conn := tls.Client(raw, config)
	err = conn.HandshakeContext(ctx)
	if err == nil {
		return conn, nil
	}
	_ = raw.Close()
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%s: %w", awaitingTLS, err)
	}
	return nil, err
}

// connect dials the addresses of a name one after the other. Unless they are many, they take no longer together
// than a handshake, so that the next dial soon looks the name up again: after a failover it may have another
// address. Go's dialer would wait at least two seconds for each.
func (d *dialer) connect(ctx context.Context, network, address string, report func(string)) (net.Conn, error) {
	one := net.Dialer{
		Timeout:         d.limits.handshakeTimeout(),
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
		ControlContext:  d.control,
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" { // a unix socket, or a cluster node that does not know its own address
		return one.DialContext(ctx, network, address)
	}
	report(awaitingLookup)
	addresses, err := d.lookUp(ctx, host)
	if err != nil {
		return nil, err
	}
	report(awaitingConnect)
	one.Timeout = max(one.Timeout/time.Duration(len(addresses)), minAddressTimeout)
	for i, ip := range addresses {
		conn, dialErr := one.DialContext(ctx, network, net.JoinHostPort(ip.String(), port))
		if dialErr == nil {
			return conn, nil
		}
		if i > 0 {
			dialErr = fmt.Errorf("%w; %w", err, dialErr)
		}
		err = dialErr
	}
	return nil, err
}

// recommendedTimeout returns the timeout in which two attempts fit that each take twice as long as the first
// reply of the last handshake; 0 if there was none.
func (d *dialer) recommendedTimeout() time.Duration {
	const step = 100 * time.Millisecond
	return (time.Duration(d.roundTrip.Load())*5 + step - 1).Truncate(step)
}
