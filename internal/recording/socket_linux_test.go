package recording

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// What waits in the kernel is limited, whatever is around the connection.
func TestUnsentIsLimitedOnEveryConnection(t *testing.T) {
	for name, ends := range connections(t) {
		limitUnsent(ends[0])
		socket, ok := underlying(ends[0]).(*net.TCPConn)
		if !ok {
			t.Fatalf("%s: under it is a %T", name, underlying(ends[0]))
		}
		raw, err := socket.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var limit int
		if failed := raw.Control(func(fd uintptr) {
			limit, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT)
		}); failed != nil || err != nil {
			t.Fatal(failed, err)
		}
		if limit != maxUnsent {
			t.Errorf("%s: the limit is %d, want %d", name, limit, maxUnsent)
		}
	}
}
