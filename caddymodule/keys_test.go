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
		w.Header().Set("X-Target", r.RequestURI)
		w.Header()["X-Key"] = r.Header["Idempotency-Key"]
		w.WriteHeader(201)
		_, _ = io.Copy(w, r.Body)
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
	})
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
