package caddymodule

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
)

// members is an upstream that answers with what it gets in the field X-Members.
func members(t *testing.T) (address string) {
	address, _ = startUpstream(t, func(w http.ResponseWriter, r *http.Request, _ int) {
		w.WriteHeader(201)
		_, _ = w.Write([]byte(r.Header.Get("X-Members")))
	})
	return address
}

// Handlers behind have all members of a JSON body, whether a line of the handler names them or
// not. A text in the body is no placeholder.
func TestMembersForHandlersBehind(t *testing.T) {
	const fields = `{http.dedup.json./a}|{http.dedup.json./b~1c/\}/0}|{http.dedup.json./}|{http.dedup.json.}|{http.dedup.json.a}|{http.dedup.jsons}`
	for name, line := range map[string]string{
		"named by no line":   "key header Idempotency-Key",
		"named by a key":     `key value "{http.dedup.json./a}{http.dedup.json./b~1c/\}/0}"`,
		"named by the scope": `scope {http.dedup.json./b~1c/\}/0}`,
		"without a key":      "key json /none",
	} {
		s := serve(t, "dedup {", line, "}", "reverse_proxy "+members(t)+" {", "header_up X-Members `"+fields+"`", "}")
		for body, want := range map[string]string{
			`{"a":1.50}`: `1.50|||{"a":1.5}|`,
			`{"b/c":{"}":["x"]}, "":true, "a": null}`:        `|x|true|{"":true,"a":null,"b/c":{"}":["x"]}}|`,
			`{"a":{"z":[], "y":{"{http.request.host}": 1}}}`: `{"y":{"{http.request.host}":1},"z":[]}|||{"a":{"y":{"{http.request.host}":1},"z":[]}}|`,
			`{"a":"{http.request.host}","":"\u0061"}`:        `{http.request.host}||a|{"":"a","a":"{http.request.host}"}|`,
			`not JSON`: "||||",
			``:         "||||",
		} {
			if got := s.mustPost(body+"k", body); got.body != want+"|{http.dedup.jsons}" {
				t.Errorf("%s, %s: got\n%s, want\n%s", name, body, got.body, want)
			}
		}
		s.stop()
	}
}

// Members that a line of the handler names have their values to the end of the request; others
// until the body is read.
func TestMembersOfABodyThatIsRead(t *testing.T) {
	s := serve(t, "header >X-Own {http.dedup.json./tenant}.", "header >X-Other {http.dedup.json./other}.",
		"dedup {", "scope {http.dedup.json./tenant}", "}", "reverse_proxy "+members(t))
	for range 2 {
		got := s.mustPost("k", `{"tenant":"t","other":"o"}`)
		if got.header.Get("X-Own") != "t." || got.header.Get("X-Other") != "." {
			t.Errorf("the headers are %v", got.header)
		}
	}
	if got := s.mustPost("", `{"tenant":"t"}`); got.header.Get("X-Own") != "." {
		t.Errorf("the body of a request without a key was read: %v", got.header)
	}
}

// Of requests with one idempotency key, those of a group have one scope, and no others.
func TestTenantsInTheBodyShareNoKey(t *testing.T) {
	for scope, groups := range map[string][][]string{
		"{http.dedup.json./tenant}": {
			{`{"tenant":"a"}`, `{"tenant":"\u0061"}`, "\ufeff" + ` {"tenant":"a"}`, `{"tenant":"a","x":1}`},
			{`{"tenant":"b"}`},
			{`{"tenant":1}`, `{"tenant":"1"}`},
			{`{"tenant":1.0}`}, {`{"tenant":1e0}`}, {`{"tenant":9007199254740993}`}, {`{"tenant":9007199254740992}`},
			{`{"tenant":true}`},
			{`{"tenant":null}`, `{"tenant":""}`, `{}`, `[]`, ``},
		},
		"{http.dedup.json./a} {http.dedup.json./b}":        {{`{"a":"x"}`}, {`{"b":"x"}`}},
		"{http.dedup.json./a}{http.dedup.json./b}":         {{`{"a":"x"}`}, {`{"b":"x"}`}, {`{"a":"xy","b":"z"}`}, {`{"a":"x","b":"yz"}`}},
		`a-{http.dedup.json./a~1\}} {http.request.method}`: {{`{"a/}":"x"}`}, {`{"a/}":"y"}`}},
	} {
		address, runs := startUpstream(t, answers(201, ""))
		s := serve(t, "dedup {", "fingerprint none", "scope "+scope, "}", "reverse_proxy "+address)
		for _, group := range groups {
			runs.Store(0)
			for _, body := range group {
				s.mustPost("k", body)
			}
			if runs.Load() != 1 {
				t.Errorf("scope %s: %s ran %d times, want once", scope, group, runs.Load())
			}
		}
		s.stop()
	}
}

// A handler in front can make a text for the scope from a member that no line of dedup names.
func TestScopeOfAMemberThatMapGivesADefault(t *testing.T) {
	address, runs := startUpstream(t, answers(201, ""))
	s := serve(t, "map {http.dedup.json./tenant} {tenant} {", `"" main`, "default {http.dedup.json./tenant}", "}",
		"header >X-Outcome {http.dedup.outcome}", "dedup {", "fingerprint none", "scope {tenant}", "}", "reverse_proxy "+address)
	for _, group := range [][]string{
		{`{}`, `{"tenant":"main"}`, `{"tenant":""}`, `{"tenant":null}`},
		{`{"tenant":"other"}`, `{"tenant":"other","x":1}`},
	} {
		runs.Store(0)
		for _, body := range group {
			s.mustPost("k", body)
		}
		if runs.Load() != 1 {
			t.Errorf("%s ran %d times, want once", group, runs.Load())
		}
	}
	for body, want := range map[string]string{`{"tenant":{"a":1}}`: "unusable", `{"tenant":"a","tenant":"a"}`: "missing", "tenant=a": "missing"} {
		if got := s.mustPost("k", body); got.header.Get("X-Outcome") != want {
			t.Errorf("%s: the outcome is %q, want %s: it must not share a key", body, got.header.Get("X-Outcome"), want)
		}
	}
}

// A member that cannot be part of a key is none of a mapped scope either, where it was read before: for
// a key that another request has, or by a handler in front.
func TestMappedMemberThatWasReadBefore(t *testing.T) {
	for _, block := range []string{
		"dedup {\nkey header Idempotency-Key\nkey value {http.dedup.json./tenant}\nscope {tenant}\n}",
		"route {\ndedup {\nkey value {http.dedup.json./tenant}\n}\ndedup {\nscope {tenant}\n}\n{to}\n}",
	} {
		address, runs := startUpstream(t, answers(201, ""))
		to := "reverse_proxy " + address
		if strings.Contains(block, "{to}") {
			block, to = strings.Replace(block, "{to}", to, 1), ""
		}
		s := serve(t, "map {http.dedup.json./tenant} {tenant} {", `"" main`, "default {http.dedup.json./tenant}", "}", block, to)
		for range 2 {
			s.mustPost("k", `{"tenant":{"a":1}}`)
		}
		if runs.Load() != 2 {
			t.Errorf("%s: ran %d times, want 2: it must not share a key", block, runs.Load())
		}
		s.stop()
	}
}

// What can be no part of a scope or a key leaves the request without a key: it must not share
// one with others.
func TestMembersThatAreNoKey(t *testing.T) {
	for _, lines := range []string{
		"scope {http.dedup.json./tenant}",
		"key value {http.dedup.json./tenant}",
		"key value {http.request.host}{http.dedup.json./tenant}",
		"key parts p {\nheader Idempotency-Key\nvalue {http.dedup.json./tenant} optional\n}",
	} {
		for _, missing := range []string{"pass", "reject"} {
			address, runs := startUpstream(t, answers(201, ""))
			s := serve(t, "header >X-Outcome {http.dedup.outcome}", "dedup {", lines, "max_request_body 60", "on_missing "+missing, "}", "reverse_proxy "+address)
			for body, outcome := range map[string]string{
				`{"tenant":{"a":1}}`: "unusable", `{"tenant":["a"]}`: "unusable", `{"tenant":"\ud83d"}`: "unusable",
				`{"tenant":"a","tenant":"a"}`: "missing", "{\"tenant\":\"\xff\"}": "missing", `tenant=a`: "missing",
			} {
				if strings.HasPrefix(lines, "key parts") { // whose first part is there
					outcome = "unusable"
				}
				runs.Store(0)
				for range 2 {
					if got := s.mustPost("k", body); got.header.Get("X-Outcome") != outcome {
						t.Errorf("%s, %s: got %+v", lines, body, got)
					}
				}
				if want := map[string]int64{"pass": 2}[missing]; runs.Load() != want {
					t.Errorf("%s, %s: ran %d times with on_missing %s", lines, body, runs.Load(), missing)
				}
			}
			large := s.mustPost("k", `{"tenant":"a","long":"`+strings.Repeat("x", 60)+`"}`)
			if large.status != http.StatusRequestEntityTooLarge || runs.Load() > 2 {
				t.Errorf("%s: a body too large got %+v", lines, large)
			}
			s.stop()
		}
	}
}

// A scope of one's own keeps what a provider needs: all hooks of a repository get an event under
// one ID.
func TestOwnScopeKeepsTheProviders(t *testing.T) {
	address, runs := startUpstream(t, answers(201, ""))
	s := serve(t, "dedup github {", "scope {http.dedup.json./tenant}", "}", "reverse_proxy "+address)
	for _, hook := range []string{"1", "2", "1"} {
		s.mustPost("", `{"tenant":"a"}`, "X-GitHub-Delivery", "d", "X-GitHub-Hook-ID", hook)
	}
	if runs.Load() != 2 {
		t.Errorf("two hooks ran %d times", runs.Load())
	}
}

// What is known of the run that completed the key, for each answer that a duplicate gets.
func TestPlaceholdersOfTheFirstRun(t *testing.T) {
	const fields = `{http.dedup.first.status}|{http.dedup.first.header.x-own}|{http.dedup.first.header.X-Two}|{http.dedup.first.json./run/id}|{http.dedup.first.json./\}}|{http.dedup.first.none}`
	const unknown = "|{http.dedup.first.none}"
	for name, c := range map[string]struct{ lines, response, want string }{
		"replay":          {"fingerprint none\non_duplicate replay", "", `201|own|a,b|7.0|{"a":null}`},
		"conflict":        {"fingerprint none\non_duplicate conflict", "", `201|own|a,b|7.0|{"a":null}`},
		"acknowledge":     {"fingerprint none\non_duplicate acknowledge", "", `201|own|a,b|7.0|{"a":null}`},
		"see_other":       {"fingerprint none\non_duplicate see_other", "", `201|own|a,b|7.0|{"a":null}`},
		"not kept":        {"fingerprint none\nmax_response_body 5", "", `201|own|a,b||`},
		"large":           {"fingerprint none", `{"run":{"id":1},"x":"` + strings.Repeat("x", 60<<10) + `"}`, `201|own|a,b|1|`},
		"large, conflict": {"fingerprint none\non_duplicate conflict", `{"run":{"id":1},"x":"` + strings.Repeat("x", 60<<10) + `"}`, `201|own|a,b|1|`},
		"large, reused":   {"fingerprint body", `{"run":{"id":1},"x":"` + strings.Repeat("x", 60<<10) + `"}`, `201|own|a,b|1|`},
		"too large":       {"fingerprint none", `{"run":{"id":1},"x":"` + strings.Repeat("x", 64<<10) + `"}`, `201|own|a,b||`},
		"not JSON":        {"fingerprint none", "{{", `201|own|a,b||`},
		"reused":          {"fingerprint body", "", `201|own|a,b|7.0|{"a":null}`},
		"released":        {"release_on 201", "", "||||"},
		"another key":     {"scope {http.request.header.X-N}", "", "||||"},
	} {
		t.Run(name, func(t *testing.T) {
			address, _ := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
				w.Header()["X-Own"], w.Header()["X-Two"], w.Header()["Location"] = []string{"own"}, []string{"a", "b"}, []string{"/runs/7"}
				w.WriteHeader(201)
				if c.response == "" {
					c.response = `{"run":{"id":7.0},"}":{"a":null}}`
				}
				_, _ = w.Write([]byte(c.response))
			})
			s := serve(t, "header >X-First `"+fields+"`", "header >X-ID {http.dedup.first.execution_id}", "dedup {", c.lines, "}",
				"reverse_proxy "+address, "handle_errors {", "header X-Page `"+fields+"`", "respond page", "}")
			first, again := s.mustPost("k", "1", "X-N", "1"), s.mustPost("k", "2", "X-N", "2")
			if first.header.Get("X-First") != "||||"+unknown || first.header.Get("X-ID") != "" {
				t.Errorf("the first request has %q, %q", first.header.Get("X-First"), first.header.Get("X-ID"))
			}
			if again.header.Get("X-First") != c.want+unknown || again.body == "page" && again.header.Get("X-Page") != c.want+unknown {
				t.Errorf("got %q, and in the page %q; want %q", again.header.Get("X-First"), again.header.Get("X-Page"), c.want)
			}
			if id := again.header.Get("X-ID"); (id != "") != (c.want != "||||") || id != "" && id != first.header.Get("Dedup-Execution-Id") {
				t.Errorf("the first run is %q", id)
			}
		})
	}
}

// What they are read from takes room until the request ends: a body with members, and no larger one. Without room
// to read it they are empty.
func TestRoomOfTheFirstRun(t *testing.T) {
	for name, c := range map[string]struct {
		size, taken int // bytes
		full        bool
		fields      string
		want        string
	}{
		"members": {40 << 10, 40 << 10, false, "{http.dedup.first.header.X-Own}|{http.dedup.first.json./run}", "own|7"},
		"a field": {40 << 10, 40 << 10, false, "{http.dedup.first.header.X-Own}", "own"},
		"large":   {100 << 10, 0, false, "{http.dedup.first.header.X-Own}|{http.dedup.first.json./run}", "own|"},
		"no room": {40 << 10, 0, true, "{http.dedup.first.header.X-Own}|{http.dedup.first.json./run}", "|"},
	} {
		t.Run(name, func(t *testing.T) {
			address, _ := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
				w.Header()["X-Own"] = []string{"own"}
				_, _ = io.WriteString(w, `{"run":7,"x":"`+strings.Repeat("x", c.size)+`"}`)
			})
			var before, taken int64
			var got string
			page, _ := startUpstream(t, func(_ http.ResponseWriter, r *http.Request, _ int) {
				taken, got = buffered.Used()-before, r.Header.Get("X-First")
			})
			s := serveWith(t, "local_copies off\nlimits {\nbuffered 4MiB\n}", "dedup {", "on_duplicate conflict", "}", "reverse_proxy "+address,
				"handle_errors {", "reverse_proxy "+page+" {", "header_up X-First `"+c.fields+"`", "}", "}")
			s.mustPost("k", "body")
			others := &budget.Allowance{Budget: buffered}
			if c.full {
				others.Count(4 << 20)
			}
			before = buffered.Used()
			s.mustPost("k", "body")
			others.ReleaseAll()
			const small = 4 << 10 // what else the request holds
			if got != c.want || taken < int64(c.taken) || c.taken == 0 && taken > small {
				t.Errorf("got %q, while %d bytes are taken; want %q and %d", got, taken, c.want, c.taken)
			}
		})
	}
}

// In a forced run they are those of the record that it replaces, for the handlers behind, and in
// front if nothing has replaced it.
func TestPlaceholdersOfTheFirstRunWhenForced(t *testing.T) {
	const fields = `{http.dedup.first.status}|{http.dedup.first.execution_id}|{http.dedup.first.header.X-Own}|{http.dedup.first.json./run}`
	for name, c := range map[string]struct {
		body   string
		member string
	}{"small": {`{"run":7}`, "7"}, "large": {`{"run":7,"x":"` + strings.Repeat("x", 100<<10) + `"}`, ""}} {
		t.Run(name, func(t *testing.T) {
			var got string
			address, _ := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n int) {
				got = r.Header.Get("X-First")
				w.Header()["X-Own"] = []string{"own"}
				if n > 1 {
					w.WriteHeader(503)
				}
				_, _ = w.Write([]byte(c.body))
			})
			s := serve(t, "header >X-First `"+fields+"`", "dedup {", "force X-Force", "}", "reverse_proxy "+address+" {", "header_up X-First `"+fields+"`", "}")
			first := s.mustPost("k", "body")
			if got != "|||" {
				t.Errorf("the first run has %q", got)
			}
			again := s.mustPost("k", "body", "X-Force", "true")
			want := "200|" + first.header.Get("Dedup-Execution-Id") + "|own|" + c.member
			if got != want || again.header.Get("X-First") != want || again.header.Get("Dedup-Parent-Id") != first.header.Get("Dedup-Execution-Id") {
				t.Errorf("the forced run has %q, and its client %v; want %q", got, again.header, want)
			}
		})
	}
}

// A name of the catalogue on a whole site does not make its uploads wait, or take room for them:
// the body of a request that no provider can have sent is not read.
func TestBodyOfNoProviderIsNotRead(t *testing.T) {
	for name, c := range map[string]struct {
		dedup, header string
		read          bool
	}{
		"stripe's":           {"dedup stripe", "Stripe-Signature", true},
		"not stripe's":       {"dedup stripe", "Content-Type", false},
		"paddle's":           {"dedup github paddle", "Paddle-Signature", true},
		"not paddle's":       {"dedup github paddle", "Content-Type", false},
		"a handshake":        {"dedup notion", "Content-Type", true},
		"without a key":      {"dedup {\nfingerprint json\n}", "Content-Type", false},
		"with a key":         {"dedup {\nfingerprint json\n}", "Idempotency-Key", true},
		"one of its members": {"dedup {\nkey value {http.dedup.json./id}\n}", "Content-Type", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, c.dedup, "respond 201")
			body := strings.NewReader(`{"id":"1"}`)
			r := httptest.NewRequest(http.MethodPost, "/", body)
			r.Header.Set(c.header, "1")
			w := httptest.NewRecorder()
			s.Config.Handler.ServeHTTP(w, r)
			if w.Code != 201 || (body.Len() == 0) != c.read {
				t.Errorf("got %d, and %d bytes are not read; want 201, read %v", w.Code, body.Len(), c.read)
			}
		})
	}
}

// Operators see the members of the body by which keys of one ID differ: those that the scope names, also by
// way of a handler in front, and no others.
func TestRecordHasTheMembersOfItsScope(t *testing.T) {
	long := strings.Repeat("é", 200)
	for scope, want := range map[string][]string{
		"{http.dedup.json./tenant} {http.dedup.json./a/0}":          {"/tenant=shop", "/a/0=1"},
		"x{tenant}-{http.dedup.json./tenant}":                       {"/tenant=shop"},
		"{http.dedup.json./none} {http.request.host}":               {"/none="},
		"{http.dedup.json./long}":                                   {"/long=" + strings.Repeat("é", 124)},
		"{http.request.header.Authorization} {http.request.method}": nil,
		"shared": nil,
	} {
		address, _ := startUpstream(t, answers(201, ""))
		s := serve(t, "map {http.dedup.json./tenant} {tenant} {", "default {http.dedup.json./tenant}", "}",
			"dedup {", "scope "+scope, "key json /id", "}", "reverse_proxy "+address)
		s.mustPost("", `{"id":"k","tenant":"shop","a":[1],"secret":"x","long":"`+long+`"}`, "Authorization", "Bearer secret")
		if got := s.only().Scope; !slices.Equal(got, want) {
			t.Errorf("scope %s: the record has %q, want %q", scope, got, want)
		}
		s.stop()
	}
}
