package recording

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// mostUnsent is how much of a response waits in the kernel, in bytes, beyond what is on
// its way to the client. Without a limit there can be megabytes, which nobody counts, and
// of which a third has to leave before a writer goes on: a client that reads slowly would
// look like one that reads nothing.
const mostUnsent = 128 << 10

// limitUnsent sets mostUnsent for a connection, where it can.
func limitUnsent(conn net.Conn) {
	withSocket(conn, func(fd int) {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, mostUnsent) // a unix socket has none
	})
}

// acknowledged returns how many bytes the other end of a connection has acknowledged, 0 where
// nobody says. A writer goes on in large steps, and a client that reads slowly looks to it
// like one that has stopped.
func acknowledged(conn net.Conn) (bytes uint64) {
	withSocket(conn, func(fd int) {
		if info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			bytes = info.Bytes_acked
		}
	})
	return bytes
}

// withSocket calls f with the socket of a connection, if it has one.
func withSocket(conn net.Conn, f func(fd int)) {
	socket, ok := underlying(conn).(syscall.Conn)
	if !ok {
		return
	}
	if raw, err := socket.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { f(int(fd)) })
	}
}
