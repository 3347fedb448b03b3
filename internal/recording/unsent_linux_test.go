package recording

import (
	"io"
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
		if limit != mostUnsent {
			t.Errorf("%s: the limit is %d, want %d", name, limit, mostUnsent)
		}
	}
}

// A client that takes a little of what waits for it in the kernel is told from one that has
// stopped, whatever is around its connection.
func TestWhatAClientTakesIsSeen(t *testing.T) {
	const size = 256 << 10
	for name, ends := range connections(t) {
		ours, theirs := ends[0], ends[1]
		if err := underlying(theirs).(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = ours.Write(make([]byte, size)) // it ends with the connection
		}()
		before, seen := acknowledged(ours), false
		for read := 0; read < size && !seen; read += 4 << 10 {
			if _, err := io.CopyN(io.Discard, theirs, 4<<10); err != nil {
				t.Fatal(err)
			}
			seen = acknowledged(ours) >= before+16<<10
		}
		if !seen {
			t.Errorf("%s: the client has taken all, and acknowledged %d bytes of it", name, acknowledged(ours)-before)
		}
		theirs.Close()
		ours.Close()
		<-done
	}
}
