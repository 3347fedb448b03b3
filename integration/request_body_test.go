package integration

import (
	"bytes"
	"strings"
	"testing"
)

func TestBodyReachesTheUpstreamByteForByte(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines(dedupBlock("max_request_body 1KiB", "fingerprint json"), proxyTo(up))})
	for key, body := range map[string]string{
		"empty":  "",
		"json":   "{ \"b\" : 1.0,\r\n\"a\":2 }\n",
		"binary": "\x00\x01\xff\r\n\r\n",
		"limit":  strings.Repeat("x", 1024),
	} {
		wantFresh(t, p.post(t, "/", key, body), 201, "run 1 of "+key)
		if got := up.nth(t, key, 1).Body; got != body {
			t.Errorf("%s: the upstream got %q, want %q", key, got, body)
		}
	}
}

func TestOversizeRequest(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines(
		"handle /none {", dedupBlock("max_request_body 1KiB", "fingerprint none"), proxyTo(up), "}",
		"handle /hook {", dedupBlock("max_request_body 1KiB", "mode webhook", "fingerprint body"), proxyTo(up), "}",
		"handle {", dedupBlock("max_request_body 1KiB"), proxyTo(up), "}")})
	large := strings.Repeat("x", 1025)

	t.Run("is refused in api mode", func(t *testing.T) {
		wantProblem(t, p.post(t, "/", "api", large), 413, "request_too_large")
		up.wantRuns(t, "api", 0)
		wantFresh(t, p.post(t, "/", "api", "small"), 201, "run 1 of api")
	})
	t.Run("is refused without a length too", func(t *testing.T) {
		chunked := append([]byte("POST / HTTP/1.1\r\nHost: raw.test\r\nConnection: close\r\nIdempotency-Key: chunked\r\n"+
			"Transfer-Encoding: chunked\r\n\r\n"), bytes.Repeat([]byte("200\r\n"+strings.Repeat("x", 512)+"\r\n"), 5)...)
		wantProblem(t, p.sendRaw(t, append(chunked, "0\r\n\r\n"...)), 413, "request_too_large")
		up.wantRuns(t, "chunked", 0)
	})
	t.Run("passes as missing in webhook mode", func(t *testing.T) {
		for n := range 2 {
			got := p.post(t, "/hook", "hook", large)
			if got.Status != 201 || got.replayed() {
				t.Errorf("got %d %v, want it passed", got.Status, got.Header)
			}
			up.wantRuns(t, "hook", n+1)
			if body := up.nth(t, "hook", n+1).Body; body != large {
				t.Errorf("the upstream got %d bytes, want %d", len(body), len(large))
			}
		}
	})
	t.Run("passes without a key", func(t *testing.T) {
		got := p.post(t, "/", "", large)
		if all := up.runs(""); got.Status != 201 || len(all) != 1 || all[0].Body != large {
			t.Errorf("got %d after %d runs, want it passed whole", got.Status, len(all))
		}
	})
	t.Run("is deduplicated where nothing needs the body", func(t *testing.T) {
		first := p.post(t, "/none", "none", large)
		wantFresh(t, first, 201, "run 1 of none")
		if body := up.nth(t, "none", 1).Body; body != large {
			t.Errorf("the upstream got %d bytes, want %d", len(body), len(large))
		}
		wantReplay(t, p.post(t, "/none", "none", large), first)
		up.wantRuns(t, "none", 1)
	})
}

// A client that writes all of its body before it reads would find its
// connection broken if the answer came without the body having been read.
func TestRefusalReachesAClientThatStillSends(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines(
		"handle /strict {", dedupBlock("on_missing reject"), proxyTo(up), "}",
		"handle {", "dedup", proxyTo(up), "}")})
	large := bytes.Repeat([]byte("x"), 20<<20)

	wantProblem(t, p.sendRaw(t, rawPost("/", large, "Idempotency-Key: k")), 413, "request_too_large")
	wantProblem(t, p.sendRaw(t, rawPost("/strict", large)), 400, "idempotency_key_missing")
	wantProblem(t, p.sendRaw(t, rawPost("/", large, `Idempotency-Key: "broken`)), 400, "idempotency_key_invalid")
	if len(up.all()) > 0 {
		t.Error("a refused request reached the upstream")
	}
}

// The proxy answers `Expect: 100-continue` once; a second one from the way to
// the upstream would be taken for the answer.
func TestExpectationIsAnsweredOnce(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines("dedup", proxyTo(up))})
	got := p.sendRaw(t, rawPost("/", []byte("body"), "Idempotency-Key: k", "Expect: 100-continue"))
	// http.ReadResponse shows the 100; what follows is the answer.
	if got.Status != 100 && got.Status != 201 {
		t.Errorf("got %d", got.Status)
	}
	up.awaitRuns(t, "k", 1)
	if v, ok := up.nth(t, "k", 1).Header["Expect"]; ok {
		t.Errorf("the upstream got Expect %q", v)
	}
}
