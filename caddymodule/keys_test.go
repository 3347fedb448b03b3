package caddymodule

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

// request is a request of a table: its body, and the lines in which it differs from POST /: a
// method, a target, header fields.
type request struct {
	body  string
	lines []string
}

func with(body string, lines ...string) request { return request{body, lines} }

// bodies are requests that differ in their bodies.
func bodies(texts ...string) (all []request) {
	for _, text := range texts {
		all = append(all, with(text))
	}
	return all
}

// each are requests that differ in one line.
func each(lines ...string) (all []request) {
	for _, line := range lines {
		all = append(all, with("body", line))
	}
	return all
}

func (r request) String() string { return fmt.Sprintf("%q with %.60q", r.lines, r.body) }

// http parses the request as a server does.
func (r request) http() *http.Request {
	method, target, host, header := "POST", "/", "Host: dedup.test\r\n", ""
	for _, line := range r.lines {
		switch {
		case strings.HasPrefix(line, "/"):
			target = line
		case strings.HasPrefix(line, "Host:"):
			host = line + "\r\n"
		case strings.Contains(line, ":"):
			header += line + "\r\n"
		default:
			method = line
		}
	}
	text := fmt.Sprintf("%s %s HTTP/1.1\r\n%s%sContent-Length: %d\r\n\r\n%s", method, target, host, header, len(r.body), r.body)
	parsed, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
	if err != nil {
		panic(err)
	}
	parsed.RemoteAddr = "192.0.2.1:1234"
	return parsed
}

// send serves a request without a connection.
func (s *site) send(r request) answer {
	w := httptest.NewRecorder()
	s.Config.Handler.ServeHTTP(w, r.http())
	return answer{w.Code, w.Header(), w.Body.String()}
}

// echo is an upstream that answers with the body and the idempotency key that it gets.
func echo(t *testing.T) (address string, runs *atomic.Int64) {
	t.Helper()
	runs = new(atomic.Int64)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Target", r.RequestURI)
		w.Header()["X-Key"] = r.Header["Idempotency-Key"]
		w.WriteHeader(201)
		_, _ = w.Write(body)
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://"), runs
}

// keyed says what becomes of the requests that a site gets, one after the other.
type keyed struct {
	site    string      // {up} is the upstream; without it, lines of a dedup in front of one
	groups  [][]request // those of one group, and no others, have one key
	pass    []request   // without a key
	refused map[string][]request
}

func (c keyed) check(t *testing.T) {
	t.Helper()
	address, runs := echo(t)
	lines := c.site
	if !strings.Contains(lines, "{up}") {
		lines = "dedup {\n" + lines + "\n}\nreverse_proxy {up}"
	}
	s := serve(t, strings.ReplaceAll(lines, "{up}", address))
	defer s.stop()
	send := func(r request) (got answer, executionID string, replayed bool) {
		got = s.send(r)
		return got, got.header.Get("Dedup-Execution-Id"), got.header.Get("Idempotent-Replayed") != ""
	}
	unchanged := func(r request, got answer) bool {
		return got.status == 201 && got.body == r.body && slices.Equal(got.header["X-Key"], r.http().Header["Idempotency-Key"])
	}
	var firsts []string
	for _, group := range c.groups {
		got, id, replayed := send(group[0])
		if !unchanged(group[0], got) || replayed || id == "" {
			t.Fatalf("%s got %d %.300q, want a run of its own", group[0], got.status, got.body)
		}
		firsts = append(firsts, id)
	}
	for i, group := range c.groups {
		for _, r := range group {
			if got, id, replayed := send(r); !replayed || id != firsts[i] {
				t.Errorf("%s got %d %.300q, want the answer to %s", r, got.status, got.body, group[0])
			}
		}
	}
	for _, r := range slices.Concat(c.pass, c.pass) {
		if got, id, _ := send(r); !unchanged(r, got) || id != "" {
			t.Errorf("%s got %d %.300q, want it passed", r, got.status, got.body)
		}
	}
	for code, requests := range c.refused {
		for _, r := range requests {
			got, _, _ := send(r)
			var problem struct{ Code string }
			if err := json.Unmarshal([]byte(got.body), &problem); err != nil || got.status < 400 || problem.Code != code {
				t.Errorf("%s got %d %.300q, want %s", r, got.status, got.body, code)
			}
		}
	}
	if want := len(c.groups) + 2*len(c.pass); runs.Load() != int64(want) {
		t.Errorf("the upstream ran %d times, want %d", runs.Load(), want)
	}
}

func checkKeys(t *testing.T, table map[string]keyed) {
	t.Helper()
	for name, c := range table {
		t.Run(name, c.check)
	}
}

const (
	missing = "idempotency_key_missing"
	invalid = "idempotency_key_invalid"
	reused  = "idempotency_key_reused"
)

func refuses(code string, requests ...request) map[string][]request {
	return map[string][]request{code: requests}
}

// passwordHash is bcrypt's of "open sesame", at its lowest cost.
const passwordHash = "$2a$04$uf76iymeUNTJnEhP70mn.eLvDOZNaERVsFNAoeUWIl9NCQiBTSOAO"

func TestCallerAndRouteArePartOfTheKey(t *testing.T) {
	k := func(lines ...string) request { return with("", append(lines, "Idempotency-Key: k")...) }
	user := func(name string) request {
		r := new(http.Request)
		r.Header = http.Header{}
		r.SetBasicAuth(name, "open sesame")
		return k("Authorization: " + r.Header.Get("Authorization"))
	}
	checkKeys(t, map[string]keyed{
		"by default": {groups: [][]request{
			{k("/pay"), k("/pay", "X-Api-Key:"), k("/pay", "Cookie: a=1")}, // cookies are not part of the key
			{k("/pay", "Authorization: Bearer a")},
			{k("/pay", "Authorization: Bearer b")},
			{k("/pay", "X-Api-Key: a")},
			{k("/pay", "Authorization: Bearer a", "X-Api-Key: a")},
			{k("/pay", "Remote-User: a")},
			{k("/pay", "Host: a.test"), k("/pay", "Host: A.TEST.:80")},
			{k("/pay/")},
			{k("/p%61y")},
			{k("/pay", "PATCH")},
		}},
		// The credentials are removed in front, so that only the user's name tells.
		"a user": {
			site:   "route {\nbasic_auth {\nali " + passwordHash + "\neve " + passwordHash + "\n}\nrequest_header -Authorization\ndedup\nreverse_proxy {up}\n}",
			groups: [][]request{{user("ali")}, {user("eve")}},
		},
		"a scope of its own": {site: "scope tenant {http.request.header.X-Tenant}", groups: [][]request{
			{k("X-Tenant: 1"), k("X-Tenant: 1", "Authorization: rotated")}, {k("X-Tenant: 2")}, {k()},
		}},
		"one scope": {site: "scope everything\nfingerprint none", groups: [][]request{
			{k("/a"), k("/b", "Authorization: Bearer a", "Host: b.test", "PATCH")},
		}},
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
		// A redelivery is signed anew, and may come with other credentials.
		"GitHub": {
			site: "dedup github\nreverse_proxy {up}",
			groups: [][]request{
				{k("X-GitHub-Delivery: d", "X-GitHub-Hook-ID: 1"), k("X-GitHub-Delivery: d", "X-GitHub-Hook-ID: 1", "Authorization: another", "X-Hub-Signature-256: sha256=00")},
				{k("X-GitHub-Delivery: d", "X-GitHub-Hook-ID: 2")},
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

// Where a handler in front authenticates, as the order of directives has it, nobody claims a key without
// credentials, nor gets its response.
func TestUnauthenticatedRequestClaimsNothing(t *testing.T) {
	address, runs := echo(t)
	s := serve(t, "basic_auth {\nali "+passwordHash+"\n}", "dedup", "reverse_proxy "+address)
	known := new(http.Request)
	known.Header = make(http.Header)
	known.SetBasicAuth("ali", "open sesame")
	for n, lines := range [][]string{nil, {"Authorization: " + known.Header.Get("Authorization")}, nil} {
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
		"json, of what is not JSON": {site: "fingerprint json", groups: [][]request{all("a=1&b=2")}, refused: refuses(reused, all("b=2&a=1")...)},
		"json without members": {
			site:    "fingerprint json\nexclude /sent_at /meta/attempt",
			groups:  [][]request{all(`{"a":1,"sent_at":1,"meta":{"attempt":1}}`, `{"meta":{"attempt":2},"sent_at":null,"a":1}`, `{"a":1,"meta":{}}`)},
			refused: refuses(reused, all(`{"a":2,"sent_at":1,"meta":{"attempt":1}}`, `{"a":1,"meta":{"by":"x"}}`, `{"a":1}`, `{"sent_at":1`)...),
		},
		"without parameters": {
			site:    "exclude ?ts ?sig",
			groups:  [][]request{{k("x", "/pay?amount=10&ts=1&sig=a"), k("x", "/pay?amount=10&ts=2&sig=b"), k("x", "/pay?amount=10")}},
			refused: refuses(reused, k("x", "/pay?amount=20&ts=1&sig=a"), k("y", "/pay?amount=10&ts=1&sig=a")),
		},
		"bytes, with the members": {site: "fingerprint json\nexclude /sent_at", groups: [][]request{all(`{"sent_at":1`)}, refused: refuses(reused, all(`{"sent_at":2`)...)},
		"none":                    {site: "fingerprint none", groups: [][]request{{k("body", "/?a=1"), k("another", "/?a=2")}}},
		"of a webhook":            {site: "mode webhook\nkey header Idempotency-Key", groups: [][]request{{k("body", "/?a=1"), k("another", "/?a=2")}}},
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
		"json, beside content": {
			site:    "key header X-Id\nkey content\nexclude /sent_at\nfingerprint json",
			groups:  [][]request{bodies(`{"a":1,"b":2,"sent_at":1}`, `{"a":1,"b":2,"sent_at":2}`, `{"b":2, "a":1}`), bodies(`a=1`)},
			refused: refuses(reused, with(`{"a":1,"b":2}`, "/?a=1")),
		},
		"by default, beside content": {
			site:    "key header X-Id\nkey content",
			groups:  [][]request{bodies(`{"b":1,"a":2}`, `{"a":2,"b":1}`), {with("body", "X-Id: 1")}},
			refused: refuses(reused, with("other", "X-Id: 1")),
		},
	})
}

// invalidKeys are requests whose Idempotency-Key makes no key.
var invalidKeys = append(each(
	"Idempotency-Key:", "Idempotency-Key:   ", `Idempotency-Key: ""`, "Idempotency-Key: "+strings.Repeat("x", 256), "Idempotency-Key: caf\xc3\xa9",
	"Idempotency-Key: a\tb", `Idempotency-Key: "abc`, `Idempotency-Key: "abc", "abc"`, `Idempotency-Key: "a\nb"`,
), with("", "Idempotency-Key: a", "Idempotency-Key: b"), with("", "Idempotency-Key: a", "Idempotency-Key:"))

func TestKeysOfHeaders(t *testing.T) {
	checkKeys(t, map[string]keyed{
		"an API": {
			groups: [][]request{
				append(each("Idempotency-Key: abc", `Idempotency-Key: "abc"`), with("body", "Idempotency-Key: abc", `Idempotency-Key: "abc"`)),
				each("Idempotency-Key: ABC"), // case matters
				each(`Idempotency-Key: "a\"b\\c"`, `Idempotency-Key: a"b\c`),
				each("Idempotency-Key: with spaces, and a comma", `Idempotency-Key: "with spaces, and a comma"`),
				each("Idempotency-Key: "+strings.Repeat("x", 255), `Idempotency-Key: "`+strings.Repeat("x", 255)+`"`),
			},
			pass:    bodies("body"),
			refused: refuses(invalid, invalidKeys...),
		},
		"a webhook":   {site: "mode webhook\nkey header Idempotency-Key", pass: invalidKeys},
		"a short key": {site: "max_key_length 8", groups: [][]request{each("Idempotency-Key: 12345678")}, refused: refuses(invalid, each("Idempotency-Key: 123456789")...)},
	})
}

func TestKeysOfMembers(t *testing.T) {
	none := bodies(``, `{}`, `{"id":null}`, `{"id":{}}`, `{"id":["7"]}`, `{"id":true}`, `{"id":""}`, `{"id":"`+strings.Repeat("k", 256)+`"}`,
		`{"id":"7"`, `{"id":"7","id":"8"}`, `id=7`)
	checkKeys(t, map[string]keyed{
		"an API": {
			site:   "key json /id\nfingerprint none",
			groups: [][]request{bodies(`{"id":"7"}`, `{"x":1,"id":"\u0037"}`), bodies(`{"id":7}`, `{"id":7.0,"x":1}`), bodies(`{"id":"7.0"}`)},
			pass:   none,
		},
		"deep inside": {
			site:   "key json /a~1b/0/m~0n\nfingerprint none",
			groups: [][]request{bodies(`{"a/b":[{"m~n":"1"}]}`, `{"a/b":[{"m~n":"1"},{"m~n":"2"}]}`), bodies(`{"a/b":[{"m~n":1}]}`)},
		},
		"required": {site: "key json /id\non_missing reject", refused: refuses(missing, none...)},
		// The ID alone is the key: other content under it is another request, to an API.
		"content beside it": {site: "key json /id", groups: [][]request{bodies(`{"id":"7","n":1}`)}, refused: refuses(reused, bodies(`{"id":"7","n":2}`)...)},
		"a webhook":         {site: "mode webhook\nkey json /id", groups: [][]request{bodies(`{"id":"7","n":1}`, `{"id":"7","n":2}`)}, pass: none},
	})
}

func TestKeysOfValues(t *testing.T) {
	none := each("/", "/?id=", "/?ID=1", "/?id=%FF", "/?id="+strings.Repeat("k", 256))
	checkKeys(t, map[string]keyed{
		"one": {
			site:   "key value {http.request.uri.query.id}",
			groups: [][]request{each("/?id=1"), each("/?id=2"), each("/?id=%C3%BC"), each("/?id=%20"), each("/?id=" + strings.Repeat("k", 255))},
			pass:   none, refused: refuses(reused, each("/?id=1&x=1")...),
		},
		"required": {site: "key value {http.request.uri.query.id}\non_missing reject", refused: refuses(missing, none...)},
		"two": {
			site:   "key value {http.request.uri.query.a}-{http.request.uri.query.b}\nfingerprint none",
			groups: [][]request{each("/?a=1&b=2", "/?b=2&a=1"), each("/?a=2&b=1"), each("/?a=-&b=-")},
			pass:   each("/", "/?a=1", "/?b=2", "/?a=&b=2", "/?a=1&b="),
		},
		"with an unknown placeholder": {site: "key value x{http.request.uri.query.id}{no.such.placeholder}", pass: each("/?id=1", "/?id=2")},
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

func TestKeysOfParts(t *testing.T) {
	tenant := func(value, query, body string) request { return with(body, "X-Tenant: "+value, "/"+query) }
	const three = "key parts orders {\nheader X-Tenant\njson /a\nvalue {http.request.uri.query.q}\n}\nfingerprint none"
	of := keyed{
		site: three,
		groups: [][]request{
			{tenant("t", "?q=1", `{"a":"x"}`), tenant(`"t"`, "?x=0&q=1", `{"a":"x","z":1}`)},
			{tenant("t", "?q=2", `{"a":"x"}`)}, {tenant("u", "?q=1", `{"a":"x"}`)}, {tenant("x", "?q=1", `{"a":"t"}`)},
		},
		pass: []request{
			with(`{"a":"x"}`, "/?q=1"), tenant("t", "", `{"a":"x"}`), tenant("t", "?q=1", `{}`), tenant("t", "?q=1", ``), tenant("t", "?q=", `{"a":"x"}`),
		},
	}
	// One part that is invalid makes the whole invalid.
	ofAPI, ofWebhook, wrong := of, of, tenant("", "?q=1", `{"a":"x"}`)
	ofAPI.refused = refuses(invalid, wrong)
	ofWebhook.site, ofWebhook.pass = "mode webhook\n"+three, append(of.pass, wrong)

	submit := func(body string) request { return with(body, "X-Delivery: 1") }
	checkKeys(t, map[string]keyed{
		"an API": ofAPI, "a webhook": ofWebhook,
		"optional": {
			site: "key parts submits {\nheader X-Delivery\njson /namespace optional\njson /name\n}\nfingerprint none",
			groups: [][]request{
				{submit(`{"name":"deploy"}`), submit(`{"name":"deploy","namespace":null}`), submit(`{"name":"deploy","namespace":""}`)},
				{submit(`{"name":"deploy","namespace":"shop"}`), submit(`{"namespace":"shop","name":"deploy","more":1}`)},
				{submit(`{"name":"shop:deploy"}`)},
			},
			// What is no namespace is not as good as none: another request may have another.
			pass: []request{submit(`{"name":"deploy","namespace":{"name":"shop"}}`), submit(`{"name":"deploy","namespace":true}`), submit(`{"namespace":"shop"}`), submit(`deploy`)},
		},
		"content": {
			site: "key parts orders {\nheader X-Tenant\ncontent\n}",
			groups: [][]request{
				{tenant("t", "", `{"a":1,"b":2}`), tenant("t", "", `{"b":2,"a":1}`)}, {tenant("t", "", `{"a":1}`)}, {tenant("u", "", `{"a":1}`)},
			},
			pass: append(bodies(`{"a":1}`), tenant("t", "", "")),
		},
	})
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

func TestFirstSourcePresentWins(t *testing.T) {
	id := func(value, body string) request { return with(body, "X-Id: "+value) }
	gitHub := func(delivery string, lines ...string) request {
		return with(`{"id":"9"}`, append(lines, "X-GitHub-Delivery: "+delivery)...)
	}
	const two = "key header X-Id\nkey json /id\n"
	groups := [][]request{{id("1", `{"id":"2"}`), id("1", `{"id":"3"}`), id("1", ``)}, {id("2", `{"id":"1"}`)}, bodies(`{"id":"1"}`), bodies(`{"id":"2"}`)}
	// A header that is present and invalid is not passed over.
	var wrong []request
	for _, value := range []string{"", `"`, "ü", strings.Repeat("k", 256)} {
		wrong = append(wrong, id(value, `{"id":"4"}`))
	}
	checkKeys(t, map[string]keyed{
		"an API":    {site: two + "fingerprint none", groups: groups, pass: bodies(``, `{}`), refused: refuses(invalid, wrong...)},
		"a webhook": {site: two + "mode webhook", groups: groups, pass: append(bodies(``, `{}`), wrong...)},
		"two headers": {
			site:    "key header X-Request-Token\nkey header X-Order orders",
			groups:  [][]request{{with("", "X-Request-Token: 1", "X-Order: a"), with("", "X-Request-Token: 1", "X-Order: b")}, {with("", "X-Order: 1")}},
			pass:    each("Idempotency-Key: k"),
			refused: refuses(invalid, with("", `X-Request-Token: "`, "X-Order: c")),
		},
		"a provider": {
			site: "dedup github {\nmode webhook\n" + two + "}\nreverse_proxy {up}",
			groups: [][]request{
				{gitHub("1", "X-Id: a"), gitHub("1"), gitHub("1", "X-Id: b")}, {gitHub("2", "X-Id: a")}, {id("a", `{"id":"9"}`)}, {id("1", `{"id":"9"}`)}, bodies(`{"id":"9"}`),
			},
		},
	})
}

// A key is of its kind of source and of its prefix.
func TestPrefixesKeepKeysApart(t *testing.T) {
	checkKeys(t, map[string]keyed{
		"by default": {
			site:   "key header X-A\nkey header X-B\nkey json /id\nkey value {http.request.uri.query.id}\nfingerprint none",
			groups: [][]request{each("X-A: 1"), each("X-B: 1"), bodies(`{"id":"1"}`), each("/?id=1")},
		},
		"two prefixes": {site: "key header X-A one\nkey header X-B two", groups: [][]request{each("X-A: 1"), each("X-B: 1")}},
		"one prefix": {
			site:   "key header X-A same\nkey header X-B same\nkey json /id same\nfingerprint none",
			groups: [][]request{each("X-A: 1", "X-B: 1"), bodies(`{"id":"1"}`)},
		},
	})
}

// A service behind gets the key in place of what the sender has sent: over all attempts, whatever
// host is asked, and when a request is forced. Without a key it gets none.
func TestKeyIsHandedOn(t *testing.T) {
	ran := make(chan string, 20)
	address, _ := upstream(t, func(w http.ResponseWriter, r *http.Request, _ int) {
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

func TestKeysOfContent(t *testing.T) {
	const attempt = `[{"eventId":1,"attemptNumber":%d,"objectId":%d}]`
	checkKeys(t, map[string]keyed{
		"an API": {
			site: "key content",
			groups: [][]request{
				{with(`{"b":1,"a":[1,2]}`, "/?a=1"), with(`{"a":[1,2],"b":1.0}`, "/?a=2"), with(`{"a":[1,2],"b":1}`)}, // the query counts only in a scope
				bodies(`{"b":1,"a":[2,1]}`), bodies(`null`, ` null `), bodies(`b=1`), bodies(`b=1 `), bodies(`{"b":1`), bodies("\x00\xff"),
			},
			pass: bodies(``),
		},
		"a scope with the query": {
			site:   "key content\nscope {http.request.orig_uri}",
			groups: [][]request{{with("query", "/?a=1")}, {with("query", "/?a=2")}, {with("query")}},
		},
		"without members": {
			site: "key content\nexclude /sent_at /meta/attempt /items/1",
			groups: [][]request{
				bodies(`{"sent_at":1,"meta":{"attempt":1,"by":"a"},"items":["x","y","z"]}`, `{"sent_at":{"deep":[2]},"meta":{"attempt":2,"by":"a"},"items":["x","other","z"]}`,
					`{"meta":{"by":"a"},"items":["x",0,"z"]}`),
				bodies(`{"sent_at":1,"meta":{"attempt":1,"by":"b"},"items":["x","y","z"]}`),
				bodies(`{"sent_at":1,"meta":{"attempt":1,"by":"a"},"items":["x","y","w"]}`),
				bodies(`{"inner":{"sent_at":1}}`), bodies(`{"inner":{"sent_at":2}}`), bodies(`sent_at=1`), bodies(`sent_at=2`),
			},
		},
		// As docs/providers.md says of HubSpot and of Microsoft Graph, whose check has no body.
		"HubSpot": {
			site:   "mode webhook\nkey content\nexclude /0/attemptNumber",
			groups: [][]request{bodies(fmt.Sprintf(attempt, 0, 5), fmt.Sprintf(attempt, 1, 5)), bodies(fmt.Sprintf(attempt, 0, 6))},
		},
		"Microsoft Graph": {
			site:   "mode webhook\nkey content",
			groups: [][]request{bodies(`{"value":[{"changeType":"updated"}]}`), bodies(`{"value":[{"changeType":"created"}]}`)},
			pass:   []request{with("", "/?validationToken=a")},
		},
	})
}

func TestBodyTooLargeForItsKey(t *testing.T) {
	const limit, tooLarge = "max_request_body 1KiB\n", "request_too_large"
	fits := `{"id":"1","x":"` + strings.Repeat("x", 1024-17) + `"}`
	large := strings.Replace(fits, "x", "xx", 1)
	if len(fits) != 1024 || len(large) != 1025 {
		t.Fatalf("the bodies have %d and %d bytes", len(fits), len(large))
	}
	one, withID := [][]request{bodies(fits)}, with(large, "X-Id: 1")
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
		"header":            {site: limit + "key header X-Id\nfingerprint none", groups: [][]request{{withID, with(fits, "X-Id: 1")}}, pass: bodies(large)},
		"header or content": {site: limit + "key header X-Id\nkey content\nfingerprint none", groups: append(one, []request{withID}), refused: refuses(tooLarge, with(large))},
		"a header of GitHub": {
			site:   "dedup github {\n" + limit + "}\nreverse_proxy {up}",
			groups: [][]request{{with(large, "X-GitHub-Delivery: 1")}},
		},
	})
}

// What has a key of the handler's own lines is no unsigned handshake: a member such as
// verification_token is no way past them.
func TestKeyedRequestIsNoHandshake(t *testing.T) {
	const own = " {\nmode api\nkey header Idempotency-Key\n}\nreverse_proxy {up}"
	token, empty := `{"verification_token":"x"}`, `{"events":[]}`
	checkKeys(t, map[string]keyed{
		"notion": {
			site:   "dedup notion" + own,
			groups: [][]request{{with(token, "Idempotency-Key: 1"), with(token, "Idempotency-Key: 1")}}, pass: []request{with(token)},
		},
		"line": {
			site:   "dedup line" + own,
			groups: [][]request{{with(empty, "Idempotency-Key: 1"), with(empty, "Idempotency-Key: 1")}}, pass: []request{with(empty)},
		},
	})
}
