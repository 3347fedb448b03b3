package redis

import (
	"context"
	"encoding/binary"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestNameWithASilentIPv6Address dials a name with three addresses, within the time that a
// dial has by default. The IPv6 address is dialed first, and nothing ever comes from it.
func TestNameWithASilentIPv6Address(t *testing.T) {
	t.Parallel()
	dialSilent(t, "[::1]:")
}

// TestNameWithASilentIPv4Address is the same for an address of the same kind, which Go's own
// dialer would wait for until the time is over.
func TestNameWithASilentIPv4Address(t *testing.T) {
	t.Parallel()
	dialSilent(t, "[::1]:", "127.0.0.2:")
}

// dialSilent dials a name with addresses of which those that begin so are silent, and others
// that nobody listens at, but for 127.0.0.1.
func dialSilent(t *testing.T, silent ...string) {
	t.Helper()
	l := listen(t)
	defer func() { _ = l.Close() }()
	options := clientOptions(Options{Addresses: []string{l.Addr().String()}}.withDefaults())
	d := newNameDialer(options.DialTimeout)
	d.Resolver = &net.Resolver{PreferGo: true, Dial: dialDNS(t)}
	d.ControlContext = func(ctx context.Context, _, address string, _ syscall.RawConn) error {
		if slices.ContainsFunc(silent, func(s string) bool { return strings.HasPrefix(address, s) }) {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, options.DialTimeout)
	defer cancel()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort("redis.test.", port))
	if err != nil {
		t.Fatal(err)
	}
	if got := conn.RemoteAddr().String(); !strings.HasPrefix(got, "127.0.0.1:") {
		t.Errorf("it is connected to %s", got)
	}
	_ = conn.Close()
}

// dialDNS returns what a resolver dials: a server that has ::1, 127.0.0.2 and 127.0.0.1 for
// each name.
func dialDNS(t *testing.T) func(ctx context.Context, network, address string) (net.Conn, error) {
	t.Helper()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	go func() {
		query := make([]byte, 512)
		for {
			n, from, err := server.ReadFrom(query)
			if err != nil {
				return
			}
			_, _ = server.WriteTo(answerDNS(query[:n]), from)
		}
	}()
	return func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("udp", server.LocalAddr().String())
	}
}

// answerDNS answers the question of a query (RFC 1035), for A and AAAA.
func answerDNS(query []byte) []byte {
	const header, aaaa = 12, 28
	end := header
	for query[end] != 0 { // the labels of the name
		end += 1 + int(query[end])
	}
	kind := binary.BigEndian.Uint16(query[end+1:])
	addresses := []net.IP{net.IPv4(127, 0, 0, 2).To4(), net.IPv4(127, 0, 0, 1).To4()}
	if kind == aaaa {
		addresses = []net.IP{net.IPv6loopback}
	}
	answer := append([]byte{}, query[:2]...)                                       // the ID
	answer = append(answer, 0x81, 0x80, 0, 1, 0, byte(len(addresses)), 0, 0, 0, 0) // one question
	answer = append(answer, query[header:end+5]...)
	for _, address := range addresses {
		answer = append(answer, 0xc0, header) // the name is that of the question
		answer = binary.BigEndian.AppendUint16(answer, kind)
		answer = append(answer, 0, 1, 0, 0, 0, 60, 0, byte(len(address))) // class, TTL, length
		answer = append(answer, address...)
	}
	return answer
}
