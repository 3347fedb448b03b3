package integration

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// dialStalled connects a client that reads nothing, as a phone does that has lost its
// network: the system takes a few kilobytes for it.
func dialStalled(t *testing.T, p *caddy) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	return conn
}

// stalled sends a request and reads nothing of the answer.
func stalled(t *testing.T, p *caddy, key string) net.Conn {
	t.Helper()
	conn := dialStalled(t, p)
	request := "POST / HTTP/1.1\r\nHost: dedup.test\r\nIdempotency-Key: " + key + "\r\nContent-Length: 4\r\n\r\nbody"
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	return conn
}

// slowly has a client read on, and for longer than any test lasts. Its system takes a few
// kilobytes for it, and so it acknowledges some each second.
func slowly(conn net.Conn) {
	go func() {
		for {
			if _, err := io.CopyN(io.Discard, conn, 96<<10); err != nil {
				return // the test has closed it
			}
			time.Sleep(time.Second)
		}
	}()
}

// answersLarge answers with so many bytes, in pieces that are flushed.
func answersLarge(size int) answering {
	return func(w http.ResponseWriter, _ *http.Request, n run) {
		line := n.text() + strings.Repeat(".", 1024-len(n.text()))
		for range size / 1024 {
			if _, err := io.WriteString(w, line); err != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
	}
}

// A client that takes nothing decides nothing: the run ends with its upstream, and its
// duplicates are answered while that client stalls.
func TestStalledClientHoldsUpNobody(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answersLarge(largeSize))
	p := start(t, conf{store: "store file", site: lines(dedupBlock("max_response_body 16MiB"), proxyTo(up))})
	stalled(t, p, "k")
	up.awaitRuns(t, "k", 1)
	if got := p.post(t, "/", "k", "body"); got.Status != 200 || len(got.Body) != largeSize || !got.replayed() {
		t.Errorf("the duplicate got %d with %d bytes, replayed: %v", got.Status, len(got.Body), got.replayed())
	}
	up.wantRuns(t, "k", 1)
}

// A download that is larger than is kept goes on for longer than the run's time limit.
func TestLongDownloadIsNotCut(t *testing.T) {
	t.Parallel()
	const pieces = 30
	up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, n run) {
		for range pieces {
			if _, err := io.WriteString(w, strings.Repeat("x", 64<<10)); err != nil {
				return
			}
			w.(http.Flusher).Flush()
			time.Sleep(100 * time.Millisecond) // the pace of the upstream
		}
	})
	p := start(t, conf{store: "store memory", dedup: limits("in_flight 1"), site: lines(dedupBlock("max_response_body 100KiB", "timeout 1s", "lease 1s"), proxyTo(up))})
	download := p.postLater("/", "k", "body")
	up.awaitRuns(t, "k", 1)
	eventually(t, "its place is free", func() bool { return p.post(t, "/", "other", "").Status == 200 })
	got := download.reply(t)
	if len(got.Body) != pieces*(64<<10) {
		t.Errorf("the client got %d of %d bytes", len(got.Body), pieces*(64<<10))
	}
	wantProblem(t, p.post(t, "/", "k", "body"), 409, "response_not_kept")
	up.wantRuns(t, "k", 1)
}
