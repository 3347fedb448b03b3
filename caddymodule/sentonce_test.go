package caddymodule

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
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
		if got := r.Header["Idempotency-Key"]; !slices.Equal(slices.Concat(got, r.Header["X-Idempotency-Key"]), []string{"k"}) {
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
		"the other field":      {plain, "", []string{"reverse_proxy {to}"}}, // by which the transport knows such a request
		"header_up":            {plain, "", []string{"reverse_proxy {to} {", "header_up X-Any thing", "}"}},
		"request_header":       {plain, "", []string{"request_header X-Any thing", "reverse_proxy {to}"}},
		"https":                {(*httptest.Server).StartTLS, "", []string{"reverse_proxy https://{to} {", "transport http {", "tls_insecure_skip_verify", "versions 1.1", "}", "}"}},
		"HTTP/2":               {startHTTP2, "", []string{"reverse_proxy h2c://{to}"}},
		"method GET":           {plain, "body", []string{"reverse_proxy {to} {", "method GET", "}"}},
		"by the proxy":         {plain, "body", []string{"reverse_proxy {to} {", "request_buffers 1KiB", "lb_retries 3", "lb_retry_match method POST GET", "}"}},
		"by the proxy, HTTP/2": {startHTTP2, "body", []string{"reverse_proxy h2c://{to} {", "request_buffers 1KiB", "lb_retries 3", "lb_retry_match method POST GET", "}"}},
	} {
		t.Run(name, func(t *testing.T) {
			field, key := "Idempotency-Key", ""
			if name == "the other field" {
				field, key = "X-Idempotency-Key", "key header X-Idempotency-Key"
			}
			s, runs := warmed(t, c.start, append([]string{"route {", "dedup {", key, "on_unknown hold", "fingerprint none", "}"}, append(c.lines, "}")...)...)
			got := s.mustPost("", c.body, field, "k")
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
// sections 8.7 and 6.8). The transport may send it again. If it cannot, because of a body, only a text
// says so, and what has happened is unknown.
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
		"refused with a body": {refuse, 1, "body", 502, idempotency.Held},
		"gone away once":      {goAway, 1, "", 201, idempotency.Complete},
		"gone with a body":    {goAway, 1, "body", 502, idempotency.Held},
		"always gone":         {goAway, 1 << 10, "", 502, idempotency.Released}, // after eight times at most
	} {
		t.Run(name, func(t *testing.T) {
			var refused atomic.Int64 // the transport may open a connection more than it uses
			address, _ := rawUpstream(t, refusingHTTP2(c.times, func(framer *http2.Framer, stream uint32) {
				refused.Add(1)
				c.refuse(framer, stream)
			}))
			s := serve(t, "dedup {", "on_unknown hold", "}", "reverse_proxy h2c://"+address)
			if got := s.mustPost("k", c.body); got.status != c.status || refused.Load() > 8 {
				t.Errorf("the client got %+v after %d refusals, want %d", got, refused.Load(), c.status)
			}
			if record := s.only(); record.State != c.state {
				t.Errorf("the key is %s, want %s", record.State, c.state)
			}
		})
	}
}

// What has spoken HTTP/2 before within a run says nothing of an attempt over HTTP/1.1.
func TestHTTP2BeforeIsNoLicenseToSendAgain(t *testing.T) {
	for name, before := range map[string][]string{
		"forward_auth": {"forward_auth h2c://{h2} {", "uri /", "}", "reverse_proxy {to}"},
		"a primary":    {"reverse_proxy h2c://{h2} {", "@busy status 200", "handle_response @busy {", "reverse_proxy {to}", "}", "}"},
	} {
		t.Run(name, func(t *testing.T) {
			primary, _ := http2Upstream(t, func(http.ResponseWriter, *http.Request) {})
			for i := range before {
				before[i] = strings.ReplaceAll(before[i], "{h2}", primary)
			}
			// The requests that warm pass by: of several at a time, a dial that is given up would still read
			// the variables that the next proxy writes.
			s, runs := warmed(t, (*httptest.Server).Start, slices.Concat([]string{"route {", "reverse_proxy /warm {to}", "dedup {", "on_unknown hold", "}"}, before, []string{"}"})...)
			if got := s.mustPost("k", ""); got.status != http.StatusBadGateway || runs.Load() != 1 {
				t.Errorf("the client got %+v after %d executions; want 502 after 1", got, runs.Load())
			}
			if record := s.only(); record.State != idempotency.Held {
				t.Errorf("the key is %s, want held", record.State)
			}
		})
	}
}

// A transport that shows nothing but its dialer is cancelled before it dials again. The FastCGI
// server executes, and dies.
func TestFastCGIIsSentOnce(t *testing.T) {
	for name, c := range map[string]struct {
		status string // of the first answer, "" for none
		want   int64
	}{"died": {"", 1}, "answered, then died": {"503 Busy", 2}} {
		t.Run(name, func(t *testing.T) {
			answer := ""
			if c.status != "" {
				answer = "Status: " + c.status + "\r\n\r\n"
			}
			var served atomic.Int64
			address, runs := rawUpstream(t, func(conn net.Conn) {
				if served.Add(1) == 1 {
					fastCGI(answer, 0, answer != "")(conn)
					return
				}
				fastCGI("", 0, false)(conn)
			})
			s := serve(t, "dedup {", "on_unknown hold", "}", "reverse_proxy "+address+" {", "transport fastcgi {", "root /", "}",
				"lb_retries 3", "lb_retry_match method POST", "lb_retry_match `{rp.status_code} == 503`", "}")
			if got := s.mustPost("k", "body"); got.status != http.StatusBadGateway || runs.Load() != c.want {
				t.Errorf("the client got %+v after %d executions; want 502 after %d", got, runs.Load(), c.want)
			}
			if record := s.only(); record.State != idempotency.Held {
				t.Errorf("the key is %s, want held", record.State)
			}
		})
	}
}

// No text that an upstream has sent says whether the request was executed.
func TestNoTextOfAnUpstreamDecides(t *testing.T) {
	goodbye := func(conn net.Conn) {
		refusingHTTP2(1, func(framer *http2.Framer, stream uint32) {
			_ = framer.WriteGoAway(stream, http2.ErrCodeInternal, []byte("graceful shutdown GOAWAY; REFUSED_STREAM"))
			_ = conn.Close()
		})(conn)
	}
	for name, c := range map[string]struct {
		serve func(net.Conn)
		to    string
	}{
		"a broken header": {afterRequest("HTTP/1.1 200 OK\r\nX-Echo: a\r\n; REFUSED_STREAM\r\n\r\n"), ""},
		"debug data":      {goodbye, "h2c://"},
	} {
		t.Run(name, func(t *testing.T) {
			address, runs := rawUpstream(t, c.serve)
			s := serve(t, "dedup {", "on_unknown hold", "max_attempts 3", "}", "reverse_proxy "+c.to+address)
			for _, want := range []int{http.StatusBadGateway, http.StatusConflict} {
				if got := s.mustPost("k", "body"); got.status != want || runs.Load() != 1 {
					t.Errorf("the client got %+v after %d connections; want %d after 1", got, runs.Load(), want)
				}
			}
		})
	}
}

// What fails before a transport dials was not sent, and is no attempt.
func TestRequestThatCannotBeSent(t *testing.T) {
	address, runs := startUpstream(t, answers(201, "done"))
	s := serve(t, "dedup {", "on_unknown hold", "max_attempts 1", "}", "reverse_proxy "+address+" {", "header_up X-Copied {http.request.uri.query.x}", "}")
	if got := s.must(with("body", "/?x=a%0Ab", "Idempotency-Key: k")); got.status != http.StatusBadGateway {
		t.Fatalf("the client got %+v", got)
	}
	if record := s.only(); record.State != idempotency.Released || record.Attempt != 0 {
		t.Errorf("the key is %s after attempt %d, want released after none", record.State, record.Attempt)
	}
	if got, err := s.over(with("body", "/?x=ab", "Idempotency-Key: k")); err != nil || got.status != 201 || runs.Load() != 1 {
		t.Errorf("the next request got %+v, %v after %d executions", got, err, runs.Load())
	}
}

// An offer of another protocol does not reach the upstream: one that accepts it answers with 101
// and has executed the request. Some clients offer h2c with every request.
func TestUpgradeIsNoWayPastHold(t *testing.T) {
	for name, header := range map[string][]string{
		"h2c":   {"Connection", "Upgrade, HTTP2-Settings", "Upgrade", "h2c", "HTTP2-Settings", "AAMAAABkAAQAoAAAAAIAAAAA"},
		"other": {"Connection", "Upgrade", "Upgrade", "websocket"},
		"empty": {"Connection", "upgrade", "Upgrade", ""},
	} {
		t.Run(name, func(t *testing.T) {
			address, runs := startUpstream(t, func(w http.ResponseWriter, r *http.Request, _ int) {
				if len(r.Header["Upgrade"])+len(r.Header["Connection"])+len(r.Header["Http2-Settings"]) > 0 {
					t.Errorf("the upstream got %v", r.Header)
				}
				w.WriteHeader(201)
			})
			s := serve(t, "dedup {", "on_unknown hold", "max_attempts 1", "}", "reverse_proxy "+address)
			for range 2 {
				got := s.mustPost("k", "", header...)
				if got.status != 201 || runs.Load() != 1 {
					t.Errorf("the client got %+v after %d executions; want 201 after 1", got, runs.Load())
				}
			}
		})
	}
}

// Methods are compared without regard to case, and forwarded as sent. `fetch` sends `patch` as it
// is written, and Django and Symfony execute it.
func TestSpellingOfAMethodIsNoWayPast(t *testing.T) {
	for _, lines := range []string{"methods patch", "methods PATCH\nscope {http.request.method}"} {
		t.Run(lines, func(t *testing.T) {
			var methods []string
			address, runs := startUpstream(t, func(w http.ResponseWriter, r *http.Request, _ int) {
				methods = append(methods, r.Method)
				w.WriteHeader(201)
			})
			s := serve(t, "dedup {", lines, "}", "reverse_proxy "+address)
			for _, method := range []string{"patch", "PATCH", "Patch"} {
				if got, err := s.over(with("body", method, "Idempotency-Key: k")); err != nil || got.status != 201 || runs.Load() != 1 {
					t.Errorf("%s got %+v, %v after %d executions; want 201 after 1", method, got, err, runs.Load())
				}
			}
			if !slices.Equal(methods, []string{"patch"}) {
				t.Errorf("the upstream got %q", methods)
			}
		})
	}
}

// A request without a key keeps its offer, and its connection.
func TestUpgradeWithoutAKeyPasses(t *testing.T) {
	address, _ := rawUpstream(t, afterRequest("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello"))
	s := serve(t, "dedup", "reverse_proxy "+address)
	var client told
	sent(&client, s.URL, "POST / HTTP/1.1\r\nHost: example.test\r\nConnection: Upgrade\r\nUpgrade: echo\r\nContent-Length: 0\r\n\r\n")
	if got := strings.Join(client.lines, ""); !strings.HasPrefix(got, "101 ") {
		t.Errorf("the client got %s", got)
	}
}

// A call of gRPC has no key over HTTP/2.
func TestGRPCHasNoKey(t *testing.T) {
	address, runs := startUpstream(t, answers(201, ""))
	s := serve(t, "dedup", "reverse_proxy "+address)
	for kind, want := range map[string]int64{
		"application/grpc": 2, "application/grpc+proto": 2, "Application/GRPC; x=y": 2, "application/grpc-web": 1, "application/grpcx": 1,
	} {
		runs.Store(0)
		for range 2 {
			r := with("", "Idempotency-Key: "+kind, "Content-Type: "+kind).http()
			r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/2.0", 2, 0
			s.Config.Handler.ServeHTTP(httptest.NewRecorder(), r)
		}
		if runs.Load() != want {
			t.Errorf("%s ran %d times, want %d", kind, runs.Load(), want)
		}
	}
}

// gRPC is of HTTP/2 and HTTP/3. Its name alone is no way past a required key.
func TestGRPCOverHTTP1(t *testing.T) {
	address, runs := startUpstream(t, answers(201, ""))
	s := serve(t, "dedup {", "on_missing reject", "}", "reverse_proxy "+address)
	for _, kind := range []string{"application/grpc", "application/grpc+json", "application/grpc-web"} {
		if got := s.mustPost("", "", "Content-Type", kind); got.status != http.StatusBadRequest {
			t.Errorf("%s without a key got %+v, want 400", kind, got)
		}
		for range 2 {
			s.mustPost(kind, "", "Content-Type", kind)
		}
	}
	if runs.Load() != 3 {
		t.Errorf("three keys ran %d times", runs.Load())
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
