package recording

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/proxyprotocol"
)

// connections returns the server's end of connections, as handlers see them, and what the
// client reads from: in the clear, over TLS, and behind the PROXY protocol.
func connections(t *testing.T) map[string][2]net.Conn {
	t.Helper()
	certificates := httptest.NewUnstartedServer(nil)
	certificates.StartTLS()
	defer certificates.Close()
	trust := certificates.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	trust.ServerName = "example.com"
	proxied := new(proxyprotocol.ListenerWrapper)
	if err := proxied.Provision(caddy.Context{}); err != nil {
		t.Fatal(err)
	}
	same := func(l net.Listener) net.Listener { return l }
	plain := func(conn net.Conn) net.Conn { return conn }
	found := make(map[string][2]net.Conn)
	for name, over := range map[string]struct {
		server func(net.Listener) net.Listener
		client func(net.Conn) net.Conn
		first  string
	}{
		"in the clear": {same, plain, ""},
		"TLS": {
			func(l net.Listener) net.Listener { return tls.NewListener(l, certificates.TLS) },
			func(conn net.Conn) net.Conn { return tls.Client(conn, trust) },
			"",
		},
		"the PROXY protocol": {proxied.WrapListener, plain, "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n"},
	} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		client := over.client(conn)
		go func() { _, _ = io.WriteString(client, over.first+"x") }() // TLS shakes hands here
		server, err := over.server(listener).Accept()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := server.Read(make([]byte, 1)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		t.Cleanup(func() { client.Close(); server.Close() })
		found[name] = [2]net.Conn{server, client}
	}
	return found
}
