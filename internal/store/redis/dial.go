package redis

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"time"
)

// dialFunc makes a connection.
type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// dialer does what go-redis's own dialer does, with three differences: each connection
// asks for its TLS settings, the TLS handshake ends with the context, and no address of a
// name waits long for another one.
func dialer(settings func() (*tls.Config, error), timeout time.Duration) dialFunc {
	plain := newNameDialer(timeout)
	if settings == nil {
		return plain.DialContext
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		config, err := settings()
		if err != nil {
			return nil, err
		}
		conn, err := plain.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if host, _, err := net.SplitHostPort(address); config.ServerName == "" && err == nil {
			config = config.Clone()
			config.ServerName = host
		}
		over := tls.Client(conn, config)
		if err := over.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			return nil, unshaken(err)
		}
		return over, nil
	}
}

// nameDialer dials all addresses of a name within its timeout. One that is silent must not
// keep a server from us that another one leads to. Go's own dialer waits 300 ms for IPv6
// before it dials IPv4, and 2 s for each address of a kind, which is more than a dial may take.
type nameDialer struct {
	net.Dialer
	timeout time.Duration
}

func newNameDialer(timeout time.Duration) *nameDialer {
	return &nameDialer{timeout: timeout, Dialer: net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{
			Enable:   true,
			Idle:     15 * time.Second,
			Interval: 5 * time.Second,
			Count:    3,
		},
	}}
}

// DialContext is that of [net.Dialer].
func (d *nameDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if network != "tcp" || err != nil {
		return d.Dialer.DialContext(ctx, network, address)
	}
	addresses, err := d.Resolver.LookupHost(ctx, host)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	for i := range addresses {
		addresses[i] = net.JoinHostPort(addresses[i], port)
	}
	return d.first(ctx, network, addresses)
}

// first returns the connection that is made first. It dials the addresses in their order: the
// next one when one has failed, and when it was silent for a part of the time, so that each
// has at least half of it.
func (d *nameDialer) first(ctx context.Context, network string, addresses []string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		conn net.Conn
		err  error
	}
	results := make(chan result, len(addresses))
	begun := 0
	begin := func() {
		if begun == len(addresses) {
			return
		}
		address := addresses[begun]
		begun++
		go func() {
			conn, err := d.Dialer.DialContext(ctx, network, address)
			results <- result{conn, err}
		}()
	}
	next := time.NewTicker(min(d.timeout/time.Duration(2*len(addresses)), 300*time.Millisecond))
	defer next.Stop()
	var failed error
	begin()
	for ended := 0; ended < begun; {
		select {
		case <-next.C:
			begin()
		case got := <-results:
			ended++
			if got.err == nil {
				go func() { // those that come too late
					for range begun - ended {
						if late := <-results; late.err == nil {
							_ = late.conn.Close()
						}
					}
				}()
				return got.conn, nil
			}
			failed = cmp.Or(failed, got.err)
			begin()
		}
	}
	return nil, failed
}
