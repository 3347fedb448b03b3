package redis

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// proxy stands between a store and a server and can lose replies.
type proxy struct {
	addr string
	// lose is how many replies are still to be lost: the next thing that comes from
	// the server is dropped, and the connection is closed.
	lose atomic.Int64

	listener net.Listener
	backend  string
	mu       sync.Mutex
	conns    map[net.Conn]bool
	done     sync.WaitGroup
}

func startProxy(t testing.TB, listener net.Listener, backend string) *proxy {
	t.Helper()
	p := &proxy{addr: listener.Addr().String(), listener: listener, backend: backend, conns: make(map[net.Conn]bool)}
	p.done.Go(p.serve)
	t.Cleanup(func() {
		_ = listener.Close()
		p.mu.Lock()
		for conn := range p.conns {
			_ = conn.Close()
		}
		p.conns = nil
		p.mu.Unlock()
		p.done.Wait()
	})
	return p
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

func (p *proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.backend)
		if err != nil {
			_ = client.Close()
			continue
		}
		if !p.keep(client) || !p.keep(server) {
			_ = client.Close()
			_ = server.Close()
			return
		}
		p.done.Go(func() { p.copy(server, client, false) })
		p.done.Go(func() { p.copy(client, server, true) })
	}
}

func (p *proxy) keep(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns != nil {
		p.conns[conn] = true
	}
	return p.conns != nil
}

func (p *proxy) copy(to, from net.Conn, replies bool) {
	defer func() {
		_ = to.Close()
		_ = from.Close()
	}()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if replies && n > 0 && p.loses() {
			return
		}
		if _, writeErr := to.Write(buffer[:n]); err != nil || writeErr != nil {
			return
		}
	}
}

func (p *proxy) loses() bool {
	for {
		left := p.lose.Load()
		if left == 0 {
			return false
		}
		if p.lose.CompareAndSwap(left, left-1) {
			return true
		}
	}
}
