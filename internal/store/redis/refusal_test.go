package redis

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// TestServerThatTakesNoConnection has a server that says why it takes none, and hangs up.
// The error says the same, and as no command was sent, no claim is in doubt.
func TestServerThatTakesNoConnection(t *testing.T) {
	t.Parallel()
	full := redistest.Start(t)
	full.Do("CONFIG", "SET", "maxclients", "1")
	held, err := net.Dial("unix", full.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Close() }()
	// With the reply it is sure that this is the one that the server takes.
	if _, err := io.WriteString(held, "PING\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := held.Read(make([]byte, 7)); err != nil {
		t.Fatal(err)
	}
	const denied = "DENIED Redis is running in protected mode because protected mode is enabled"
	guarded := listen(t)
	defer func() { _ = guarded.Close() }()
	go func() {
		for {
			conn, err := guarded.Accept()
			if err != nil {
				return
			}
			_, _ = fmt.Fprintf(conn, "-%s and no password is set. %s\r\n", denied, strings.Repeat("What to do. ", 60))
			_ = conn.Close()
		}
	}()
	for address, want := range map[string]string{
		full.Addr:               "ERR max number of clients reached",
		guarded.Addr().String(): denied,
	} {
		for _, password := range []string{"", "secret"} {
			s := closeAtEnd(t, openWith(t, Options{Addresses: []string{address}, Password: password, Timeout: generous}))
			claimed, err := s.Claim(ctx, claimOf("a", "token"))
			if err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 300 {
				t.Errorf("password %q: %v; want %q", password, err, want)
			}
			if claimed.Record != nil {
				t.Errorf("password %q: a claim that was not sent is in doubt", password)
			}
		}
	}
}

// TestTLSOnOneSideOnly has a server with TLS and a store without, and the other way round.
func TestTLSOnOneSideOnly(t *testing.T) {
	t.Parallel()
	certificates := redistest.NewCertificates(t)
	for name, o := range map[string]Options{
		"the server": {Addresses: []string{redistest.StartTLS(t, certificates).Addr}},
		"the store":  {Addresses: []string{redistest.Start(t).Addr}, TLS: always(knownTo(t, certificates))},
	} {
		s := closeAtEnd(t, openWith(t, o))
		if _, err := s.Claim(ctx, claimOf("a", "token")); err == nil || !strings.Contains(err.Error(), "TLS") {
			t.Errorf("%s has TLS: %v; want that the error says so", name, err)
		}
	}
}

// TestHangUpBeforeTheHandshake keeps what connectionFailed has to know of an error.
func TestHangUpBeforeTheHandshake(t *testing.T) {
	t.Parallel()
	l := listen(t)
	defer func() { _ = l.Close() }()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	dial := dialer(always(&tls.Config{ServerName: "redis"}), generous)
	if _, err := dial(context.Background(), "tcp", l.Addr().String()); !connectionFailed(err) {
		t.Errorf("%v; want an error after which another attempt is made", err)
	}
}
