package caddymodule

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// rawUpstream is a service that speaks for itself: what is to be seen here no server of
// Go's would send. It counts its runs, and closes each connection behind its answer.
func rawUpstream(t *testing.T, serve func(conn net.Conn)) (address string, runs *atomic.Int64) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	runs = new(atomic.Int64)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			runs.Add(1)
			go func() {
				defer conn.Close()
				serve(conn)
			}()
		}
	}()
	return listener.Addr().String(), runs
}

// afterRequest answers a request of HTTP with a text.
func afterRequest(text string) func(net.Conn) {
	return func(conn net.Conn) {
		r, err := http.ReadRequest(bufio.NewReader(conn))
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, r.Body) // what is unread at the end resets the connection
		_, _ = io.WriteString(conn, text)
	}
}

// The types of FastCGI's records (FastCGI Specification, section 8).
const fcgiEndRequest, fcgiStdin, fcgiStdout = 3, 5, 6

// fastCGI answers a request of FastCGI with a text: as far as withhold bytes before the
// end of its record, and with the record that ends a request only if ends is set.
func fastCGI(text string, withhold int, ends bool) func(net.Conn) {
	return func(conn net.Conn) {
		from := bufio.NewReader(conn)
		for {
			head := make([]byte, 8)
			if _, err := io.ReadFull(from, head); err != nil {
				return
			}
			length, padding := binary.BigEndian.Uint16(head[4:]), head[6]
			if _, err := io.CopyN(io.Discard, from, int64(length)+int64(padding)); err != nil {
				return
			}
			if head[1] == fcgiStdin && length == 0 {
				break
			}
		}
		answer := fcgiRecord(fcgiStdout, text)
		if answer = answer[:len(answer)-withhold]; ends {
			answer = append(answer, fcgiRecord(fcgiStdout, "")...)
			answer = append(answer, fcgiRecord(fcgiEndRequest, "\x00\x00\x00\x00\x00\x00\x00\x00")...)
		}
		_, _ = conn.Write(answer)
	}
}

func fcgiRecord(kind byte, content string) []byte {
	record := []byte{1, kind, 0, 1, 0, 0, 0, 0}
	binary.BigEndian.PutUint16(record[4:], uint16(len(content)))
	return append(record, content...)
}

// http2Upstream is [upstream] over HTTP/2 without TLS.
func http2Upstream(t *testing.T, serve http.HandlerFunc) (address string, runs *atomic.Int64) {
	t.Helper()
	runs = new(atomic.Int64)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
		serve(w, r)
	}))
	startHTTP2(server)
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://"), runs
}
