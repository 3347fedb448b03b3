package caddymodule

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
)

// benchmarked returns a site's server with a line of the global option, and what a request
// costs it without its client and its upstream: the site answers by itself.
func benchmarked(b *testing.B, global string, lines ...string) http.Handler {
	b.Helper()
	s := serveWith(b, "limits {\nmemory_store 8GiB\n}\n"+global, append(lines, `respond "`+strings.Repeat("x", 512)+`" 201`)...)
	return s.Config.Handler
}

// posted is the body of [post].
const posted = `{"amount": 10}`

func post(handler http.Handler, key string) {
	r := httptest.NewRequest(http.MethodPost, "http://bench.test/payments", strings.NewReader(posted))
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	handler.ServeHTTP(httptest.NewRecorder(), r)
}

// BenchmarkRequests compares what one request costs the process: with the handler or
// without it, for the first time or again. The difference of the allocations is the
// handler's, the engine's and the store's.
func BenchmarkRequests(b *testing.B) {
	for name, c := range map[string]struct {
		lines  []string
		key    func(n int) string
		global string
	}{
		"plain":                         {[]string{"dedup /elsewhere"}, func(int) string { return "" }, ""},
		"without a key":                 {[]string{"dedup"}, func(int) string { return "" }, ""},
		"first delivery":                {[]string{"dedup"}, strconv.Itoa, ""},
		"first delivery without copies": {[]string{"dedup"}, strconv.Itoa, "local_copies off"},
		"duplicate":                     {[]string{"dedup"}, func(int) string { return "k" }, ""},
		"duplicate without copies":      {[]string{"dedup"}, func(int) string { return "k" }, "local_copies off"},
	} {
		b.Run(name, func(b *testing.B) {
			handler := benchmarked(b, c.global, c.lines...)
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				n++
				post(handler, c.key(n))
			}
		})
	}
}
