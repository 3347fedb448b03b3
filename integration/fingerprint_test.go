package integration

import (
	"testing"
)

func TestReusedKeyIsRefused(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store string) {
		g := newGate(t)
		up := startUpstream(t, g.before(answers201))
		p := start(t, conf{store: store, site: lines("dedup", proxyTo(up))})

		pending := p.postLater("/pay?a=1", "k", "body")
		id := up.awaitRuns(t, "k", 1).Header.Get("Dedup-Execution-Id")
		refuse := func() {
			t.Helper()
			for path, body := range map[string]string{"/pay?a=1": "another body", "/pay?a=2": "body", "/pay": "body"} {
				if said := wantProblem(t, p.post(t, path, "k", body), 422, "idempotency_key_reused"); said.ExecutionID != id {
					t.Errorf("the refusal names execution %q, the key is that of %q", said.ExecutionID, id)
				}
			}
		}
		refuse() // in flight
		g.open()
		first := pending.reply(t)
		wantFresh(t, first, 201, "run 1 of k")
		refuse() // complete
		wantReplay(t, p.post(t, "/pay?a=1", "k", "body"), first)
		up.wantRuns(t, "k", 1)
	})
}

func TestContentTypeIsNotPartOfTheFingerprint(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines("dedup", proxyTo(up))})
	first := p.post(t, "/", "k", "{}", header("Content-Type", "application/json"))
	wantReplay(t, p.post(t, "/", "k", "{}", header("Content-Type", "application/json; charset=utf-8")), first)
}

func TestJSONFingerprint(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines(dedupBlock("fingerprint json"), proxyTo(up))})
	first := p.post(t, "/", "k", `{"amount":100,"to":{"name":"a","id":12345678901234567}}`)
	wantReplay(t, p.post(t, "/", "k", "{ \"to\": {\"id\":12345678901234567, \"name\":\"\\u0061\"},\n\"amount\": 100 }"), first)
	for _, other := range []string{
		`{"amount":101,"to":{"name":"a","id":12345678901234567}}`,
		`{"amount":100,"to":{"name":"a","id":12345678901234568}}`, // alike as a double
		`{"amount":100,"to":{"name":" a","id":12345678901234567}}`,
		`{"amount":100}`,
	} {
		wantProblem(t, p.post(t, "/", "k", other), 422, "idempotency_key_reused")
	}

	// What is not JSON counts by its bytes.
	text := p.post(t, "/", "text", "a=1&b=2")
	wantReplay(t, p.post(t, "/", "text", "a=1&b=2"), text)
	wantProblem(t, p.post(t, "/", "text", "b=2&a=1"), 422, "idempotency_key_reused")
}

func TestNoFingerprint(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines(
		"handle /hook {", dedupBlock("mode webhook"), proxyTo(up), "}",
		"handle {", dedupBlock("fingerprint none"), proxyTo(up), "}")})
	for _, path := range []string{"/", "/hook"} {
		first := p.post(t, path+"?a=1", "k"+path, "body")
		wantReplay(t, p.post(t, path+"?a=2", "k"+path, "another"), first)
		up.wantRuns(t, "k"+path, 1)
	}
}

func TestReleasedKeyTakesAnyFingerprint(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, inTurn(answersStatus(500), answers201))
	p := start(t, conf{store: "store memory", site: lines("dedup", proxyTo(up))})
	wantFresh(t, p.post(t, "/", "k", "body"), 500, "run 1 of k")
	wantFresh(t, p.post(t, "/", "k", "corrected body"), 201, "run 2 of k")
	wantProblem(t, p.post(t, "/", "k", "body"), 422, "idempotency_key_reused")
}

func TestChangeOfWhatIsExcludedRefusesNoRetry(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	site := func(exclude string) string { return lines(dedupBlock("fingerprint json", exclude), proxyTo(up)) }
	p := start(t, conf{store: "store file", site: site("exclude /sent_at")})
	first := p.post(t, "/", "k", `{"a": 1, "sent_at": 1, "try": 1}`)
	p.reload(t, site("exclude /sent_at /try"))
	wantReplay(t, p.post(t, "/", "k", `{"a": 1, "sent_at": 2, "try": 2}`), first)
	second := p.post(t, "/", "k2", `{"a": 1, "sent_at": 1, "try": 1}`)
	wantReplay(t, p.post(t, "/", "k2", `{"a": 1, "sent_at": 2, "try": 2}`), second)
	wantProblem(t, p.post(t, "/", "k2", `{"a": 2, "sent_at": 1, "try": 1}`), 422, "idempotency_key_reused")
	p.reload(t, site("exclude /try /sent_at"))
	wantProblem(t, p.post(t, "/", "k2", `{"a": 2, "sent_at": 1, "try": 1}`), 422, "idempotency_key_reused")
}
