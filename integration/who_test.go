package integration

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

func TestClientsCannotSetOurHeaders(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines("dedup", proxyTo(up))})
	forged := []option{
		header("Dedup-Execution-Id", "00000000-0000-7000-8000-000000000000"), header("Dedup-Attempt", "9"),
		header("Dedup-Parent-Id", "x"), header("Dedup-Retention", "1"), header("Dedup-Anything", "x"), header("Dedup-Key", "00000000"),
	}
	requests := map[string][]option{"k": forged, "without key": forged, "GET": append(forged, method("GET"))}
	for name, options := range requests {
		key := ""
		if name == "k" {
			key = "k"
		}
		before := len(up.all())
		if got := p.post(t, "/", key, "", options...); got.Status != 201 {
			t.Fatalf("%s: got %d %q", name, got.Status, got.Body)
		}
		ran := up.all()[before:]
		if len(ran) != 1 {
			t.Fatalf("%s: the upstream ran it %d times, want once", name, len(ran))
		}
		for field, values := range ran[0].Header {
			if !strings.HasPrefix(strings.ToLower(field), "dedup-") {
				continue
			}
			ours := name == "k" && (field == "Dedup-Execution-Id" || field == "Dedup-Key")
			if !ours || len(values) != 1 || strings.HasPrefix(values[0], "00000000") {
				t.Errorf("%s: the upstream got %s %q", name, field, values)
			}
		}
	}
}

// A client's Connection must not take our fields from what goes to the upstream,
// and its trailers must not bring any.
func TestClientsCannotStripOrForgeOurFields(t *testing.T) {
	t.Parallel()
	trailers := make(chan http.Header, 1)
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		_, _ = io.Copy(io.Discard, r.Body)
		trailers <- r.Trailer.Clone()
		answers201(w, r, n)
	})
	for name, site := range map[string]string{
		"buffered": lines("dedup", proxyTo(up)),
		"streamed": lines(dedupBlock("fingerprint none", "max_request_body 1"), proxyTo(up)),
		"no key":   lines(dedupBlock("key header X-Absent"), proxyTo(up)),
	} {
		p := start(t, conf{store: "store memory", site: site})
		before := len(up.all())
		request := "POST / HTTP/1.1\r\nHost: raw.test\r\nIdempotency-Key: k\r\nTransfer-Encoding: chunked\r\n" +
			"Connection: close, Dedup-Execution-Id, dedup-attempt\r\nConnection: DEDUP-ANYTHING\r\n" +
			"Trailer: Dedup-Execution-Id, X-Fine\r\n\r\n" +
			"4\r\nbody\r\n0\r\nDedup-Execution-Id: forged\r\nX-Fine: 1\r\n\r\n"
		if got := p.sendRaw(t, []byte(request)); got.Status != 201 {
			t.Fatalf("%s: got %d %q", name, got.Status, got.Body)
		}
		ran := up.all()[before:]
		if len(ran) != 1 {
			t.Fatalf("%s: the upstream ran it %d times", name, len(ran))
		}
		if got := ran[0].Header.Get("Dedup-Execution-Id"); (got == "") != (name == "no key") || got == "forged" {
			t.Errorf("%s: the upstream got Dedup-Execution-Id %q", name, got)
		}
		for field, values := range <-trailers {
			if strings.HasPrefix(field, "Dedup-") {
				t.Errorf("%s: the upstream got the trailer %s %q", name, field, values)
			}
		}
	}
}
