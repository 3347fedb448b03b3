package integration

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// stuck is a connection of HTTP/2 that opens all its windows and then reads nothing: what is
// sent to it stays in the kernels, and after that in the server.
type stuck struct {
	t      *testing.T
	framer *http2.Framer
	host   string
	next   uint32
}

func dialStuck(t *testing.T, p *caddy) *stuck {
	t.Helper()
	conn := dialStalled(t, p)
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	const most = 1<<31 - 1
	s := &stuck{t: t, framer: http2.NewFramer(conn, conn), host: "dedup.test", next: 1}
	s.must(s.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: most}))
	s.must(s.framer.WriteWindowUpdate(0, most-65535))
	s.must(s.framer.WriteSettingsAck())
	return s
}

func (s *stuck) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// post sends a request without a body.
func (s *stuck) post(path, key string) { s.request(path, key, true) }

// declare begins a request with a body of so many bytes, of which none comes.
func (s *stuck) declare(n, size int) {
	s.request("/", fmt.Sprint(n), false, [2]string{"content-length", fmt.Sprint(size)})
}

func (s *stuck) request(path, key string, ends bool, more ...[2]string) {
	s.t.Helper()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range append([][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":authority", s.host}, {":path", path}, {"idempotency-key", key},
	}, more...) {
		s.must(encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}))
	}
	s.must(s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: s.next, BlockFragment: block.Bytes(), EndStream: ends, EndHeaders: true}))
	s.next += 2
}

const h2c = "servers {\nprotocols h1 h2c\n}"

// A deadline only ends a stream of HTTP/2, by a frame that a connection which takes nothing
// does not take either. What its answers hold is free again all the same.
func TestStuckHTTP2ConnectionHoldsNoRoom(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ run) {
		fmt.Fprint(w, strings.Repeat("x", 400<<10))
	})
	p := start(t, conf{store: "store memory", global: h2c, dedup: limits("buffered 1MiB", "client_idle 1s"), site: lines("dedup", proxyTo(up))})
	client := dialStuck(t, p)
	for i := range 24 {
		client.post("/", fmt.Sprint(i))
	}
	up.awaitRuns(t, "0", 1)
	eventually(t, "there is room for another", func() bool { return p.post(t, "/", "honest", "").Status == 200 })
	if got := p.post(t, "/", "0", ""); got.Status != 200 || len(got.Body) != 400<<10 || !got.replayed() {
		t.Errorf("the response of a run whose client took nothing: %d, %d bytes", got.Status, len(got.Body))
	}
	up.wantRuns(t, "0", 1)
}
