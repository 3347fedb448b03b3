package integration

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/quic-go/quic-go/http3"
)

// overHTTP3 is the directive that leads to an upstream of HTTP/3.
func overHTTP3(address string) string {
	return lines("reverse_proxy https://"+address+" {", "transport http {", "versions 3", "tls_insecure_skip_verify", "}", "}")
}

// serveHTTP3 serves an upstream over HTTP/3 until the test ends.
func serveHTTP3(t *testing.T, on net.PacketConn, up *upstream) {
	t.Helper()
	certificate, key := selfSigned(t)
	server := &http3.Server{Handler: up, TLSConfig: http3.ConfigureTLSConfig(&tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: key}}, MinVersion: tls.VersionTLS13,
	})}
	go func() { _ = server.Serve(on) }() // it ends when it is closed
	t.Cleanup(func() { _ = server.Close() })
}

// Requests to one upstream of HTTP/3 wait for one connection. Where the client of the one that
// dials goes away, they all end as if their own clients had, with a 499 that nobody has
// answered. Kept as an answer, it would keep a request from the upstream that never saw it.
func TestDialOfHTTP3ThatAnotherRequestGivesUp(t *testing.T) {
	t.Parallel()
	for _, unknown := range []string{"release", "hold"} {
		t.Run(unknown, func(t *testing.T) {
			t.Parallel()
			on, err := net.ListenPacket("udp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer on.Close()
			if err := on.SetReadDeadline(time.Now().Add(patience)); err != nil {
				t.Fatal(err)
			}
			up := &upstream{answer: answers201}
			p := start(t, conf{store: "store memory", site: lines(dedupBlock("on_unknown "+unknown), overHTTP3(on.LocalAddr().String()))})

			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			dials := p.postLater("/", "", "", method("GET"), within(ctx))
			if _, _, err := on.ReadFrom(make([]byte, 2000)); err != nil { // the silent upstream is dialed
				t.Fatal(err)
			}
			first := p.postLater("/", "k", "body")
			eventually(t, "both wait for the connection", func() bool {
				_, dump := p.askAdmin(t, "GET", "/debug/pprof/goroutine?debug=2", "", "")
				return strings.Count(dump, "http3.(*Transport).doRoundTripOpt(") == 2
			})
			duplicate := p.postLater("/", "k", "body")
			p.awaitWaiting(t, 1, first, duplicate)
			leave()
			<-dials.done
			<-first.done // with 499, which is what reverse_proxy says
			if got := duplicate.reply(t); got.Status < 500 {
				t.Errorf("the duplicate that waited got %d, which nobody has answered", got.Status)
			}

			if err := on.SetReadDeadline(time.Time{}); err != nil {
				t.Fatal(err)
			}
			serveHTTP3(t, on, up)
			wantFresh(t, p.post(t, "/", "k", "body"), 201, "run 1 of k")
			if attempt := up.nth(t, "k", 1).Header.Get("Dedup-Attempt"); attempt != "" {
				t.Errorf("the first run that reaches the upstream is attempt %s", attempt)
			}
		})
	}
}

// When Caddy reloads, it closes its connections to upstreams of HTTP/3. The pages say so; what
// counts is that nothing of it is kept, and that `on_unknown` decides.
func TestReloadCutsRunsOverHTTP3(t *testing.T) {
	t.Parallel()
	for unknown, want := range map[string]func(t *testing.T, again reply){
		"release": func(t *testing.T, again reply) { wantFresh(t, again, 201, "run 2 of k") },
		"hold":    func(t *testing.T, again reply) { wantProblem(t, again, 409, "outcome_unknown") },
	} {
		t.Run(unknown, func(t *testing.T) {
			t.Parallel()
			on, err := net.ListenPacket("udp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer on.Close()
			up := new(upstream)
			serveHTTP3(t, on, up)
			g := newGate(t) // opened before the server is closed, which waits for what runs
			up.answer = inTurn(g.before(answers201), answers201)
			site := lines(dedupBlock("on_unknown "+unknown), overHTTP3(on.LocalAddr().String()))
			p := start(t, conf{store: "store memory", site: site})
			first := p.postLater("/", "k", "body")
			up.awaitRuns(t, "k", 1)
			p.reload(t, lines("header X-New 1", site))
			wantAnswer(t, first.reply(t), 502, "")
			want(t, p.post(t, "/", "k", "body"))
		})
	}
}
