package exchange

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxUnsent is how much of a response waits in the kernel, in bytes, beyond what is on
// its way to the client. Without a limit there can be megabytes, of which a third has to
// leave before a writer goes on: a client that reads slowly would look like one that has
// stopped.
const maxUnsent = 128 << 10

// limitUnsent sets maxUnsent for a connection, if that has a socket.
func limitUnsent(conn net.Conn) {
	socket, ok := underlying(conn).(syscall.Conn)
	if !ok {
		return
	}
	if raw, err := socket.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, maxUnsent) // a unix socket has none
		})
	}
}

// ackedBytes returns how many bytes the other end of a TCP connection has acknowledged.
func ackedBytes(conn net.Conn) (n int64, known bool) {
	socket, ok := underlying(conn).(syscall.Conn)
	if !ok {
		return 0, false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return 0, false
	}
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			n, known = int64(info.Bytes_acked), true
		}
	})
	return n, known
}
