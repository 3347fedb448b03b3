package integration

import (
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
)

// ports hands out ports below those that the system takes for outgoing
// connections, so that nothing else gets one between its choice and its use.
var ports struct {
	sync.Mutex
	next int
}

// freePort is the test's own until its end. The UDP port of the same number,
// which nothing here uses, stands for it: Caddy shares a TCP port with others
// that do the same, so that two runs of these tests could meet on one.
func freePort(t *testing.T) int {
	t.Helper()
	port, release := claimPort(t)
	t.Cleanup(release)
	return port
}

// claimPort is freePort for a server that listens on UDP too: released, the port may go
// to another run of these tests.
func claimPort(t *testing.T) (port int, release func()) {
	t.Helper()
	const first, last = 20000, 32000
	ports.Lock()
	defer ports.Unlock()
	for range last - first {
		ports.next++
		port := first + (os.Getpid()*1009+ports.next)%(last-first)
		claim, err := net.ListenPacket("udp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		free, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			claim.Close()
			continue
		}
		free.Close()
		return port, func() { claim.Close() }
	}
	t.Fatalf("no free port from %d to %d", first, last)
	return 0, nil
}

// listeners counts those of a port. During a reload Caddy has two, and the
// kernel resets the connections that wait at the old one when it closes. Where
// there is no /proc they cannot be counted.
func listeners(t *testing.T, port int) int {
	t.Helper()
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return 0
	}
	const listening = "0A"
	count := 0
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) > 3 && fields[3] == listening && strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) {
			count++
		}
	}
	return count
}
