package integration

import (
	"strings"
	"testing"
)

func TestKeyOfContent(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: onPaths(up, map[string]string{
		"/content":  dedupBlock("key content"),
		"/prefixed": dedupBlock("key header X-Id", "key content own"),
		"/exclude":  dedupBlock("key content", "exclude /sent_at /meta/attempt /items/1"),
		"/scoped":   dedupBlock("key content", "scope {http.request.orig_uri}"),
	})})
	// Documented: the query counts where the scope has it.
	wantKeys(t, p, "/content", []sent{{query: "a=1", body: "query"}, {query: "a=2", body: "query"}, {body: "query"}})
	wantKeys(t, p, "/scoped", []sent{{query: "a=1", body: "query"}}, []sent{{query: "a=2", body: "query"}}, []sent{{body: "query"}})
	wantKeys(t, p, "/content",
		bodies(`{"b":1,"a":[1,2]}`, `{"a":[1,2],"b":1}`, "\n{ \"a\" : [ 1 , 2 ],\t\"b\":1.0 }\n", `{"b":10e-1,"\u0061":[1,2]}`),
		bodies(`{"b":1,"a":[2,1]}`),
		bodies(`{"b":"1","a":[1,2]}`),
		bodies(`{"b":9007199254740992}`),
		bodies(`{"b":9007199254740993}`),
		bodies(`{"b":null}`),
		bodies(`{}`),
		bodies(`[]`),
		bodies(`null`, ` null `),
		bodies(`"b=1"`),
		bodies(`b=1`),
		bodies(`b=1 `),
		bodies(`{"b":1`),
		bodies(` {"b":1`),
		bodies(`{"b":1,"b":1}`),
		bodies(`{"b":1, "b":1}`),
		bodies("\x00\xff"),
		bodies(strings.Repeat("[", 20_000)+strings.Repeat("]", 20_000)),
		bodies(strings.Repeat("[", 20_001)+strings.Repeat("]", 20_001)),
	)
	wantNoKey(t, p, up, "/content", bodies(``))
	wantKeys(t, p, "/exclude",
		bodies(`{"id":1,"sent_at":1,"meta":{"attempt":1,"by":"a"},"items":["x","y","z"]}`,
			`{"id":1,"sent_at":{"deep":[2]},"meta":{"attempt":2,"by":"a"},"items":["x","other","z"]}`,
			`{"id":1,"meta":{"by":"a"},"items":["x",0,"z"]}`),
		bodies(`{"id":1,"sent_at":1,"meta":{"attempt":1,"by":"b"},"items":["x","y","z"]}`),
		bodies(`{"id":1,"sent_at":1,"meta":{"attempt":1,"by":"a"},"items":["x","y","w"]}`),
		bodies(`{"id":2,"sent_at":1}`, `{"id":2}`),
		bodies(`{"id":2,"inner":{"sent_at":1}}`),
		bodies(`{"id":2,"inner":{"sent_at":2}}`),
		bodies(`sent_at=1`),
		bodies(`sent_at=2`),
	)
	// Where the content stands in for a missing header, the fingerprint is none as well.
	wantKeys(t, p, "/prefixed", bodies(`{"b":1,"a":2}`, `{"a":2,"b":1}`), headers("X-Id", "1"))
	wantProblem(t, p.send(t, "/prefixed", sent{body: "other", options: []option{header("X-Id", "1")}}), 422, "idempotency_key_reused")
}

func TestFingerprintOfJSON(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: onPaths(up, map[string]string{
		"/json":    dedupBlock("fingerprint json"),
		"/exclude": dedupBlock("fingerprint json", "exclude /sent_at /meta/attempt"),
	})})
	same := map[string][]string{
		"/json":    {`{"a":1,"b":[1,2]}`, `{"b":[1,2],"a":1.0}`, "\t{\"a\":1, \"b\":[1,2]}"},
		"/exclude": {`{"a":1,"sent_at":1,"meta":{"attempt":1}}`, `{"meta":{"attempt":2},"sent_at":null,"a":1}`, `{"a":1,"meta":{}}`},
	}
	different := map[string][]string{
		"/json":    {`{"a":1,"b":[2,1]}`, `{"a":1}`, `{"a":"1","b":[1,2]}`, `a=1`, ``},
		"/exclude": {`{"a":2,"sent_at":1,"meta":{"attempt":1}}`, `{"a":1,"meta":{"by":"x"}}`, `{"a":1}`, `{"sent_at":1`},
	}
	for path, texts := range same {
		first := p.post(t, path, "k", texts[0])
		for _, body := range texts {
			wantReplay(t, p.post(t, path, "k", body), first)
		}
		for _, body := range different[path] {
			wantProblem(t, p.post(t, path, "k", body), 422, "idempotency_key_reused")
		}
	}
	// What is not JSON is compared by its bytes, also where the excluded is in it.
	first := p.post(t, "/exclude", "bytes", `{"sent_at":1`)
	wantReplay(t, p.post(t, "/exclude", "bytes", `{"sent_at":1`), first)
	wantProblem(t, p.post(t, "/exclude", "bytes", `{"sent_at":2`), 422, "idempotency_key_reused")
}

// Where content stands in for a missing header, the fingerprint that the header's keys have
// refuses no retry for what the content key leaves out.
func TestFingerprintBesideKeysOfContent(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: onPaths(up, map[string]string{
		"/body": dedupBlock("key header X-Id", "key content", "exclude /sent_at", "fingerprint body"),
		"/json": dedupBlock("key header X-Id", "key content", "exclude /sent_at", "fingerprint json"),
	})})
	for _, path := range []string{"/body", "/json"} {
		wantKeys(t, p, path, bodies(`{"a":1,"b":2,"sent_at":1}`, `{"a":1,"b":2,"sent_at":2}`, `{"b":2, "a":1}`), bodies(`a=1`))
		wantProblem(t, p.send(t, path, sent{query: "a=1", body: `{"a":1,"b":2}`}), 422, "idempotency_key_reused")
	}
	// A key of the header's own is compared byte by byte.
	wantKeys(t, p, "/body", []sent{{"", `{"a":1,"sent_at":1}`, []option{header("X-Id", "1")}}})
	wantProblem(t, p.send(t, "/body", sent{"", `{"a":1,"sent_at":2}`, []option{header("X-Id", "1")}}), 422, "idempotency_key_reused")
}

func TestBodyTooLargeForItsKey(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	limit := "max_request_body 1KiB"
	p := start(t, conf{store: "store memory", site: onPaths(up, map[string]string{
		"/json":    dedupBlock(limit, "key json /id"),
		"/content": dedupBlock(limit, "key content"),
		"/parts":   dedupBlock(limit, "key parts x {", "header X-Id", "json /id", "}"),
		"/header":  dedupBlock(limit, "key header X-Id", "fingerprint none"),
		"/hashed":  dedupBlock(limit, "key header X-Id"),
		"/or":      dedupBlock(limit, "key header X-Id", "key content", "fingerprint none"),
		"/hook":    dedupBlock(limit, "mode webhook", "key json /id"),
		"/strict":  dedupBlock(limit, "mode webhook", "on_missing reject", "key json /id"),
		"/github":  lines("dedup github {", limit, "}"),
		"/stripe":  lines("dedup stripe {", limit, "}"),
	})})
	fits := `{"id":"1","x":"` + strings.Repeat("x", 1024-17) + `"}`
	large := strings.Replace(fits, "x", "xx", 1)
	if len(fits) != 1024 || len(large) != 1025 {
		t.Fatalf("the bodies have %d and %d bytes", len(fits), len(large))
	}
	withID := func(body string) sent { return sent{"", body, []option{header("X-Id", "1")}} }
	for _, path := range []string{"/json", "/content", "/or", "/hook", "/stripe"} {
		wantKeys(t, p, path, bodies(fits))
	}
	before := len(up.all())
	for _, path := range []string{"/json", "/content", "/or"} {
		wantProblem(t, p.send(t, path, sent{body: large}), 413, "request_too_large")
	}
	for _, path := range []string{"/parts", "/hashed"} {
		wantProblem(t, p.send(t, path, withID(large)), 413, "request_too_large")
	}
	wantProblem(t, p.send(t, "/strict", sent{body: large}), 400, "idempotency_key_missing")
	if ran := len(up.all()) - before; ran != 0 {
		t.Errorf("the upstream got %d requests that were refused", ran)
	}
	wantNoKey(t, p, up, "/hook", bodies(large))
	wantNoKey(t, p, up, "/stripe", bodies(large))
	// Where no source needs the body, nor a fingerprint, it streams on.
	wantNoKey(t, p, up, "/header", bodies(large))
	wantNoKey(t, p, up, "/hashed", bodies(large))
	wantNoKey(t, p, up, "/parts", bodies(large))
	wantKeys(t, p, "/header", []sent{withID(large), withID(fits)})
	wantKeys(t, p, "/or", []sent{withID(large)})
	wantKeys(t, p, "/github", []sent{{"", large, []option{header("X-GitHub-Delivery", "1")}}})
	if ran := up.all(); ran[len(ran)-1].Body != large {
		t.Errorf("the upstream got %d bytes, want the %d that were sent", len(ran[len(ran)-1].Body), len(large))
	}
}
