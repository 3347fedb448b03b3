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
	socket, ok := underlying(conn).(syscall.Conn)
	if !ok {
		return
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, mostUnsent) // a unix socket has none
	})
}
