//go:build !race

// The race detector makes each allocation larger, and requests so slow that fewer of them share the
// deadline of an operation.

package caddymodule

import (
	"bytes"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// What a request costs does not depend on the machine. Beyond the same request without
// the handler, through a real reverse_proxy, it stays within these bounds: allocations,
// and bytes of them. A duplicate is spared the proxy, and costs less than it does.
func TestRequestsAllocateLittle(t *testing.T) {
	proxy := "reverse_proxy " + canned(t)
	newKey := func(n int) string { return "key " + strconv.Itoa(n) }
	for name, c := range map[string]struct {
		key                func(n int) string
		allocations, bytes float64
	}{
		"without a key":  {func(int) string { return "" }, 5.5, 1300},
		"first delivery": {newKey, 56.5, 10_800},
		"duplicate":      {func(int) string { return "one key" }, -95, -5000},
	} {
		t.Run(name, func(t *testing.T) {
			var plainAllocations, plainBytes float64
			t.Run("without the handler", func(t *testing.T) {
				plainAllocations, plainBytes = cost(serve(t, "dedup /elsewhere", proxy).Config.Handler, c.key)
			})
			allocations, bytes := cost(serve(t, "dedup", proxy).Config.Handler, c.key)
			t.Logf("%.1f allocations and %.0f bytes; %.1f and %.0f without the handler", allocations, bytes, plainAllocations, plainBytes)
			if allocations > plainAllocations+c.allocations {
				t.Errorf("%.1f allocations more than the %.1f without the handler; want at most %v more", allocations-plainAllocations, plainAllocations, c.allocations)
			}
			if bytes > plainBytes+c.bytes {
				t.Errorf("%.0f bytes more than the %.0f without the handler; want at most %v more", bytes-plainBytes, plainBytes, c.bytes)
			}
		})
	}
}

// cost returns how often and how much the process allocates for one request, on average.
func cost(handler http.Handler, key func(n int) string) (allocations, bytes float64) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // nothing but the requests goes on
	const warm, runs = 100, 1000
	var before, after runtime.MemStats
	for n := range warm + runs {
		if n == warm {
			runtime.ReadMemStats(&before)
		}
		post(handler, key(n))
	}
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / runs, float64(after.TotalAlloc-before.TotalAlloc) / runs
}

// canned is a service that answers [post] with 512 bytes, and allocates nothing for it:
// what it costs is not the proxy's.
func canned(t *testing.T) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	answer := []byte("HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 512\r\n\r\n" + strings.Repeat("x", 512))
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				request := make([]byte, 64<<10)
				for n := 0; ; {
					got, err := conn.Read(request[n:])
					if err != nil {
						return
					}
					n += got
					if _, body, headed := bytes.Cut(request[:n], []byte("\r\n\r\n")); headed && len(body) == len(posted) {
						n = 0
						if _, err := conn.Write(answer); err != nil {
							return
						}
					}
				}
			}()
		}
	}()
	return listener.Addr().String()
}
