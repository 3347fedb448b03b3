package integration

import (
	"strings"
	"testing"
)

func TestKeyInAJSONMember(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: onPaths(up, map[string]string{
		"/id":      dedupBlock("key json /id", "fingerprint none"),
		"/deep":    dedupBlock("key json /a~1b/0/m~0n", "fingerprint none"),
		"/reject":  dedupBlock("key json /id", "on_missing reject"),
		"/body":    dedupBlock("key json /id"),
		"/webhook": dedupBlock("mode webhook", "key json /id"),
	})})
	wantKeys(t, p, "/id",
		bodies(`{"id":"7"}`, `{"x":1,"id":"\u0037"}`, ` {"\u0069d":"7"}`),
		bodies(`{"id":7}`, `{"id":7.0,"x":1}`, `{"id":70e-1}`),
		bodies(`{"id":"7.0"}`),
		bodies(`{"id":" 7"}`),
		bodies(`{"id":-7}`),
		bodies(`{"id":0}`, `{"id":-0}`, `{"id":0.0}`),
		bodies(`{"id":9007199254740992}`),
		bodies(`{"id":9007199254740993}`, `{"id":9007199254740993.0}`),
		bodies(`{"id":123456789012345678901234567890}`),
		bodies(`{"id":123456789012345678901234567891}`),
		bodies(`{"id":"9007199254740993"}`),
		bodies(`{"id":"ü"}`, `{"id":"\u00fc"}`),
		bodies(`{"id":"u\u0308"}`),
		bodies(`{"id":"null"}`),
	)
	wantKeys(t, p, "/deep", bodies(`{"a/b":[{"m~n":"1"}]}`, `{"a/b":[{"m~n":"1"},{"m~n":"2"}]}`), bodies(`{"a/b":[{"m~n":1}]}`))

	none := bodies(``, `{}`, `{"ID":"7"}`, `{"id":null}`, `{"id":{}}`, `{"id":{"id":"7"}}`, `{"id":[]}`, `{"id":["7"]}`,
		`{"id":true}`, `{"id":false}`, `{"id":""}`, `[]`, `"7"`, `7`, `null`,
		`{"id":"`+strings.Repeat("k", 256)+`"}`)
	broken := bodies(`{"id":"7"`, `{"id":"7"}}`, `{"id":"7"}{}`, `{"id":"7",}`, `{'id':'7'}`, `id=7`, "{\"id\":\"\xff\"}",
		`{"id":"7","id":"8"}`, `{"id":"7","x":`+strings.Repeat("[", 20_000)+strings.Repeat("]", 20_000)+`}`)
	wantNoKey(t, p, up, "/id", none, broken)
	wantNoKey(t, p, up, "/webhook", none, broken)
	before := len(up.all())
	for _, s := range append(none, broken...) {
		wantProblem(t, p.send(t, "/reject", s), 400, "idempotency_key_missing")
	}
	if ran := len(up.all()) - before; ran != 0 {
		t.Errorf("the upstream got %d requests that were refused", ran)
	}

	// The ID alone is the key: other content under it is another request, to an API.
	wantKeys(t, p, "/body", bodies(`{"id":"7","n":1}`))
	wantProblem(t, p.send(t, "/body", sent{body: `{"id":"7","n":2}`}), 422, "idempotency_key_reused")
	wantKeys(t, p, "/webhook", bodies(`{"id":"7","n":1}`, `{"id":"7","n":2}`))
}

func TestKeyOfAText(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: onPaths(up, map[string]string{
		"/id":     dedupBlock("key value {http.request.uri.query.id}"),
		"/two":    dedupBlock("key value {http.request.uri.query.a}-{http.request.uri.query.b}", "fingerprint none"),
		"/scope":  dedupBlock("scope {no.such.scope} {http.request.host}"),
		"/reject": dedupBlock("key value {http.request.uri.query.id}", "on_missing reject"),
		"/bogus":  dedupBlock("key value x{http.request.uri.query.id}{no.such.placeholder}"),
	})})
	wantKeys(t, p, "/id", queries("id=1"), queries("id=2"), queries("id=%C3%BC"), queries("id=%20"), queries("id="+strings.Repeat("k", 255)))
	none := queries("", "id=", "ID=1", "id=%FF", "id="+strings.Repeat("k", 256))
	wantNoKey(t, p, up, "/id", none)
	for _, s := range none {
		wantProblem(t, p.send(t, "/reject", s), 400, "idempotency_key_missing")
	}
	// The fingerprint covers the query.
	wantProblem(t, p.send(t, "/id", sent{query: "id=1&x=1", body: "body"}), 422, "idempotency_key_reused")

	wantKeys(t, p, "/two", queries("a=1&b=2", "b=2&a=1"), queries("a=2&b=1"), queries("a=-&b=-"))
	wantNoKey(t, p, up, "/two", queries("", "a=1", "b=2", "a=&b=2", "a=1&b="))
	wantNoKey(t, p, up, "/bogus", queries("id=1", "id=2"))
	p.post(t, "/scope", "k", "body")
	p.post(t, "/scope", "l", "body")
	for _, name := range []string{"{no.such.placeholder}", "{no.such.scope}"} {
		unknown := func(e entry) bool { return e.text("level") == "warn" && e.text("placeholder") == name }
		p.awaitLog(t, "the unknown placeholder "+name, unknown)
		if n := len(p.log.find(unknown)); n != 1 {
			t.Errorf("%s is warned of %d times, want once", name, n)
		}
	}
	if known := p.log.find(func(e entry) bool { return strings.Contains(e.text("placeholder"), "query") }); len(known) > 0 {
		t.Errorf("warned of a placeholder that Caddy knows: %v", known)
	}
}

func TestKeyOfParts(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	parts := func(l ...string) string { return lines("key parts orders {", lines(l...), "}", "fingerprint none") }
	p := start(t, conf{store: "store memory", site: onPaths(up, map[string]string{
		"/two":  dedupBlock(parts("json /a", "json /b")),
		"/one":  dedupBlock(parts("json /a")),
		"/all":  dedupBlock(parts("header X-Tenant", "json /a", "value {http.request.uri.query.q}")),
		"/hook": dedupBlock("mode webhook", parts("header X-Tenant", "json /a", "value {http.request.uri.query.q}")),
		"/body": dedupBlock("key parts orders {", "header X-Tenant", "content", "}"),
	})})
	wantKeys(t, p, "/two",
		bodies(`{"a":"1","b":"23"}`, `{"b":"23","a":"1","c":0}`),
		bodies(`{"a":"12","b":"3"}`),
		bodies(`{"a":"23","b":"1"}`),
		bodies(`{"a":1,"b":"23"}`),
		bodies(`{"a":"1","b":23}`),
		bodies(`{"a":1,"b":23}`),
	)
	wantKeys(t, p, "/one", bodies(`{"a":"123"}`))
	wantNoKey(t, p, up, "/two", bodies(``, `{}`, `{"a":"1"}`, `{"b":"23"}`, `{"a":"1","b":null}`, `{"a":"1","b":""}`, `{"a":"1","b":"2"`))

	tenant := func(value, query, body string) sent {
		return sent{query, body, []option{header("X-Tenant", value)}}
	}
	for _, path := range []string{"/all", "/hook"} {
		wantKeys(t, p, path,
			[]sent{tenant("t", "q=1", `{"a":"x"}`), tenant(`"t"`, "x=0&q=1", `{"a":"x","z":1}`)},
			[]sent{tenant("t", "q=2", `{"a":"x"}`)}, []sent{tenant("u", "q=1", `{"a":"x"}`)}, []sent{tenant("x", "q=1", `{"a":"t"}`)})
		wantNoKey(t, p, up, path, []sent{
			{query: "q=1", body: `{"a":"x"}`}, tenant("t", "", `{"a":"x"}`), tenant("t", "q=1", `{}`), tenant("t", "q=1", ``), tenant("t", "q=", `{"a":"x"}`),
		})
	}
	// One part that is invalid makes the whole so.
	wantProblem(t, p.send(t, "/all", tenant("", "q=1", `{"a":"x"}`)), 400, "idempotency_key_invalid")
	wantNoKey(t, p, up, "/hook", []sent{tenant("", "q=1", `{"a":"x"}`)})

	wantKeys(t, p, "/body",
		[]sent{tenant("t", "", `{"a":1,"b":2}`), tenant("t", "", `{"b":2,"a":1}`)}, []sent{tenant("t", "", `{"a":1}`)}, []sent{tenant("u", "", `{"a":1}`)})
	wantNoKey(t, p, up, "/body", bodies(`{"a":1}`), []sent{tenant("t", "", "")})
}

func TestFirstSourcePresentWins(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	two := lines("key header X-Id", "key json /id")
	p := start(t, conf{store: "store memory", site: onPaths(up, map[string]string{
		"/api":    dedupBlock(two, "fingerprint none"),
		"/hook":   dedupBlock("mode webhook", two),
		"/github": lines("dedup github {", "key header X-Id", "key json /id", "}"),
	})})
	id := func(value, body string) sent { return sent{"", body, []option{header("X-Id", value)}} }
	for _, path := range []string{"/api", "/hook"} {
		wantKeys(t, p, path,
			[]sent{id("1", `{"id":"2"}`), id("1", `{"id":"3"}`), id("1", ``)},
			[]sent{id("2", `{"id":"1"}`)},
			bodies(`{"id":"1"}`),
			bodies(`{"id":"2"}`),
		)
		wantNoKey(t, p, up, path, bodies(``, `{}`))
	}
	// A header that is there and invalid is not passed over.
	for _, value := range []string{"", `"`, "ü", strings.Repeat("k", 256)} {
		wantProblem(t, p.send(t, "/api", id(value, `{"id":"4"}`)), 400, "idempotency_key_invalid")
		wantNoKey(t, p, up, "/hook", []sent{id(value, `{"id":"4"}`)})
	}

	gitHub := func(delivery string, more ...option) sent {
		return sent{"", `{"id":"9"}`, append(more, header("X-GitHub-Delivery", delivery))}
	}
	wantKeys(t, p, "/github",
		[]sent{gitHub("1", header("X-Id", "a")), gitHub("1"), gitHub("1", header("X-Id", "b"))},
		[]sent{gitHub("2", header("X-Id", "a"))},
		[]sent{id("a", `{"id":"9"}`)},
		[]sent{id("1", `{"id":"9"}`)},
		bodies(`{"id":"9"}`),
	)
}

// A key is of its kind of source and of its prefix.
func TestPrefixesKeepKeysApart(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: onPaths(up, map[string]string{
		"/apart":    dedupBlock("key header X-A", "key header X-B", "key json /id", "key value {http.request.uri.query.id}", "fingerprint none"),
		"/prefixed": dedupBlock("key header X-A one", "key header X-B two", "fingerprint none"),
		"/together": dedupBlock("key header X-A same", "key header X-B same", "key json /id same", "fingerprint none"),
	})})
	wantKeys(t, p, "/apart", headers("X-A", "1"), headers("X-B", "1"), bodies(`{"id":"1"}`), queries("id=1"))
	wantKeys(t, p, "/prefixed", headers("X-A", "1"), headers("X-B", "1"))
	wantKeys(t, p, "/together", append(headers("X-A", "1"), headers("X-B", "1")...), bodies(`{"id":"1"}`))
}
