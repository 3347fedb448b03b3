package recording

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxUnsent is how many unsent bytes of a response the kernel buffers at most. Without a limit it
// may buffer megabytes, and a writer continues only when a third of them is sent: a slow client
// would look like one that has stopped.
const maxUnsent = 128 << 10

// limitUnsent sets maxUnsent for a connection, if that has a socket.
func limitUnsent(conn net.Conn) {
	socket, ok := underlying(conn).(syscall.Conn)
	if !ok {
		return
	}
	if raw, err := socket.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, maxUnsent) // fails for a unix socket
		})
	}
}

// ackedBytes returns how many bytes the peer of a TCP connection has acknowledged.
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
