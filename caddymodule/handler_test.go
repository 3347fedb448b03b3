package caddymodule

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// What a run's status does to its key, by mode and by release_on.
func TestReleasingStatusesRunAgain(t *testing.T) {
	address, _ := startUpstream(t, func(w http.ResponseWriter, r *http.Request, _ int) {
		status, _ := strconv.Atoi(r.Header.Get("X-Status"))
		w.WriteHeader(status)
	})
	for line, c := range map[string]struct{ released, kept []int }{
		"":                              {[]int{307, 308, 500, 599, 400, 401, 404, 409, 410, 411, 415, 417, 421, 426, 428, 431, 451}, []int{200, 204, 301, 302, 303, 402, 422}},
		"release_on !409":               {[]int{500, 408, 404}, []int{409, 422, 200}},
		"release_on 404 2xx":            {[]int{404, 200, 204}, []int{500, 401}},
		"release_on !503 5xx 503":       {[]int{500, 504}, []int{503, 409}},
		"release_on off":                {nil, []int{200, 401, 500}},
		"mode webhook":                  {[]int{301, 308, 400, 401, 402, 403, 404, 409, 410, 422, 429, 500, 503}, []int{200, 202, 204}},
		"mode webhook\nrelease_on !410": {[]int{301, 404, 500}, []int{410, 200}},
	} {
		s := serve(t, "dedup {", line, "}", "reverse_proxy "+address)
		for again, statuses := range map[bool][]int{true: c.released, false: c.kept} {
			for _, status := range statuses {
				key := strconv.Itoa(status)
				_, second := s.mustPost(key, "", "X-Status", key), s.mustPost(key, "", "X-Status", key)
				if replayed := second.header.Get("Idempotent-Replayed") != ""; second.status != status || replayed == again {
					t.Errorf("%q: the second request with %d got %d, replayed: %v", line, status, second.status, replayed)
				}
			}
		}
		s.stop()
	}
}

// The field names are those of a response as it is captured.
func TestChallengeForPaymentReleases(t *testing.T) {
	for _, field := range []string{"WWW-Authenticate", "PAYMENT-REQUIRED"} {
		address, _ := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n int) {
			if n == 1 {
				w.Header().Set(field, "challenge")
				w.WriteHeader(402)
			}
		})
		s := serve(t, "dedup", "reverse_proxy "+address)
		if asked, paid := s.mustPost("k", "body"), s.mustPost("k", "body"); asked.status != 402 || paid.status != 200 {
			t.Errorf("%s: got %d, and then %d", field, asked.status, paid.status)
		}
		s.stop()
	}
}

// Every refusal that needs no other replica, in both modes.
func TestHandlerRefuses(t *testing.T) {
	large := strings.Repeat("x", 100)
	for name, c := range map[string]struct {
		lines        []string
		before       func(s *site)
		key, body    string
		api, webhook int
		code         string
	}{
		"missing": {lines: []string{"on_missing reject"}, api: 400, webhook: 400, code: "idempotency_key_missing"},
		"invalid": {key: strings.Repeat("k", 256), api: 400, webhook: 201, code: "idempotency_key_invalid"},
		"reused":  {lines: []string{"fingerprint body"}, key: "k", body: "another", before: func(s *site) { s.mustPost("k", "body") }, api: 422, webhook: 422, code: "idempotency_key_reused"},
		"too large": {lines: []string{"fingerprint body", "max_request_body 50"}, key: "k", body: large, api: 413, webhook: 201,
			code: "request_too_large"},
		"not kept":  {lines: []string{"max_response_body 3"}, key: "k", body: "body", before: func(s *site) { s.mustPost("k", "body") }, api: 409, webhook: 201, code: "response_not_kept"},
		"held":      {lines: []string{"on_unknown hold"}, key: "cut", body: "body", before: func(s *site) { _, _ = s.post("cut", "body") }, api: 409, webhook: 503, code: "outcome_unknown"},
		"exhausted": {lines: []string{"max_attempts 1"}, key: "cut", body: "body", before: func(s *site) { _, _ = s.post("cut", "body") }, api: 409, webhook: 503, code: "attempts_exhausted"},
		"in flight": {lines: []string{"wait off"}, key: "slow", body: "body", before: func(s *site) {
			go func() { _, _ = s.post("slow", "body") }()
			for len(s.listed()) == 0 {
				time.Sleep(time.Millisecond)
			}
		}, api: 409, webhook: 503, code: "request_in_flight"},
	} {
		for mode, want := range map[string]int{"api": c.api, "webhook": c.webhook} {
			t.Run(name+" "+mode, func(t *testing.T) {
				finish := make(chan struct{})
				address, _ := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n int) {
					switch r.Header.Get("Idempotency-Key") {
					case "cut":
						panic(http.ErrAbortHandler)
					case "slow":
						<-finish
					}
					answers(201, "created")(w, r, n)
				})
				block := append([]string{"dedup {", "mode " + mode, "key header Idempotency-Key"}, c.lines...)
				s := serve(t, append(block, "}", "reverse_proxy "+address)...)
				t.Cleanup(func() { close(finish) })
				if c.before != nil {
					c.before(s)
				}
				got := s.mustPost(c.key, c.body)
				if want < 400 {
					if got.status != want {
						t.Errorf("got %+v, want %d", got, want)
					}
					if name == "not kept" && (got.body != "" || got.header.Get("X-Own") != "1" || got.header.Get("Content-Type") != "" || got.header.Get("Idempotent-Replayed") != "true") {
						t.Errorf("the stored status and header are %+v", got)
					}
					return
				}
				got.problem(t, want, c.code)
				if (want == 503 || name == "in flight") != (got.header.Get("Retry-After") != "") {
					t.Errorf("Retry-After is %q", got.header.Get("Retry-After"))
				}
			})
		}
	}
}

// The request's body reaches the upstream byte for byte, whatever the handler had
// to read of it.
func TestHandlerPassesTheBodyOn(t *testing.T) {
	binary := `{"id":"1","text":"` + strings.Repeat("\xff\x00 ", 20_000) + `"}`
	for name, c := range map[string]struct {
		dedup, body string
		replayed    bool
	}{
		"fingerprinted":          {"", binary, true},
		"not read":               {"fingerprint none\nmax_request_body 10", binary, true},
		"key in it":              {"key json /id", `{"id":"1","text":"` + strings.Repeat("é ", 20_000) + `"}`, true},
		"fingerprinted as JSON":  {"fingerprint json", "{ \"b\" : 1.0,\r\n\"a\":2 }\n", true},
		"of the largest size":    {"max_request_body 1KiB", strings.Repeat("x", 1024), true},
		"empty":                  {"", "", true},
		"too large for the key":  {"mode webhook\nkey json /id\nmax_request_body 10", binary, false},
		"too large for a digest": {"mode webhook\nkey header Idempotency-Key\nfingerprint body\nmax_request_body 10", binary, false},
		"too large without key":  {"key header X-Absent\nmax_request_body 10", binary, false},
	} {
		t.Run(name, func(t *testing.T) {
			address, _ := echo(t)
			s := serve(t, "dedup {", c.dedup, "}", "reverse_proxy "+address)
			if first := s.mustPost("k", c.body); first.status != 201 || first.body != c.body {
				t.Errorf("the upstream got %d bytes, %d were sent", len(first.body), len(c.body))
			}
			if again := s.mustPost("k", c.body); (again.header.Get("Idempotent-Replayed") != "") != c.replayed {
				t.Errorf("the duplicate got %+v", again)
			}
		})
	}
}

// What a request has taken of the budget is given back when it is answered.
func TestHandlerGivesItsBudgetBack(t *testing.T) {
	address, _ := startUpstream(t, answers(201, strings.Repeat("x", 50_000)))
	s := serveWith(t, "limits {\nbuffered 400KiB\n}", "dedup", "reverse_proxy "+address)
	for n := range 20 {
		key := string(rune('a' + n))
		for range 2 {
			if got := s.mustPost(key, strings.Repeat("y", 50_000)); got.status != 201 || len(got.body) != 50_000 {
				t.Fatalf("request %d got %d with %d bytes", n, got.status, len(got.body))
			}
		}
	}
}

// What the inner one of two dedups has read of a body, the outer one holds no more.
func TestBodyIsHeldOnceByTwoDedups(t *testing.T) {
	address, _ := startUpstream(t, answers(201, ""))
	s := serveWith(t, "limits {\nbuffered 1MiB\n}", "route {", "dedup", "dedup {\nscope shared another\n}", "reverse_proxy "+address, "}")
	if got := s.mustPost("k", strings.Repeat("x", 600<<10)); got.status != 201 {
		t.Errorf("the only request got %+v", got)
	}
}

// largeAnswers answers with more than the kernel's buffers take.
func largeAnswers(w http.ResponseWriter, _ *http.Request, _ int) {
	for range 8 << 10 {
		if _, err := io.WriteString(w, strings.Repeat("x", 1024)); err != nil {
			return
		}
	}
}

// A client that reads nothing keeps no store open, whatever it is answered with: the
// response of its own run, that of another one, what does not fit, or an error page.
func TestSlowClientKeepsNoStoreOpen(t *testing.T) {
	pages, _ := startUpstream(t, largeAnswers)
	for name, site := range map[string][]string{
		"kept":       {"dedup {", "max_response_body 16MiB", "}"},
		"not kept":   {"dedup {", "max_response_body 1MiB", "}"},
		"error page": {"dedup {", "max_response_body 16MiB", "on_duplicate conflict", "wait off", "}", "handle_errors {", "reverse_proxy " + pages, "}"},
	} {
		t.Run(name, func(t *testing.T) {
			address, runs := startUpstream(t, largeAnswers)
			s := serve(t, append(site, "reverse_proxy "+address)...)
			var clients []net.Conn
			for range 3 {
				conn, err := net.Dial("tcp", s.Listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				clients = append(clients, conn)
				fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: dedup.test\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n")
			}
			defer func() {
				for _, conn := range clients {
					conn.Close()
				}
			}()
			for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
				users := 0
				for _, store := range stores.All() {
					users += store.UsedBy() - 1 // it is in itself
					store.Leave()
				}
				if runs.Load() == 1 && users == 1 { // the configuration
					return
				}
				if time.Now().After(deadline) {
					t.Fatalf("the store has %d users, the upstream had %d runs", users, runs.Load())
				}
			}
		})
	}
}

// `header` replaces in place what a handler in front has set, which is then a part of the response. What one in front
// replaces for a client reaches neither the kept response nor another client's.
func TestReplacedHeaders(t *testing.T) {
	address, _ := startUpstream(t, answers(201, ""))
	s := serve(t, "route {", "header X-Site one", "header >X-Own 1 11", "dedup", "header X-Site one two", "reverse_proxy "+address, "}")
	for range 3 {
		if got := s.mustPost("k", "{}"); got.header.Get("X-Site") != "two" || got.header.Get("X-Own") != "11" {
			t.Errorf("a client gets %v", got.header)
		}
	}
}
