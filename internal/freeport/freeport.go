// Package freeport gives tests ports of the loopback interface that stay theirs: a server
// can listen on one, stop, and listen again, and nothing has taken it meanwhile.
package freeport

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
	"time"
)

// The ports are below those that the system takes for outgoing connections, so that
// nothing else gets one between its choice and its use, or while its server is stopped.
const first, last = 20000, 32000

var ports struct {
	sync.Mutex
	next int
}

// Of returns a port that is the test's own until its end. The UDP port of the same
// number, which no server of a test uses, stands for it: Caddy shares a TCP port with
// others that do the same, so that two runs of tests could meet on one.
func Of(t testing.TB) int {
	t.Helper()
	port, release := Claim(t)
	t.Cleanup(release)
	return port
}

// Claim is [Of] for a server that listens on UDP too: released, the port may go to
// another run of tests.
func Claim(t testing.TB) (port int, release func()) {
	t.Helper()
	ports.Lock()
	defer ports.Unlock()
	for range last - first {
		ports.next++
		port := first + (os.Getpid()*1009+ports.next)%(last-first)
		claim, err := net.ListenPacket("udp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		if nobodyListens(port) {
			return port, func() { _ = claim.Close() }
		}
		_ = claim.Close()
	}
	t.Fatalf("no free port from %d to %d", first, last)
	return 0, nil
}

// nobodyListens asks by a connection. To listen and to stop again would not do: a process
// that is started at this moment has a copy of the listener until it runs its own program,
// and the port would be taken so long.
func nobodyListens(port int) bool {
	conn, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), time.Second)
	if err == nil {
		_ = conn.Close()
	}
	timeout := net.Error(nil)
	return err != nil && (!errors.As(err, &timeout) || !timeout.Timeout()) // one that hangs listens too
}
