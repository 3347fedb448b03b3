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
	// dialTimeout limits a dial with its lookup: a name server that does not answer takes 5 s
	// of it. Callers do not wait for so long; the connection serves the next ones.
	dialTimeout = 10 * time.Second
	// minGreeting is how long, at least, a server that accepted a connection may leave the TLS
	// handshake and then the first command unanswered. A distant server takes some round
	// trips, and a proxy connects to its own server meanwhile.
	minGreeting = 2 * time.Second
	// maxHeadStart is how long, at most, an address of a name is tried alone.
	maxHeadStart = time.Second
)

// What a dial waits for, in errors.
const (
	lookingUp   = "its name is not resolved"
	connecting  = "it does not answer"
	handshaking = "the TLS handshake is not answered: the server is slow, or has no TLS at this port"
	greeting    = "the server does not answer the first command"
)

// dialTLS differs from what go-redis does by itself: each connection asks for its TLS
// settings, and the handshake ends with the context. It reports what it waits for.
func (d *dialer) dialTLS(ctx context.Context, network, address string, report func(string)) (net.Conn, error) {
	if d.tls == nil {
		return d.connect(ctx, network, address, report)
	}
	config, err := d.tls()
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
	report(handshaking)
	ctx, cancel := context.WithTimeout(ctx, d.limits.greeting())
	defer cancel()
	conn := tls.Client(raw, config)
	err = conn.HandshakeContext(ctx)
	if err == nil {
		return conn, nil
	}
	_ = raw.Close()
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%s: %w", handshaking, err)
	}
	return nil, err
}

// connect dials the addresses of a name one after the other, without waiting long for those
// before, and returns the first connection that is made. Go's dialer would wait at least two
// seconds for each address of a family.
func (d *dialer) connect(ctx context.Context, network, address string, report func(string)) (net.Conn, error) {
	one := net.Dialer{
		Timeout:         d.limits.timeout(), // the next dial looks the name up again
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
		ControlContext:  d.control,
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" { // a unix socket, or a node of a cluster that does not know its own address
		return one.DialContext(ctx, network, address)
	}
	report(lookingUp)
	addresses, err := d.resolver.LookupIPAddr(ctx, host)
	if err != nil {
		return nil, err
	}
	report(connecting)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		conn net.Conn
		err  error
	}
	results := make(chan result)
	dial := func(address string) {
		conn, err := one.DialContext(ctx, network, address)
		select {
		case results <- result{conn, err}:
		case <-ctx.Done():
			if err == nil {
				_ = conn.Close()
			}
		}
	}
	next := time.NewTimer(0)
	defer next.Stop()
	for dialed, failed := 0, 0; ; {
		select {
		case <-next.C:
			if dialed < len(addresses) {
				go dial(net.JoinHostPort(addresses[dialed].String(), port))
				dialed++
				next.Reset(min(d.limits.timeout()/4, maxHeadStart))
			}
		case got := <-results:
			if got.err == nil {
				return got.conn, nil
			}
			if failed++; failed > 1 {
				got.err = fmt.Errorf("%w; %w", err, got.err)
			}
			if err = got.err; failed == len(addresses) {
				return nil, err
			}
			next.Reset(0)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
