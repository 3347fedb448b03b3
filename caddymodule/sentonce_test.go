package caddymodule

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// idleConnections is how many connections to the upstream are idle when the request comes.
const idleConnections = 5

// warmed serves a site whose upstream executes what is not a GET for /warm, drops the
// connection, and has idle connections from as many GETs at once.
func warmed(t *testing.T, newServer func(*httptest.Server), lines ...string) (s *site, runs *atomic.Int64) {
	t.Helper()
	runs = new(atomic.Int64)
	together := new(sync.WaitGroup)
	together.Add(idleConnections)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/warm" {
			together.Done()
			together.Wait()
			return
		}
		runs.Add(1)
		if got := r.Header.Values("Idempotency-Key"); len(got) != 1 || got[0] != "k" {
			t.Errorf("the upstream got the key %q", got)
		}
		panic(http.ErrAbortHandler)
	}))
	newServer(server)
	t.Cleanup(server.Close)
	_, address, _ := strings.Cut(server.URL, "://")
	for i := range lines {
		lines[i] = strings.ReplaceAll(lines[i], "{to}", address)
	}
	s = serve(t, lines...)
	var warm sync.WaitGroup
	for range idleConnections {
		warm.Go(func() {
			got, err := http.Get(s.URL + "/warm")
			if err != nil {
				t.Error(err)
				return
			}
			_ = got.Body.Close()
		})
	}
	warm.Wait()
	return s, runs
}

// A request that may have reached an upstream is not sent again within its run: not by Go's
// transport, which resends a request without a body that has an idempotency key, or any GET,
// over each idle connection; and not by the retries of reverse_proxy.
func TestRequestIsSentOnce(t *testing.T) {
	plain := (*httptest.Server).Start
	for name, c := range map[string]struct {
		start func(*httptest.Server)
		body  string
		lines []string
	}{
		"without a body":       {plain, "", []string{"reverse_proxy {to}"}},
		"header_up":            {plain, "", []string{"reverse_proxy {to} {", "header_up X-Any thing", "}"}},
		"request_header":       {plain, "", []string{"request_header X-Any thing", "reverse_proxy {to}"}},
		"https":                {(*httptest.Server).StartTLS, "", []string{"reverse_proxy https://{to} {", "transport http {", "tls_insecure_skip_verify", "versions 1.1", "}", "}"}},
		"HTTP/2":               {startHTTP2, "", []string{"reverse_proxy h2c://{to}"}},
		"method GET":           {plain, "body", []string{"reverse_proxy {to} {", "method GET", "}"}},
		"by the proxy":         {plain, "body", []string{"reverse_proxy {to} {", "request_buffers 1KiB", "lb_retries 3", "lb_retry_match method POST GET", "}"}},
		"by the proxy, HTTP/2": {startHTTP2, "body", []string{"reverse_proxy h2c://{to} {", "request_buffers 1KiB", "lb_retries 3", "lb_retry_match method POST GET", "}"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, runs := warmed(t, c.start, append([]string{"route {", "dedup {", "on_unknown hold", "fingerprint none", "}"}, append(c.lines, "}")...)...)
			got := s.mustPost("k", c.body)
			if got.status != http.StatusBadGateway || runs.Load() != 1 {
				t.Errorf("the client got %+v after %d executions; want 502 after 1", got, runs.Load())
			}
			if record := s.only(); record.State != idempotency.Held {
				t.Errorf("the key is %s, want held", record.State)
			}
		})
	}
}

// A request that passes without a claim is not resent either.
func TestUnclaimedRequestIsSentOnce(t *testing.T) {
	s, runs := warmed(t, (*httptest.Server).Start, "dedup {", "key header X-Request-Id", "}", "reverse_proxy {to}")
	if got := s.mustPost("k", ""); got.status != http.StatusBadGateway || runs.Load() != 1 {
		t.Errorf("the client got %+v after %d executions; want 502 after 1", got, runs.Load())
	}
}

// The cancelled run is no failure of a healthy upstream.
func TestRequestThatIsNotSentAgainIsNoFailure(t *testing.T) {
	s, runs := warmed(t, (*httptest.Server).Start, "dedup", "reverse_proxy {to} {", "max_fails 1", "fail_duration 1m", "}")
	if got := s.mustPost("k", ""); got.status != http.StatusBadGateway || runs.Load() != 1 {
		t.Errorf("the client got %+v after %d executions; want 502 after 1", got, runs.Load())
	}
	if got := s.mustPost("k", ""); got.status != http.StatusBadGateway || runs.Load() != 2 {
		t.Errorf("the next request got %+v after %d executions; want 502 after 2", got, runs.Load())
	}
}

func startHTTP2(server *httptest.Server) {
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
}

// By REFUSED_STREAM and GOAWAY an upstream says that it has not processed a request (RFC 9113,
// sections 8.7 and 6.8). The transport may send it again; and if it cannot, nothing was sent.
func TestRequestThatAnUpstreamHasNotProcessed(t *testing.T) {
	refuse := func(framer *http2.Framer, stream uint32) {
		_ = framer.WriteRSTStream(stream, http2.ErrCodeRefusedStream)
	}
	goAway := func(framer *http2.Framer, _ uint32) { _ = framer.WriteGoAway(0, http2.ErrCodeNo, nil) }
	for name, c := range map[string]struct {
		refuse func(*http2.Framer, uint32)
		times  int64
		body   string
		status int
		state  idempotency.State
	}{
		"refused once":        {refuse, 1, "", 201, idempotency.Complete},
		"refused with a body": {refuse, 1, "body", 502, idempotency.Released},
		"gone away once":      {goAway, 1, "", 201, idempotency.Complete},
		"gone with a body":    {goAway, 1, "body", 502, idempotency.Released},
	} {
		t.Run(name, func(t *testing.T) {
			address, runs := rawUpstream(t, refusingHTTP2(c.times, c.refuse))
			s := serve(t, "dedup {", "on_unknown hold", "}", "reverse_proxy h2c://"+address)
			if got := s.mustPost("k", c.body); got.status != c.status {
				t.Errorf("the client got %+v after %d connections, want %d", got, runs.Load(), c.status)
			}
			if record := s.only(); record.State != c.state {
				t.Errorf("the key is %s, want %s", record.State, c.state)
			}
		})
	}
}

// An offer of h2c, which some clients make with every request, does not reach the upstream: one
// that accepts it answers with 101 and has executed the request.
func TestH2CIsNoWayPastHold(t *testing.T) {
	address, runs := upstream(t, func(w http.ResponseWriter, r *http.Request, _ int) {
		if r.Header.Get("Upgrade") != "" || r.Header.Get("Connection") != "" || r.Header.Get("HTTP2-Settings") != "" {
			t.Errorf("the upstream got %v", r.Header)
		}
		w.WriteHeader(201)
	})
	s := serve(t, "dedup {", "on_unknown hold", "}", "reverse_proxy "+address)
	for range 2 {
		got := s.mustPost("k", "", "Connection", "Upgrade, HTTP2-Settings", "Upgrade", "h2c", "HTTP2-Settings", "AAMAAABkAAQAoAAAAAIAAAAA")
		if got.status != 201 || runs.Load() != 1 {
			t.Errorf("the client got %+v after %d executions; want 201 after 1", got, runs.Load())
		}
	}
}

// refusingHTTP2 is an upstream of HTTP/2 that does not process some requests, and answers the
// others with 201.
func refusingHTTP2(times int64, refuse func(*http2.Framer, uint32)) func(net.Conn) {
	var refused atomic.Int64
	return func(conn net.Conn) {
		if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		framer := http2.NewFramer(conn, conn)
		_ = framer.WriteSettings()
		for {
			frame, err := framer.ReadFrame()
			if err != nil {
				return
			}
			ended := frame.Header().Flags.Has(http2.FlagDataEndStream)
			switch frame := frame.(type) {
			case *http2.SettingsFrame:
				if !frame.IsAck() {
					_ = framer.WriteSettingsAck()
				}
			case *http2.HeadersFrame, *http2.DataFrame:
				if !ended {
					continue
				}
				stream := frame.Header().StreamID
				if refused.Add(1) <= times {
					refuse(framer, stream)
					continue
				}
				_ = framer.WriteHeaders(http2.HeadersFrameParam{
					StreamID: stream, EndHeaders: true, EndStream: true,
					BlockFragment: []byte("\x08\x03201"), // :status (RFC 7541, section 6.2.2)
				})
			}
		}
	}
}
