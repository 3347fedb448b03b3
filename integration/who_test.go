package integration

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// Whoever got a refusal knows the execution ID of the run in flight. It earns a refusal while
// that is in flight, under hold too, and nothing after that.
func TestEchoedExecutionIDOpensNothing(t *testing.T) {
	t.Parallel()
	for _, unknown := range []string{"release", "hold"} {
		g := newGate(t)
		up := startUpstream(t, g.before(answers201))
		p := start(t, conf{store: "store memory", site: lines(dedupBlock("wait off", "on_unknown "+unknown), proxyTo(up))})
		first := p.postLater("/", "k", "body")
		up.awaitRuns(t, "k", 1)
		refused := p.post(t, "/", "k", "body", header("Dedup-Execution-Id", "00000000-0000-7000-8000-000000000000"))
		wantProblem(t, refused, 409, "request_in_flight")
		echoed := header("Dedup-Execution-Id", refused.executionID())
		wantProblem(t, p.post(t, "/", "k", "body", echoed), 508, "loop_detected")
		g.open()
		done := first.reply(t)
		wantFresh(t, done, 201, "run 1 of k")
		wantReplay(t, p.post(t, "/", "k", "body", echoed), done)
		up.wantRuns(t, "k", 1)
		wantFresh(t, p.post(t, "/", "another", "body", echoed), 201, "run 1 of another")
	}
}

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

// A forged delivery that the upstream refuses answers nobody else: the genuine one
// that waited beside it runs.
func TestForgedDeliveryDoesNotAnswerTheGenuineOne(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store string) {
		for _, status := range []int{401, 403} {
			forgedCame := newGate(t)
			up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
				if r.Header.Get("X-Signature") != "genuine" {
					<-forgedCame.opened
					w.WriteHeader(status)
					return
				}
				answers201(w, r, n)
			})
			site := lines(dedupBlock("mode webhook", "key header Idempotency-Key"), proxyTo(up))
			p := start(t, conf{store: store, site: site})
			q := p
			if strings.Contains(store, "redis") {
				q = start(t, conf{store: store, site: site})
			}
			id := fmt.Sprint("event ", status)
			forged := p.postLater("/", id, "body", header("X-Signature", "forged"))
			up.awaitRuns(t, id, 1)
			genuine := append(p.postMany(2, "/", id, "body", header("X-Signature", "genuine")),
				q.postMany(2, "/", id, "body", header("X-Signature", "genuine"))...)
			q.awaitWaiting(t, 2, genuine...)
			forgedCame.open()
			if got := forged.reply(t); got.Status != status {
				t.Errorf("the forged delivery got %d", got.Status)
			}
			got := replies(t, genuine)
			allAlike(t, got)
			wantAnswer(t, got[0], 201, "run 2 of "+id)
			up.wantRuns(t, id, 2)
		}
	})
}
