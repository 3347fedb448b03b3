package caddymodule

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// passwordHash is bcrypt's of "open sesame", at its lowest cost.
const passwordHash = "$2a$04$uf76iymeUNTJnEhP70mn.eLvDOZNaERVsFNAoeUWIl9NCQiBTSOAO"

// basicAuth is the Authorization of a user with that password.
func basicAuth(name string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(name+":open sesame"))
}

func TestCallerAndRouteArePartOfTheKey(t *testing.T) {
	k := func(lines ...string) request { return with("", append(lines, "Idempotency-Key: k")...) }
	user := func(name string) request { return k("Authorization: " + basicAuth(name)) }
	checkKeys(t, map[string]keyed{
		"by default": {groups: [][]request{
			{k("/pay"), k("/pay", "X-Api-Key:"), k("/pay", "Cookie: a=1")}, // cookies are not part of the key
			{k("/pay", "Authorization: Bearer a")},
			{k("/pay", "Authorization: Bearer b")},
			{k("/pay", "X-Api-Key: a")},
			{k("/pay", "Authorization: Bearer a", "X-Api-Key: a")},
			{k("/pay", "Remote-User: a")},
			{k("/pay", "Host: a.test"), k("/pay", "Host: A.TEST.:80")},
			{k("/pay/"), k("/p%61y/"), k("/x/%2e%2E/./pay/"), k("/pay/.")},
			{k("/pay%2f"), k("/pay%2F")},
			{k("/pay", "PATCH")},
		}},
		// The credentials are removed in front, so that only the user's name tells.
		"a user": {
			site:   "route {\nbasic_auth {\nali " + passwordHash + "\neve " + passwordHash + "\n}\nrequest_header -Authorization\ndedup\nreverse_proxy {up}\n}",
			groups: [][]request{{user("ali")}, {user("eve")}},
		},
		"a caller of its own": {site: "caller {http.request.cookie.session} {http.dedup.json./user}\nfingerprint none", groups: [][]request{
			{k("Cookie: session=1"), k("Cookie: session=1; theme=dark")}, {k("Cookie: session=2")}, {k()},
			{k("Cookie: session=1", "Authorization: Bearer a")}, {k("Cookie: session=1", "/a")},
			{with(`{"user":"u"}`, "Cookie: session=1", "Idempotency-Key: k"), with(`{"user":"u","n":1}`, "Cookie: session=1", "Idempotency-Key: k")},
			{with(`{"user":"v"}`, "Cookie: session=1", "Idempotency-Key: k")},
		}},
		"shared keys": {
			site: "route /a {\ndedup {\nscope shared runs\nfingerprint none\n}\nreverse_proxy {up}\n}\nroute /b {\ndedup {\nscope shared runs\nfingerprint none\n}\nreverse_proxy {up}\n}\n" +
				"route /c {\ndedup {\nscope shared\nfingerprint none\n}\nreverse_proxy {up}\n}",
			groups: [][]request{{k("/a"), k("/b", "Authorization: Bearer a", "Host: b.test")}, {k("/c")}},
		},
		"rewrites in front": {
			site: "handle_path /api/* {\ndedup\nreverse_proxy {up}\n}\nhandle_path /v2/* {\ndedup\nreverse_proxy {up}\n}\n" +
				"route /strip/* {\nuri strip_prefix /strip\ndedup\nreverse_proxy {up}\n}",
			groups: [][]request{{k("/api/pay")}, {k("/v2/pay")}, {k("/strip/pay")}},
		},
		"rewrites behind": {
			site:    "route {\ndedup\nuri strip_prefix /api\nrewrite /old /new?{query}\nreverse_proxy {up}\n}",
			groups:  [][]request{{k("/api/old?a=1")}},
			refused: refuses(reused, k("/api/old?a=2")),
		},
		// A redelivery is signed anew, and may come with other credentials. Every hook on every path and host
		// gets an event under one and the same delivery ID.
		"GitHub": {
			site: "dedup github\nreverse_proxy {up}",
			groups: [][]request{
				{k("X-GitHub-Delivery: d", "X-GitHub-Hook-ID: 1"), k("X-GitHub-Delivery: d", "X-GitHub-Hook-ID: 1", "Authorization: another", "X-Hub-Signature-256: sha256=00")},
				{k("X-GitHub-Delivery: d", "X-GitHub-Hook-ID: 2")},
				{k("X-GitHub-Delivery: d", "X-GitHub-Hook-ID: 1", "/chat")},
				{k("X-GitHub-Delivery: d", "X-GitHub-Hook-ID: 1", "Host: b.test")},
				{k("X-GitHub-Delivery: d")},
			},
			pass: []request{k()},
		},
		// Served to clients of an API, a provider has an API's rules.
		"GitHub, of an API": {
			site:   "dedup github {\nmode api\n}\nreverse_proxy {up}",
			groups: [][]request{{with("{}", "X-GitHub-Delivery: d")}, {with("{}", "X-GitHub-Delivery: d", "Authorization: a")}},
			refused: map[string][]request{
				reused: {with("other", "X-GitHub-Delivery: d")}, invalid: {with("{}", `X-GitHub-Delivery: "`)},
			},
		},
	})
}

// Where a handler in front authenticates, as the order of directives has it, no request claims a key without
// credentials, nor gets its response.
func TestUnauthenticatedRequestClaimsNothing(t *testing.T) {
	address, runs := echo(t)
	s := serve(t, "basic_auth {\nali "+passwordHash+"\n}", "dedup", "reverse_proxy "+address)
	for n, lines := range [][]string{nil, {"Authorization: " + basicAuth("ali")}, nil} {
		got := s.send(with("body", append(lines, "Idempotency-Key: k")...))
		if lines == nil && (got.status != 401 || got.body != "" || got.header.Get("Dedup-Execution-Id") != "") || int(runs.Load()) != min(n, 1) {
			t.Errorf("request %d got %+v after %d runs", n+1, got, runs.Load())
		}
		if len(s.listed()) != min(n, 1) {
			t.Errorf("after request %d there are %d keys", n+1, len(s.listed()))
		}
	}
}

// Where handlers rewrite, the upstream gets what they have made.
func TestRewritesReachTheUpstream(t *testing.T) {
	address, _ := echo(t)
	s := serve(t, "handle_path /api/* {", "dedup", "reverse_proxy "+address, "}",
		"route {", "dedup", "rewrite /old /new?{query}", "reverse_proxy "+address, "}")
	for sent, want := range map[string]string{"/api/pay": "/pay", "/old?a=1": "/new?a=1"} {
		if got := s.send(with("", sent, "Idempotency-Key: k")).header.Get("X-Target"); got != want {
			t.Errorf("%s: the upstream got %s, want %s", sent, got, want)
		}
	}
}

func TestFingerprints(t *testing.T) {
	k := func(body string, lines ...string) request { return with(body, append(lines, "Idempotency-Key: k")...) }
	all := func(texts ...string) (all []request) {
		for _, text := range texts {
			all = append(all, k(text))
		}
		return all
	}
	json := []request{k(`{"a":1,"b":[1,2]}`), k(`{"b":[1,2],"a":1.0}`), k("\t{\"a\":1, \"b\":[1,2]}")}
	checkKeys(t, map[string]keyed{
		"body, whatever its type": {
			groups:  [][]request{{k("{}", "/?a=1", "Content-Type: application/json"), k("{}", "/?a=1", "Content-Type: application/json; charset=utf-8")}},
			refused: refuses(reused, k("{ }", "/?a=1"), k("{}", "/?a=2"), k("{}")),
		},
		"json": {
			site: "fingerprint json", groups: [][]request{json},
			refused: refuses(reused, all(`{"a":1,"b":[2,1]}`, `{"a":1}`, `{"a":"1","b":[1,2]}`, `a=1`, ``)...),
		},
		"none":         {site: "fingerprint none", groups: [][]request{{k("body", "/?a=1"), k("another", "/?a=2")}}},
		"of a webhook": {site: "mode webhook\nkey header Idempotency-Key", groups: [][]request{{k("body", "/?a=1"), k("another", "/?a=2")}}},
		// A change of what is excluded refuses no retry.
		"two forms": {
			site: "@new header X-New *\nhandle @new {\ndedup {\nfingerprint json\nexclude /sent_at /try\n}\nreverse_proxy {up}\n}\n" +
				"handle {\ndedup {\nfingerprint json\nexclude /sent_at\n}\nreverse_proxy {up}\n}",
			groups: [][]request{{k(`{"a":1,"sent_at":1,"try":1}`), k(`{"a":1,"sent_at":2,"try":2}`, "X-New: 1")}},
		},
		// White space and what is excluded are no part of a content key, and make no other request.
		"body, beside content": {
			site: "key header X-Id\nkey content\nexclude /sent_at\nfingerprint body",
			groups: [][]request{
				bodies(`{"a":1,"b":2,"sent_at":1}`, `{"a":1,"b":2,"sent_at":2}`, `{"b":2, "a":1}`), bodies(`a=1`), {with(`{"a":1,"sent_at":1}`, "X-Id: 1")},
			},
			refused: refuses(reused, with(`{"a":1,"b":2}`, "/?a=1"), with(`{"a":1,"sent_at":2}`, "X-Id: 1")),
		},
	})
}

// The rules of each kind of key are held in delivery. Here they meet the modes, the fingerprint and the body of a
// real request.
func TestKeysOfEachKind(t *testing.T) {
	wrong := append(each("Idempotency-Key:", "Idempotency-Key: "+strings.Repeat("x", 256), `Idempotency-Key: "abc`, "Idempotency-Key: a\tb"),
		with("", "Idempotency-Key: a", "Idempotency-Key: b"))
	noMember := bodies(``, `{"id":null}`, `{"id":{}}`, `{"id":""}`, `{"id":"`+strings.Repeat("k", 256)+`"}`, `{"id":"7"`, `{"id":"7","id":"8"}`)
	noValue := each("/", "/?a=1", "/?a=1&b=", "/?a=1&b=%FF", "/?a=1&b="+strings.Repeat("k", 256))
	tenant := func(value, query, body string) request { return with(body, "X-Tenant: "+value, "/"+query) }
	const parts = "key parts orders {\nheader X-Tenant\njson /a\nvalue {http.request.uri.query.q} optional\n}\nfingerprint none"
	ofParts := [][]request{
		{tenant("t", "?q=1", `{"a":"x"}`), tenant(`"t"`, "?x=0&q=1", `{"a":"x","z":1}`)},
		{tenant("t", "?q=2", `{"a":"x"}`)}, {tenant("u", "?q=1", `{"a":"x"}`)}, {tenant("x", "?q=1", `{"a":"t"}`)}, {tenant("t", "", `{"a":"x"}`)},
	}
	noParts := []request{with(`{"a":"x"}`, "/?q=1"), tenant("t", "?q=1", `{}`), tenant("t", "?q=1", ``)}
	token, empty := `{"verification_token":"x"}`, `{"events":[]}`
	checkKeys(t, map[string]keyed{
		"a header": {
			groups: [][]request{each("Idempotency-Key: abc", `Idempotency-Key: "abc"`), each("Idempotency-Key: ABC"), each("Idempotency-Key: " + strings.Repeat("x", 255))},
			pass:   bodies("body"), refused: refuses(invalid, wrong...),
		},
		"a header of a webhook": {site: "mode webhook\nkey header Idempotency-Key", pass: wrong},
		"a short header":        {site: "max_key_length 8", groups: [][]request{each("Idempotency-Key: 12345678")}, refused: refuses(invalid, each("Idempotency-Key: 123456789")...)},
		"a member": {
			site:   "key json /id",
			groups: [][]request{bodies(`{"id":"7","n":1}`), bodies(`{"id":7}`)},
			pass:   noMember, refused: refuses(reused, bodies(`{"id":"7","n":2}`)...),
		},
		"a field of a form": {
			site:    "key form id\nkey header X-Id",
			groups:  [][]request{{with("id=7&n=1", form), with("id=7&n=1", form)}, each("X-Id: 7")},
			pass:    []request{with("n=1", form), with("id=&n=1", form), with("id=1&id=2", form), with(`{"id":"7"}`), with("n=1", form, "/?id=7")},
			refused: refuses(reused, with("id=7&n=2", form)),
		},
		"a member, required":     {site: "key json /id\non_missing reject", refused: refuses(missing, noMember...)},
		"a member of a webhook":  {site: "mode webhook\nkey json /id", groups: [][]request{bodies(`{"id":"7","n":1}`, `{"id":"7","n":2}`)}, pass: noMember},
		"values":                 {site: "key value {http.request.uri.query.a}-{http.request.uri.query.b}", groups: [][]request{each("/?a=1&b=2"), each("/?a=2&b=1"), each("/?a=%20&b=%C3%BC")}, pass: noValue, refused: refuses(reused, each("/?a=1&b=2&x=1")...)},
		"values, required":       {site: "key value {http.request.uri.query.a}-{http.request.uri.query.b}\non_missing reject", refused: refuses(missing, noValue...)},
		"an unknown placeholder": {site: "key value x{http.request.uri.query.id}{no.such.placeholder}", pass: each("/?id=1")},
		// One part that is invalid makes the whole invalid.
		"parts":              {site: parts, groups: ofParts, pass: noParts, refused: refuses(invalid, tenant("", "?q=1", `{"a":"x"}`))},
		"parts of a webhook": {site: "mode webhook\n" + parts, groups: ofParts, pass: append(noParts, tenant("", "?q=1", `{"a":"x"}`))},
		"content": {
			site:   "key content\nexclude /sent_at",
			groups: [][]request{{with(`{"b":1,"a":[1,2]}`, "/?a=1"), with(`{"a":[1,2],"b":1.0,"sent_at":1}`, "/?a=2")}, bodies(`b=1`), bodies(`b=1 `)}, // the query counts only in a scope
			pass:   bodies(``),
		},
		"content, and a scope with the query": {
			site: "key content\nscope {http.request.orig_uri}", groups: [][]request{{with("query", "/?a=1")}, {with("query", "/?a=2")}, {with("query")}},
		},
		// As docs/providers.md says of HubSpot and of Microsoft Graph, whose check has no body.
		"HubSpot": {
			site: "mode webhook\nkey content\nexclude /0/attemptNumber", groups: [][]request{bodies(`[{"eventId":1,"attemptNumber":0}]`, `[{"eventId":1,"attemptNumber":1}]`), bodies(`[{"eventId":2}]`)},
		},
		"Microsoft Graph": {
			site: "mode webhook\nkey content", groups: [][]request{bodies(`{"value":[{"changeType":"updated"}]}`)}, pass: []request{with("", "/?validationToken=a")},
		},
		// What has a key of the handler's own lines is no unsigned handshake: a member such as verification_token is no way
		// past them.
		"no handshake of notion": {
			site:   "dedup notion {\nmode api\nkey header Idempotency-Key\n}\nreverse_proxy {up}",
			groups: [][]request{{with(token, "Idempotency-Key: 1")}}, pass: []request{with(token)},
		},
		"no handshake of line": {
			site:   "dedup line {\nmode api\nkey header Idempotency-Key\n}\nreverse_proxy {up}",
			groups: [][]request{{with(empty, "Idempotency-Key: 1")}}, pass: []request{with(empty)},
		},
	})
}

func TestUnknownPlaceholdersAreLoggedOnce(t *testing.T) {
	s := serveLogged(t, "", "", "dedup {", "key value x{http.request.uri.query.id}{no.such.placeholder}", "key header Idempotency-Key",
		"scope {no.such.scope} {http.request.host}", "}", "respond done")
	for _, key := range []string{"k", "l"} {
		s.send(with("", "/?id=1", "Idempotency-Key: "+key))
	}
	book.only(t, "a placeholder is unknown", "level", "warn", "placeholder", "{no.such.placeholder}")
	book.only(t, "a placeholder is unknown", "level", "warn", "placeholder", "{no.such.scope}")
	if all := book.about("a placeholder is unknown"); len(all) != 2 {
		t.Errorf("the lines are %v", all)
	}
}

// The first part is the delivery ID, which the record and the access log have. The record has the
// other parts.
func TestPartsOfARecord(t *testing.T) {
	address, _ := echo(t)
	for body, want := range map[string]string{
		`{"ref":{"name":"deploy"}}`:                     "[deploy]",
		`{"ref":{"name":"deploy"},"namespace":"shop"}`:  "[shop deploy]",
		`{"ref":{"name":"shop:deploy"}}`:                "[shop:deploy]",
		`{"ref":{"name":"naïve"},"namespace":12345678}`: "[12345678 naïve]",
	} {
		s := serveLogged(t, "", "", "log", "dedup {", "key parts submits {", "header X-Delivery", "json /namespace optional", "json /ref/name", "}", "}", "reverse_proxy "+address)
		s.send(with(body, "X-Delivery: 1"))
		if record := s.only(); record.Provider != "submits" || record.DeliveryID != "1" || fmt.Sprint(record.Parts) != want {
			t.Errorf("%s: the record is %+v, want the parts %s", body, record.Origin, want)
		}
		book.only(t, "handled request", "dedup_delivery_id", "1")
		s.stop()
	}
}

// A service behind gets the key in place of what the sender has sent: over all attempts, whatever
// host is asked, and when a request is forced. Without a key it gets none.
func TestKeyIsHandedOn(t *testing.T) {
	ran := make(chan string, 20)
	address, _ := startUpstream(t, func(w http.ResponseWriter, r *http.Request, _ int) {
		ran <- strings.Join(r.Header["Idempotency-Key"], ", ") + r.Header.Get("X-Key")
		if r.Header.Get("X-Fails") != "" {
			w.WriteHeader(503)
		}
	})
	s := serve(t, "header >X-Key {http.dedup.key}", "header >X-Outcome {http.dedup.outcome}",
		"dedup {", "key header Idempotency-Key", "key header X-Event-Id", "scope {http.request.orig_uri.path}", "force X-Force", "}",
		"@named header X-Named *", "reverse_proxy @named "+address+" {", "header_up X-Key {http.dedup.key}", "}",
		"reverse_proxy "+address+" {", "header_up Idempotency-Key {http.dedup.key}", "}")
	var want []string
	for _, id := range []string{"Idempotency-Key: a", "Idempotency-Key: b", "X-Event-Id: a"} {
		key := s.send(with("body", id, "X-Fails: 1", "Host: a.test")).header.Get("X-Key")
		if !hexKey.MatchString(key) || slices.Contains(want, key) {
			t.Fatalf("the key is %q, after %q", key, want)
		}
		s.send(with("body", id, "Host: b.test:8080"))
		s.send(with("body", id, "Host: a.test")) // a duplicate
		s.send(with("body", id, "X-Force: true"))
		want = append(want, key, key, key)
	}
	s.send(with("body"))
	without := s.send(with("body", "PUT", "Idempotency-Key: c"))
	named := s.send(with("", "Idempotency-Key: c", "X-Named: 1")).header.Get("X-Key")
	close(ran)
	var got []string
	for run := range ran {
		got = append(got, run)
	}
	if want = append(want, "", "", "c"+named); !slices.Equal(got, want) {
		t.Errorf("the upstream got the keys\n%q, want\n%q", got, want)
	}
	if without.header.Get("X-Outcome") != "" || without.header.Get("X-Key") != "" {
		t.Errorf("a request that is not deduplicated has %v", without.header)
	}
}

func TestBodyTooLargeForItsKey(t *testing.T) {
	const limit, tooLarge = "max_request_body 1KiB\n", "request_too_large"
	fits := `{"id":"1","x":"` + strings.Repeat("x", 1024-17) + `"}`
	large := strings.Replace(fits, "x", "xx", 1)
	if len(fits) != 1024 || len(large) != 1025 {
		t.Fatalf("the bodies have %d and %d bytes", len(fits), len(large))
	}
	one, withID := [][]request{bodies(fits)}, with(large, "X-Id: 1")
	many := strings.Repeat("a=1&", 1000) + "id=1" // one field more than a form may have
	checkKeys(t, map[string]keyed{
		"member":      {site: limit + "key json /id", groups: one, refused: refuses(tooLarge, with(large))},
		"content":     {site: limit + "key content", groups: one, refused: refuses(tooLarge, with(large))},
		"parts":       {site: limit + "key parts x {\nheader X-Id\njson /id\n}", pass: bodies(large), refused: refuses(tooLarge, withID)},
		"fingerprint": {site: limit + "key header X-Id", pass: bodies(large), refused: refuses(tooLarge, withID)},
		"a webhook":   {site: limit + "mode webhook\nkey json /id", groups: one, pass: bodies(large)},
		"required":    {site: limit + "mode webhook\non_missing reject\nkey json /id", refused: refuses(missing, with(large))},
		"a provider": {
			site:   "dedup stripe {\n" + limit + "}\nreverse_proxy {up}",
			groups: [][]request{{with(fits, "Stripe-Signature: t=1")}}, pass: []request{with(large, "Stripe-Signature: t=1"), with(fits)},
		},
		// Where neither a source nor a fingerprint needs the body, it streams on.
		"header": {site: limit + "key header X-Id\nfingerprint none", groups: [][]request{{withID, with(fits, "X-Id: 1")}}, pass: bodies(large)},
		"a form": {site: limit + "key form id", groups: [][]request{{with("id=1", form), with("id=1", form)}, {with("id=2", form)}},
			refused: refuses(tooLarge, with("id=1&a="+large, form)), pass: []request{with(large), with(`{"id":"1"}`)}},
		"fields":              {site: "key form id", refused: refuses(tooLarge, with(many, form))},
		"fields of a webhook": {site: "mode webhook\nkey form id", pass: []request{with(many, form)}},
		"header or content":   {site: limit + "key header X-Id\nkey content\nfingerprint none", groups: append(one, []request{withID}), refused: refuses(tooLarge, with(large))},
		"a header of GitHub": {
			site:   "dedup github {\n" + limit + "}\nreverse_proxy {up}",
			groups: [][]request{{with(large, "X-GitHub-Delivery: 1")}},
		},
	})
}

// What a key is made of is the same in every version: with another name, all that a running
// installation has stored would be unknown. docs/upgrading.md says which settings change the names.
func TestKeysHaveTheirNames(t *testing.T) {
	for name, c := range map[string]struct {
		lines   string
		request request
		key     string
	}{
		"an API":          {"dedup", with("{}", "/pay?a=1", "Host: a.test", "Authorization: Bearer a", "X-Tenant-Id: t", "Idempotency-Key: k"), "75c7f72497b46d32d1c5f619243efdb4fe40c53b8bff106f368def7ebcd1d5b6"},
		"webhooks":        {"dedup github", with("{}", "/hook", "Host: a.test", "X-GitHub-Delivery: d", "X-GitHub-Hook-ID: 7"), "741b0cb7a8b8ab2cf4611756d09885dacea906cfe737c1d45f6de099c48bccd8"},
		"a scope":         {"dedup {\nmode webhook\nkey header X-Event-Id\nscope triggers {http.request.orig_uri}\n}", with("{}", "/triggers/a", "Host: a.test", "X-Event-Id: e"), "47562b82e9f2a9cc8e9f412cb4716224153b90dbe4b2239fc92c115a776ced28"},
		"content":         {"dedup {\nkey content runs\nexclude /at\nscope shared runs\n}", with(`{"b":1,"at":2,"a":[1.0]}`, "Host: a.test"), "4ccefa993acd1d7bd104c75c320383f7b9049bea4907e6f6908e76b613539315"},
		"parts":           {"dedup {\nkey parts n {\njson /uid\nheader X-Channel optional\ncontent\n}\nscope shared n\n}", with(`{"uid":"u"}`, "Host: a.test"), "e7386dc20417b711a051ff5563d49a5da268dc2b59dbbfae8a0c2f83e8afd134"},
		"a member, value": {"dedup {\nkey value {http.dedup.json./id}\n}", with(`{"id":"u"}`, "Host: a.test"), "e7386dc20417b71185c3e744e4f7d97d22c7a78f9718d98278a1e543057d9aba"},
	} {
		address, _ := echo(t)
		s := serve(t, "header >X-Key {http.dedup.key}", c.lines, "reverse_proxy "+address)
		if got := s.send(c.request).header.Get("X-Key"); got != c.key {
			t.Errorf("%s: the key is %s, want %s", name, got, c.key)
		}
		s.stop()
	}
}

// A line end at the end of a variable is no part of its value: replicas share their keys if only one
// of them has it.
func TestLineEndsOfVariablesArePartOfNoKey(t *testing.T) {
	t.Setenv("TEST_REGION", "eu")
	t.Setenv("TEST_REGION_LINE", "eu\n")
	t.Setenv("TEST_REGION_CRLF", "eu\r\n")
	t.Setenv("TEST_REGION_LINES", "eu\n\n")
	keys := map[string]string{}
	for _, name := range []string{"TEST_REGION", "TEST_REGION_LINE", "TEST_REGION_CRLF", "TEST_REGION_LINES"} {
		placeholder := "{env." + name + "}"
		s := serveWith(t, "namespace shop-"+placeholder, "header >X-Key {http.dedup.key}",
			"dedup {", "scope {http.request.host} "+placeholder, "key value {http.request.header.X-Id}-"+placeholder, "}", "respond done 201")
		keys[name] = s.mustPost("", "body", "X-Id", "1", "Host", "a.test").header.Get("X-Key")
		s.stop()
	}
	if want := keys["TEST_REGION"]; want == "" || keys["TEST_REGION_LINE"] != want || keys["TEST_REGION_CRLF"] != want || keys["TEST_REGION_LINES"] == want {
		t.Errorf("the keys are %q", keys)
	}
}
