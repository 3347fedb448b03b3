package recording

import "net"

// underlying returns the connection of the kernel that others are around, such as a
// [crypto/tls.Conn], and the one of Caddy's listener wrapper proxy_protocol.
func underlying(conn net.Conn) net.Conn {
	for {
		switch around := conn.(type) {
		case interface{ NetConn() net.Conn }:
			conn = around.NetConn()
		case interface{ Raw() net.Conn }:
			conn = around.Raw()
		default:
			return conn
		}
	}
}

// Reset breaks a connection off, so that its client gets an error and not the end of what
// was sent. A unix socket has no such way: it stays as it is.
func Reset(conn net.Conn) {
	socket, ok := underlying(conn).(interface {
		SetLinger(seconds int) error
		Close() error
	})
	if !ok || socket.SetLinger(0) != nil {
		return
	}
	_ = socket.Close() // at once: TLS would say that this is the end
}
