package exchange

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
