package redis

import (
	"bytes"
	"net"
	"sync"
	"time"
)

// bufferedPipe gives a pipe what a socket has: room for what the other side does
// not read yet. Without it, a pipeline and its replies block each other.
type bufferedPipe struct {
	net.Conn
	unsent chan []byte
	closed chan struct{}
	close  func()
}

func newBufferedPipe(conn net.Conn) *bufferedPipe {
	p := &bufferedPipe{Conn: conn, unsent: make(chan []byte, 4096), closed: make(chan struct{})}
	p.close = sync.OnceFunc(func() { close(p.closed) })
	go func() {
		for {
			select {
			case b := <-p.unsent:
				if _, err := conn.Write(b); err != nil {
					return // the reader will see it
				}
			case <-p.closed:
				return
			}
		}
	}()
	return p
}

func (p *bufferedPipe) Write(b []byte) (int, error) {
	select {
	case p.unsent <- bytes.Clone(b):
		return len(b), nil
	case <-p.closed:
		return 0, net.ErrClosed
	}
}

// SetDeadline and SetWriteDeadline leave writes without one: they do not block.
func (p *bufferedPipe) SetDeadline(t time.Time) error    { return p.SetReadDeadline(t) }
func (p *bufferedPipe) SetWriteDeadline(time.Time) error { return nil }

func (p *bufferedPipe) Close() error {
	p.close()
	return p.Conn.Close()
}
