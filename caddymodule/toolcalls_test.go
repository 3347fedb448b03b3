package caddymodule

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// callOf returns a tool call with an id, as it is written, and a key.
func callOf(id, key string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"pay","arguments":{"idempotency_key":%q}}}`, id, key)
}

const (
	asJSON   = "application/json"
	asEvents = "text/event-stream"
)

// toolServer answers tool calls with a body, as the first request's fields say.
func toolServer(t *testing.T) string {
	address, _ := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n int) {
		status, _ := strconv.Atoi(cmp.Or(r.Header.Get("X-Status"), "200"))
		w.Header().Set("Content-Type", r.Header.Get("X-Type"))
		w.Header().Set("Mcp-Session-Id", "session")
		w.Header().Set("Cache-Control", "no-cache")
		w.Header().Set("X-Accel-Buffering", "no")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, strings.ReplaceAll(r.Header.Get("X-Says"), "|", "\n"))
	})
	return address
}

var toolCallsBlock = []string{"dedup {", "mode mcp", "key json /params/arguments/idempotency_key", "}"}

// How a tool call ends, by what its server answers (contract, section 3b).
func TestToolCallEnds(t *testing.T) {
	const kept, released = idempotency.Complete, idempotency.Released
	const pays, fails = `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`, `{"jsonrpc":"2.0","id":1,"result":{"isError":true}}`
	address := toolServer(t)
	for name, c := range map[string]struct {
		kind, says, status string
		state              idempotency.State
	}{
		"a result":                    {asJSON, pays, "", kept},
		"a task":                      {asJSON, `{"id":1,"result":{"resultType":"task"}}`, "", kept},
		"an error at 400":             {asJSON, `{"id":1,"error":{"code":-1}}`, "400", released},
		"a question":                  {asJSON, `{"id":1,"result":{"resultType":"input_required"}}`, "", released},
		"HTML":                        {"text/html", "<p>", "", released},
		"a result in a stream":        {asEvents, ": hello||data: {\"method\":\"notifications/progress\"}||data: " + pays + "||", "", kept},
		"isError in a stream":         {asEvents, "data: " + fails + "||data: " + pays + "||", "", released},
		"a stream without a response": {asEvents, ": hello||", "", released},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, append(toolCallsBlock, "reverse_proxy "+address)...)
			defer func() {
				s.stop()
				if held := buffered.Used(); held != 0 {
					t.Errorf("%d bytes are held when all is answered", held)
				}
			}()
			header := []string{"X-Type", c.kind, "X-Says", c.says, "X-Status", c.status}
			first := s.mustPost("", callOf("1", name), header...)
			if want := strings.ReplaceAll(c.says, "|", "\n"); eventIDLine.ReplaceAllString(first.body, "") != want {
				t.Errorf("the first client got %q", first.body)
			}
			if first.header.Get("Mcp-Session-Id") != "session" {
				t.Errorf("the first client got the header %v", first.header)
			}
			record := s.only()
			if record.State != c.state {
				t.Fatalf("the key is %v (%s), want %v", record.State, record.Reason, c.state)
			}
			if (record.Reason != "") != (c.state == released) {
				t.Errorf("the reason is %q", record.Reason)
			}
			second := s.mustPost("", callOf(`"\u0032"`, name), append(header, "MCP-Protocol-Version", "2026-07-28")...)
			if replayed := second.header.Get("Idempotent-Replayed") != ""; replayed != (c.state == kept) {
				t.Errorf("the second client got %v", second)
			}
			if c.state != kept {
				return
			}
			if !strings.Contains(second.body, `"id":"\u0032"`) || strings.Count(second.body, `"caddy-dedup/replayed":true`) != 1 || !strings.Contains(second.body, `"resultType":`) || !json.Valid([]byte(second.body)) {
				t.Errorf("the second client got %s", second.body)
			}
			if h := second.header; second.status != 200 || h.Get("Content-Type") != asJSON || h.Get("Mcp-Session-Id") != "" || h.Get("Cache-Control") != "" || h.Get("X-Accel-Buffering") != "" {
				t.Errorf("the second client got %d %v", second.status, h)
			}
		})
	}
}

// What is no tool call passes, and is not counted; a refused call gets a JSON-RPC error with its id, at
// status 200 (contract, section 3b).
func TestToolCallRequests(t *testing.T) {
	const pays = `{"jsonrpc":"2.0","id":1,"result":{}}`
	large := strings.Repeat("x", 300)
	call := func(id string) string { return callOf(id, "k") }
	for name, c := range map[string]struct {
		body    string
		header  []string
		blocks  string
		runs    bool   // a second request is a duplicate
		refused string // what the body of the answer has
		status  int
	}{
		"a call":         {body: call("1"), runs: true},
		"another method": {body: `{"id":1,"method":"tools/list","params":{"arguments":{"idempotency_key":"k"}}}`},
		"no key":         {body: `{"id":1,"method":"tools/call","params":{}}`},
		"no key, rejected": {body: `{"id":"a","method":"tools/call","params":{}}`, blocks: "on_missing reject",
			refused: `{"jsonrpc":"2.0","id":"a","error":{"code":400,`, status: 200},
		"an id with a fraction, rejected": {body: call("1.0"), blocks: "on_missing reject",
			refused: `{"jsonrpc":"2.0","id":1.0,"error":{"code":400,`, status: 200},
		"an id that is null, rejected": {body: call("null"), blocks: "on_missing reject",
			refused: `{"jsonrpc":"2.0","id":null,"error":{"code":400,`, status: 400},
		"a batch, rejected": {body: " [" + call("1") + "]", blocks: "on_missing reject",
			refused: `{"jsonrpc":"2.0","id":null,"error":{"code":400,`, status: 400},
		"another method, not rejected": {body: `{"id":1,"method":"tools/list"}`, blocks: "on_missing reject"},
		"no UTF-8":                     {body: "{\"id\":1,\"method\":\"tools/call\",\"params\":\"\xff\"}", blocks: "key header X-Key", header: []string{"X-Key", "k"}},
		"no UTF-8, rejected": {body: "{\"id\":1,\"method\":\"tools/call\",\"params\":\"\xff\"}", blocks: "key header X-Key\non_missing reject", header: []string{"X-Key", "k"},
			refused: `{"jsonrpc":"2.0","id":1,"error":{"code":400,`, status: 200},
		"no canonical form":            {body: `{"id":1,"method":"tools/call","params":1e999}`, blocks: "key header X-Key", header: []string{"X-Key", "k"}},
		"no canonical form of content": {body: `{"id":1,"method":"tools/call","params":1e999}`, blocks: "key content\nretention 1m", header: []string{"Authorization", "a"}},
		"a key that is too long":       {body: callOf("3", large), refused: "", status: 0},
		"another call": {body: strings.Replace(call("-7"), "pay", "refund", 1), blocks: "#used",
			refused: `{"jsonrpc":"2.0","id":-7,"error":{"code":422,`, status: 200},
		"too large": {body: callOf("5", large), blocks: "max_request_body 200",
			refused: `{"jsonrpc":"2.0","id":5,"error":{"code":413,`, status: 200},
		"too large, its id behind the limit": {body: `{"method":"tools/call","params":{"x":"` + large + `"},"id":5}`, blocks: "max_request_body 200",
			refused: `{"jsonrpc":"2.0","id":null,"error":{"code":413,`, status: 413},
		"of a tool":                   {body: call("1"), blocks: "tools refund pay", runs: true},
		"of another tool":             {body: call("1"), blocks: "tools refund"},
		"of another tool, no key":     {body: `{"id":1,"method":"tools/call","params":{"name":"pay"}}`, blocks: "tools refund\non_missing reject"},
		"of another tool, another id": {body: call("1.0"), blocks: "tools refund\non_missing reject"},
		"too large, of another tool":  {body: callOf("5", large), blocks: "tools refund\nmax_request_body 200"},
		"too large, and no call":      {body: `{"id":1,"method":"tools/list","params":{"x":"` + large + `"}}`, blocks: "max_request_body 200"},
	} {
		t.Run(name, func(t *testing.T) {
			address, runs := startUpstream(t, func(w http.ResponseWriter, r *http.Request, _ int) {
				if r.ContentLength != int64(len(c.body)) && c.blocks != "#used" {
					t.Errorf("the upstream got %d bytes of %d", r.ContentLength, len(c.body))
				}
				w.Header().Set("Content-Type", asJSON)
				_, _ = io.WriteString(w, pays)
			})
			s := serve(t, "dedup {", "mode mcp", "key json /params/arguments/idempotency_key", c.blocks, "}", "reverse_proxy "+address,
				"handle_errors {", "respond page", "}")
			if c.blocks == "#used" {
				s.mustPost("", call("1"))
				runs.Store(0)
			}
			for range 2 {
				got := s.mustPost("", c.body, c.header...)
				if want := cmp.Or(c.status, 200); got.status != want || !strings.HasPrefix(got.body, c.refused) {
					t.Errorf("got %d %s", got.status, got.body)
				}
				if c.refused != "" && (!json.Valid([]byte(got.body)) || got.header.Get("Content-Type") != asJSON) {
					t.Errorf("got %s, %v", got.body, got.header)
				}
			}
			want := int64(2)
			switch {
			case c.refused != "":
				want = 0
			case c.runs:
				want = 1
			}
			if n := runs.Load(); n != want {
				t.Errorf("the upstream got %d requests, want %d", n, want)
			}
		})
	}
}

// The fingerprint is the query and the params, without what differs between the rounds of one call and what
// exclude names. The scope has the caller.
func TestToolCallsThatAreOne(t *testing.T) {
	const params = `"name":"pay","arguments":{"idempotency_key":"k","amount":1.0,"token":"a"}`
	const first = `{"id":1,"method":"tools/call","params":{` + params + `}}`
	for name, c := range map[string]struct {
		body, header string
		status       int // 0 for a replay, -1 for a run
		query        string
	}{
		"another round":           {`{"id":2,"method":"tools/call","params":{` + params + `,"_meta":{"progressToken":9},"inputResponses":[1],"requestState":"s"}}`, "", 0, ""},
		"what is left":            {`{"id":2,"method":"tools/call","params":{` + strings.Replace(params, "1.0", "2", 1) + `}}`, "", 422, ""},
		"another caller":          {first, "Bearer b", -1, ""},
		"another query":           {first, "", 422, "?api_key=bob&ts=1"},
		"no query":                {first, "", 422, "?"},
		"what the query excludes": {first, "", 0, "?api_key=alice&ts=2"},
	} {
		t.Run(name, func(t *testing.T) {
			address, runs := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
				w.Header().Set("Content-Type", asJSON)
				_, _ = io.WriteString(w, `{"id":1,"result":{}}`)
			})
			s := serve(t, "dedup {", "mode mcp", "key json /params/arguments/idempotency_key", "exclude /params/arguments/token ?ts", "}", "reverse_proxy "+address)
			s.URL += "/mcp?api_key=alice&ts=1#"
			s.mustPost("", first, "Authorization", "Bearer a")
			if c.query != "" {
				s.URL = strings.Replace(s.URL, "?api_key=alice&ts=1", c.query, 1)
			}
			got := s.mustPost("", c.body, "Authorization", cmp.Or(c.header, "Bearer a"))
			if c.status > 0 && !strings.Contains(got.body, fmt.Sprintf(`"status":%d`, c.status)) {
				t.Errorf("got %s", got.body)
			}
			if want := map[bool]int64{true: 2, false: 1}[c.status < 0]; runs.Load() != want {
				t.Errorf("%d runs, want %d; got %s", runs.Load(), want, got.body)
			}
		})
	}
}

// A key of content is the fingerprint, with the caller or the session. Without either there is no key.
func TestToolCallsOfContent(t *testing.T) {
	const call = `{"id":1,"method":"tools/call","params":{"name":"pay","arguments":{"amount":1,"token":"a"}}}`
	const alice, bob = "Authorization: alice", "Authorization: bob"
	const a, b = "Mcp-Session-Id: a", "Mcp-Session-Id: b"
	const byUser = "scope {http.request.header.X-User}"
	for name, c := range map[string]struct {
		lines         string
		first, second string // fields
		query, body   string // of the second
		runs          int64
	}{
		"the same":                       {"", alice, alice, "", call, 1},
		"another id and order":           {"", alice, alice, "", `{"params":{"arguments":{"token":"b","amount":1.0},"_meta":{"x":1},"name":"pay"},"method":"tools/call","id":"b"}`, 1},
		"another argument":               {"", alice, alice, "", strings.Replace(call, ":1,\"token", ":2,\"token", 1), 2},
		"another query":                  {"", alice, alice, "?a=2&ts=1", call, 2},
		"what the query excludes":        {"", alice, alice, "?a=1&ts=2", call, 1},
		"another caller":                 {"", alice, bob, "", call, 2},
		"of one caller, in two sessions": {"", alice + "|" + a, alice + "|" + b, "", call, 1},
		"of one session":                 {"", a, a, "", call, 1},
		"of two sessions":                {"", a, b, "", call, 2},
		"unidentified":                   {"", "X-User: alice", "X-User: alice", "", call, 2},
		"of a user":                      {byUser, "X-User: alice|" + a, "X-User: alice|" + b, "", call, 1},
		"of a session without a user":    {byUser, a, a, "", call, 1},
		"of two sessions without one":    {byUser, a, b, "", call, 2},
		"of no user":                     {byUser, alice, alice, "", call, 2},
		"of all":                         {"scope shared", alice, b, "", call, 1},
		"with a part":                    {"key parts x {\nheader X-User\ncontent\n}", "X-User: a|" + a, "X-User: a|" + a, "", call, 1},
		"with another part":              {"key parts x {\nheader X-User\ncontent\n}", "X-User: a|" + a, "X-User: b|" + a, "", call, 2},
	} {
		t.Run(name, func(t *testing.T) {
			address, runs := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
				w.Header().Set("Content-Type", asJSON)
				_, _ = io.WriteString(w, `{"id":1,"result":{}}`)
			})
			if !strings.Contains(c.lines, "key") {
				c.lines += "\nkey content"
			}
			s := serve(t, "dedup {", "mode mcp", c.lines, "retention 1m", "exclude /params/arguments/token ?ts", "}", "reverse_proxy "+address)
			at := s.URL
			send := func(query, fields, body string) {
				s.URL = at + "/mcp" + query + "#"
				var header []string
				for field := range strings.SplitSeq(fields, "|") {
					name, value, _ := strings.Cut(field, ": ")
					header = append(header, name, value)
				}
				if got := s.mustPost("", body, header...); got.status != 200 || strings.Contains(got.body, "error") {
					t.Errorf("got %d %s", got.status, got.body)
				}
			}
			send("?a=1&ts=1", c.first, call)
			send(cmp.Or(c.query, "?a=1&ts=1"), c.second, c.body)
			if runs.Load() != c.runs {
				t.Errorf("%d runs, want %d", runs.Load(), c.runs)
			}
		})
	}
}

// Each round of a call that asks for input is no attempt: the last one allowed gets the result, and is not kept
// as the question.
func TestToolCallOfSeveralRounds(t *testing.T) {
	for _, kind := range []string{asJSON, asEvents} {
		t.Run(kind, func(t *testing.T) {
			address, runs := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, n int) {
				text := `{"id":1,"result":{"resultType":"input_required"}}`
				if n == 4 {
					text = `{"id":1,"result":{}}`
				}
				w.Header().Set("Content-Type", kind)
				if kind == asEvents {
					text = "data: " + text + "\n\n"
				}
				_, _ = io.WriteString(w, text)
			})
			s := serve(t, "dedup {", "mode mcp", "key json /params/arguments/idempotency_key", "max_attempts 1", "}", "reverse_proxy "+address)
			for round := range 4 {
				got := s.mustPost("", callOf("1", "k"))
				if strings.Contains(got.body, "input_required") != (round < 3) || got.header.Get("Idempotent-Replayed") != "" {
					t.Errorf("round %d got %s, %v", round, got.body, got.header)
				}
			}
			if got := s.mustPost("", callOf("2", "k")); !strings.Contains(got.body, "replayed") || runs.Load() != 4 || s.only().Attempt != 1 {
				t.Errorf("the repeat got %s after %d runs, in %d attempts", got.body, runs.Load(), s.only().Attempt)
			}
		})
	}
}

// The response is stored before the client has the event that ends the call, however the upstream goes
// on. Who waits gets it at once, and a cancellation meanwhile is not handed on.
func TestToolCallIsStoredAtItsResponse(t *testing.T) {
	begun, says, end := make(chan bool), make(chan bool), make(chan bool)
	address, runs := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, n int) {
		if n > 1 {
			_, _ = io.WriteString(w, "handed on")
			return
		}
		w.Header().Set("Content-Type", asEvents)
		_, _ = io.WriteString(w, "data: {\"method\":\"notifications/progress\"}\n\n")
		_ = http.NewResponseController(w).Flush()
		close(begun)
		<-says
		_, _ = io.WriteString(w, "data: {\"id\":1,\"result\":{}}\n\n")
		_ = http.NewResponseController(w).Flush()
		<-end
		_, _ = io.WriteString(w, ": more\n\n")
	})
	s := serve(t, append(toolCallsBlock, "reverse_proxy "+address)...)
	first, err := oneRequest.Do(s.outgoing(with(callOf("1", "k"), "Mcp-Session-Id: a")))
	if err != nil {
		t.Fatal(err)
	}
	defer first.Body.Close()
	<-begun
	stream := bufio.NewReader(first.Body)
	line := func() string {
		text, err := stream.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	if got := eventIDLine.ReplaceAllString(line()+line()+line(), ""); got != "data: {\"method\":\"notifications/progress\"}\n\n" {
		t.Errorf("the client got %q before the response", got)
	}
	for _, c := range []struct {
		id, session, caller string
		status              int
	}{{"1", "a", "", 202}, {"1", "b", "", 200}, {`"1"`, "a", "", 200}, {"1", "a", "Bearer other", 200}} {
		got := s.mustPost("", `{"method":"notifications/cancelled","params":{"requestId":`+c.id+`}}`, "Mcp-Session-Id", c.session, "Authorization", c.caller)
		if got.status != c.status {
			t.Errorf("the cancellation of %s in session %q by %q got %d %q", c.id, c.session, c.caller, got.status, got.body)
		}
	}
	if n := runs.Swap(1); n != 4 {
		t.Errorf("%d cancellations were handed on, want 3", n-1)
	}
	waited := make(chan answer, 1)
	go func() { waited <- s.mustPost("", callOf("2", "k")) }()
	s.waits()
	close(says)
	if got := <-waited; !strings.HasPrefix(got.body, `{"id":2,`) || got.header.Get("Idempotent-Replayed") == "" {
		t.Errorf("who waited got %+v", got)
	}
	if got := line() + line(); got != "data: {\"id\":1,\"result\":{}}\n\n" {
		t.Errorf("the client got the response %q", got)
	}
	if r := s.only(); r.State != idempotency.Complete {
		t.Errorf("the key is %v", r.State)
	}
	close(end)
	if got := line() + line(); got != ": more\n\n" {
		t.Errorf("the client got %q behind the response", got)
	}
	if got := s.mustPost("", `{"method":"notifications/cancelled","params":{"requestId":2}}`); got.status != 200 {
		t.Errorf("the cancellation of a call that has ended got %d", got.status)
	}
}

// A session does not end while calls of it are in flight with a key: its DELETE is answered, and handed on once
// when the last of them has ended.
func TestToolCallOutlivesItsSession(t *testing.T) {
	begun, end, deleted := make(chan string, 9), make(chan bool), make(chan http.Header, 9)
	address, _ := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n int) {
		if r.Method == http.MethodDelete {
			deleted <- r.Header
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		w.Header().Set("Content-Type", asJSON)
		if r.Header.Get("X-Lasts") != "" {
			begun <- ""
			<-end
		}
		_, _ = io.WriteString(w, `{"id":1,"result":{}}`)
	})
	s := serve(t, "request_header X-User alice", "dedup {", "mode mcp", "key json /params/arguments/idempotency_key", "}", "reverse_proxy "+address+" {", "header_up X-From {http.request.header.X-User}", "}")
	remove := func(session, caller string) int {
		return s.must(with("", "DELETE", "Authorization: "+caller, "Mcp-Session-Id: "+session)).status
	}
	answers := make(chan answer, 2)
	for _, key := range []string{"k", "l"} {
		go func() {
			got, _ := s.post("", callOf("1", key), "Mcp-Session-Id", "a", "Authorization", "alice", "X-Lasts", "1")
			answers <- got
		}()
		<-begun
	}
	for _, other := range [][2]string{{"b", "alice"}, {"a", "bob"}, {"", "alice"}} {
		if got := remove(other[0], other[1]); got != 405 || len(deleted) != 1 {
			t.Errorf("the DELETE of session %q by %s got %d", other[0], other[1], got)
		}
		<-deleted
	}
	for range 2 {
		if got := remove("a", "alice"); got != 202 || len(deleted) > 0 {
			t.Errorf("the DELETE of the session got %d, and %d were handed on", got, len(deleted))
		}
	}
	end <- true
	if got := <-answers; got.status != 200 || len(deleted) > 0 {
		t.Errorf("the first call to end got %+v, and %d were handed on", got, len(deleted))
	}
	end <- true
	if h := <-deleted; h.Get("Mcp-Session-Id") != "a" || h.Get("Authorization") != "alice" || h.Get("X-From") != "alice" {
		t.Errorf("a DELETE was handed on with %v", h)
	}
	if got := <-answers; got.status != 200 {
		t.Errorf("the last call got %+v", got)
	}
	if got := remove("a", "alice"); got != 405 || len(deleted) != 1 {
		t.Errorf("the DELETE of a session without calls got %d, and %d were handed on", got, len(deleted))
	}
}

// eventIDLine is the id of an event of dedup's.
var eventIDLine = regexp.MustCompile(`id: dedup:[0-9a-f]{64}:[\w-]+\n`)

// A client that has lost the stream of a call asks for the rest of it by the id of its last event, and gets the
// response under the id of its call, as soon as there is one, without another run.
func TestToolCallResumed(t *testing.T) {
	const key, pays = "key json /params/arguments/idempotency_key", `{"id":1,"result":{}}`
	for name, c := range map[string]struct {
		lines, says string
		want        string // the last event
		later       string // that of a GET which comes when all is over; want where it is empty
		begins      string // the stream; with a priming event where it is empty
	}{
		"a result":    {key, pays, `{"id":1,"result":{"_meta":{"caddy-dedup/replayed":true}}}`, "", ""},
		"in lines":    {key, "{\"id\":1,\ndata: \"result\":{}}", `{"id":1, "result":{"_meta":{"caddy-dedup/replayed":true}}}`, "", ""},
		"an error":    {key, `{"id":1,"error":{"code":-5}}`, `{"id":1,"error":{"code":-5}}`, `{"id":1,"error":{"code":-5}}`, ""},
		"none":        {key, "", `{"jsonrpc":"2.0","id":1,"error":{"code":502,`, `{"jsonrpc":"2.0","id":1,"error":{"code":502,`, ""},
		"none, held":  {key + "\non_unknown hold", "", `{"jsonrpc":"2.0","id":1,"error":{"code":409,`, "", ""},
		"too large":   {key + "\nmax_response_body 512", `{"id":1,"result":"` + strings.Repeat("x", 600) + `"}`, `{"jsonrpc":"2.0","id":1,"error":{"code":409,`, "", ""},
		"conflict":    {key + "\non_duplicate conflict", pays, `{"id":1,"result":{"_meta":{"caddy-dedup/replayed":true}}}`, "", ""},
		"its scope":   {key + "\nscope {http.request.header.Authorization}", pays, `{"id":1,"result":{"_meta":{"caddy-dedup/replayed":true}}}`, "", ""},
		"its members": {key + "\nscope {http.request.header.Authorization} {http.dedup.json./params/name}", pays, `{"id":1,"result":{"_meta":{"caddy-dedup/replayed":true}}}`, "", ""},
		"of parts":    {"key parts x {\njson /params/arguments/idempotency_key\njson /params/name\n}", pays, `{"id":1,"result":{"_meta":{"caddy-dedup/replayed":true}}}`, "", ""},
		"of content":  {"key content\nretention 1m", pays, `{"id":1,"result":{"_meta":{"caddy-dedup/replayed":true}}}`, "", ""},
		"no wait":     {key + "\nwait off", pays, `{"id":1,"result":{"_meta":{"caddy-dedup/replayed":true}}}`, "", ""},
		"from header": {"key header X-Key", pays, `{"id":1,"result":{"_meta":{"caddy-dedup/replayed":true}}}`, "", ""},
		"no ids":      {key, pays, `{"id":1,"result":{"_meta":{"caddy-dedup/replayed":true}}}`, "", "data: {\"method\":\"notifications/progress\"}\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			says := make(chan bool)
			address, runs := startUpstream(t, func(w http.ResponseWriter, r *http.Request, _ int) {
				if r.Method == http.MethodGet {
					w.WriteHeader(http.StatusMethodNotAllowed)
					return
				}
				w.Header().Set("Content-Type", asEvents)
				_, _ = io.WriteString(w, cmp.Or(c.begins, "id: theirs\ndata:\n\n"))
				_ = http.NewResponseController(w).Flush()
				<-says
				if c.says != "" {
					_, _ = io.WriteString(w, "id: theirs-2\ndata: "+c.says+"\n\n")
				}
			})
			s := serve(t, "dedup {", "mode mcp", c.lines, "}", "reverse_proxy "+address)
			send := func(method, body, lastEvent, caller string) (*http.Response, *bufio.Reader) {
				got, err := oneRequest.Do(s.outgoing(with(body, method, "Authorization: "+caller, "X-Key: k", "Last-Event-ID: "+lastEvent)))
				if err != nil {
					t.Fatal(err)
				}
				return got, bufio.NewReader(got.Body)
			}
			line := func(from *bufio.Reader) string {
				text, err := from.ReadString('\n')
				if err != nil {
					t.Fatal(err)
				}
				return text
			}
			first, stream := send(http.MethodPost, callOf("1", "k"), "", "alice")
			event := line(stream) + line(stream) + line(stream)
			id := eventIDLine.FindString(event)
			if strings.Replace(event, id, "", 1) != strings.Replace(cmp.Or(c.begins, "data:\n\n"), "id: theirs\n", "", 1) {
				t.Fatalf("the first event is %q", event)
			}
			id = strings.TrimSpace(strings.TrimPrefix(id, "id: "))
			first.Body.Close() // the client has lost it
			resumed, stream := send(http.MethodGet, "", id, "alice")
			defer resumed.Body.Close()
			if got := line(stream) + line(stream) + line(stream); resumed.StatusCode != 200 || resumed.Header.Get("Content-Type") != asEvents || got != "id: "+id+"\ndata:\n\n" {
				t.Errorf("the rest begins with %d %v %q", resumed.StatusCode, resumed.Header, got)
			}
			status := func(lastEvent, caller string) int {
				got, _ := send(http.MethodGet, "", lastEvent, caller)
				got.Body.Close()
				return got.StatusCode
			}
			if got := status(id, "bob"); got != 404 {
				t.Errorf("another caller got %d", got)
			}
			if got := status("dedup:"+strings.Repeat("0", 64)+":MQ", "alice"); got != 404 {
				t.Errorf("a key without a record got %d", got)
			}
			passed := runs.Load()
			if got := status("theirs", "alice"); got != 405 || runs.Load() != passed+1 {
				t.Errorf("another GET got %d", got)
			}
			passed++
			close(says)
			rest := func(from *bufio.Reader) string {
				all, err := io.ReadAll(from)
				if err != nil || !strings.HasSuffix(string(all), "\n\n") {
					t.Errorf("the event is %q, %v", all, err)
				}
				return string(all)
			}
			if got := rest(stream); !strings.HasPrefix(got, "data: "+c.want) || strings.Count(got, "\n") != 2 {
				t.Errorf("the rest is %q", got)
			}
			second, stream := send(http.MethodGet, "", id[:strings.LastIndex(id, ":")]+":ImIi", "alice")
			defer second.Body.Close()
			later := strings.Replace(cmp.Or(c.later, c.want), `"id":1`, `"id":"b"`, 1)
			if got := rest(stream); second.StatusCode != 200 || !strings.HasPrefix(got, "data: "+later) {
				t.Errorf("afterwards it is %d %q, want %q", second.StatusCode, got, later)
			}
			if runs.Load() != passed {
				t.Errorf("the upstream got %d requests, want %d", runs.Load(), passed)
			}
		})
	}
}

// A scope that neither a GET nor a record has gives the events no id: the client repeats the call.
func TestToolCallWithoutEventIDs(t *testing.T) {
	s := serve(t, "dedup {", "mode mcp", "key json /params/arguments/idempotency_key", "caller {http.dedup.json./params/name}", "}", "reverse_proxy "+toolServer(t))
	got := s.mustPost("", callOf("1", "k"), "X-Type", asEvents, "X-Says", `id: 1|data: {"id":1,"result":{}}||id: 2|data:||`)
	if want := ":\ndata: {\"id\":1,\"result\":{}}\n\n:\ndata:\n\n"; got.body != want {
		t.Errorf("the client got %q", got.body)
	}
}

// A call that waited for a run without a JSON-RPC response gets its status, and so does the repeat of one that
// was the last allowed: nothing of it was too large to be kept.
func TestToolCallThatWaitedForAFailure(t *testing.T) {
	for name, c := range map[string]struct {
		kind   string
		status int
		body   string
		want   string
	}{
		"an error":   {"text/html", 500, "<p>", `{"code":500,`},
		"a web page": {"text/html", 200, "<p>", `{"code":502,`},
		"accepted":   {"", 202, "", `{"code":502,`},
		"nothing":    {asJSON, 503, "", `{"code":503,`},
	} {
		for _, attempts := range []string{"", "max_attempts 1"} {
			t.Run(name+" "+attempts, func(t *testing.T) {
				begun, end := make(chan bool), make(chan bool)
				address, runs := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
					close(begun)
					<-end
					w.Header().Set("Content-Type", c.kind)
					w.WriteHeader(c.status)
					_, _ = io.WriteString(w, c.body)
				})
				s := serve(t, "dedup {", "mode mcp", "key json /params/arguments/idempotency_key", attempts, "}", "reverse_proxy "+address)
				first, waited := make(chan answer, 1), make(chan answer, 1)
				go func() { first <- s.mustPost("", callOf("1", "k")) }()
				<-begun
				again := func() answer { return s.mustPost("", callOf("2", "k"), "Dedup-Execution-Id", "of a run in front") }
				go func() { waited <- again() }()
				s.waits()
				close(end)
				got := []answer{<-waited}
				if attempts != "" {
					got = append(got, again())
				}
				for _, got := range got {
					if got.header["Dedup-Not-Executed"] != nil { // its run may have
						t.Errorf("got the header %v", got.header)
					}
					if got.status != 200 || !strings.HasPrefix(got.body, `{"jsonrpc":"2.0","id":2,"error":`+c.want) || !strings.Contains(got.body, `"code":"upstream_failed"`) {
						t.Errorf("got %d %s", got.status, got.body)
					}
				}
				if got := <-first; got.status != c.status || got.body != c.body || runs.Load() != 1 {
					t.Errorf("the first client got %d %q of %d runs", got.status, got.body, runs.Load())
				}
			})
		}
	}
}

// slowly reads at most 8 MiB a second.
type slowly struct{ io.Reader }

func (r slowly) Read(p []byte) (int, error) {
	time.Sleep(4 * time.Millisecond)
	return r.Reader.Read(p[:min(len(p), 32<<10)])
}

// A stream that is longer than max_response_body reaches a client that reads it slowly, and is no reason to keep no
// response: what max_response_body measures is that. A client that leaves ends nothing.
func TestToolCallWithALongStream(t *testing.T) {
	event := "data: {\"method\":\"" + strings.Repeat("x", 1<<10) + "\"}\n\n"
	stream := strings.Repeat(event, 16<<10) + "data: {\"id\":1,\"result\":{}}\n\n"
	for _, leaves := range []bool{false, true} {
		address, runs := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
			w.Header().Set("Content-Type", asEvents)
			_, _ = io.WriteString(w, stream)
		})
		s := serve(t, "dedup {", "mode mcp", "key json /params/arguments/idempotency_key", "max_response_body 64KiB", "}", "reverse_proxy "+address)
		first, err := oneRequest.Do(s.outgoing(with(callOf("1", "k"))))
		if err != nil {
			t.Fatal(err)
		}
		if !leaves {
			if got, err := io.ReadAll(slowly{first.Body}); eventIDLine.ReplaceAllString(string(got), "") != stream || err != nil {
				t.Errorf("the client got %d bytes of %d, %v", len(got), len(stream), err)
			}
		}
		first.Body.Close()
		got := s.mustPost("", callOf("2", "k"))
		if got.body != `{"id":2,"result":{"_meta":{"caddy-dedup/replayed":true}}}` || runs.Load() != 1 {
			t.Errorf("the duplicate got %s after %d runs", got.body, runs.Load())
		}
		s.stop()
	}
}

// A client that is connected and reads nothing does not hold the response back, and what comes before it for
// client_idle only: the run goes on without it. Meanwhile it has no time limit, after that it has.
func TestToolCallWhoseClientReadsNothing(t *testing.T) {
	large := strings.Repeat("x", 20<<20)
	notification := `data: {"method":"` + strings.Repeat("x", 64<<10) + `"}` + "\n\n"
	result := `data: {"id":1,"result":{}}` + "\n\n"
	for name, c := range map[string]struct {
		timeout, idle, stream string
		state                 idempotency.State
	}{
		"a large response":           {"5s", "1h", `data: {"id":1,"result":{"text":"` + large + `"}}` + "\n\n", idempotency.Complete},
		"long progress":              {"3s", "4s", strings.Repeat(notification, 100) + result, idempotency.Complete},
		"progress that does not end": {"300ms", "1s", strings.Repeat(notification, 100), idempotency.Released},
	} {
		t.Run(name, func(t *testing.T) {
			address, _ := startUpstream(t, func(w http.ResponseWriter, r *http.Request, _ int) {
				w.Header().Set("Content-Type", asEvents)
				_, _ = io.WriteString(w, c.stream)
				if c.state == idempotency.Released {
					<-r.Context().Done()
				}
			})
			s := serveWith(t, "limits {\nclient_idle "+c.idle+"\n}", "dedup {", "mode mcp", "key json /params/arguments/idempotency_key", "max_response_body 32MiB", "timeout "+c.timeout, "}", "reverse_proxy "+address)
			first, err := oneRequest.Do(s.outgoing(with(callOf("1", "k"))))
			if err != nil {
				t.Fatal(err)
			}
			defer first.Body.Close()
			for deadline := time.Now().Add(20 * time.Second); s.only().State == idempotency.InFlight; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the run is still in flight")
				}
			}
			if r := s.only(); r.State != c.state {
				t.Errorf("the key is %v (%s)", r.State, r.Reason)
			}
		})
	}
}

// A response that is too large is not kept: its duplicates are refused with their id.
func TestToolCallWithALargeResponse(t *testing.T) {
	for _, kind := range []string{asJSON, asEvents} {
		t.Run(kind, func(t *testing.T) {
			result := `{"id":1,"result":{"text":"` + strings.Repeat("x", 8<<10) + `"}}`
			address, runs := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
				w.Header().Set("Content-Type", kind)
				if kind == asEvents {
					result = "data: " + result + "\n\n"
				}
				_, _ = io.WriteString(w, result)
			})
			s := serve(t, "dedup {", "mode mcp", "key json /params/arguments/idempotency_key", "max_response_body 4KiB", "}", "reverse_proxy "+address)
			if got := s.mustPost("", callOf("1", "k")); got.body != result {
				t.Errorf("the first client got %d bytes of %d", len(got.body), len(result))
			}
			got := s.mustPost("", callOf("2", "k"))
			if got.status != 200 || !strings.HasPrefix(got.body, `{"jsonrpc":"2.0","id":2,"error":{"code":409,`) || !strings.Contains(got.body, "response_not_kept") || runs.Load() != 1 {
				t.Errorf("the duplicate got %d %s after %d runs", got.status, got.body, runs.Load())
			}
		})
	}
}

// A response is kept that has room within `buffered` only because its run may exceed that: its bytes for
// the client and those that are read wait for each other in no order.
func TestToolCallBeyondBuffered(t *testing.T) {
	result := `{"id":1,"result":{"text":"` + strings.Repeat("x", 600<<10) + `"}}`
	address, _ := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
		w.Header().Set("Content-Type", asJSON)
		for piece := range slices.Chunk([]byte(result), 16<<10) {
			_, _ = w.Write(piece)
			_ = http.NewResponseController(w).Flush()
		}
	})
	s := serveWith(t, "limits {\nbuffered 1MiB\n}", append(toolCallsBlock, "reverse_proxy "+address)...)
	if got := s.mustPost("", callOf("1", "k")); got.body != result {
		t.Errorf("the first client got %d bytes of %d", len(got.body), len(result))
	}
	if r := s.only(); r.State != idempotency.Complete || r.Reason != "" {
		t.Errorf("the key is %v (%s)", r.State, r.Reason)
	}
}

// A request for which `buffered` has no room in one piece is as one beyond max_request_body.
func TestToolCallThatNeverFits(t *testing.T) {
	text := strings.Repeat("x", 600<<10)
	for name, c := range map[string]struct{ body, want string }{
		"no call":                       {`{"id":1,"method":"tools/list","params":{"x":"` + text + `"}}`, "passed"},
		"a call":                        {`{"id":1,"method":"tools/call","params":{"x":"` + text + `"}}`, `{"jsonrpc":"2.0","id":1,"error":{"code":413,`},
		"a call with its id at the end": {`{"method":"tools/call","params":{"x":"` + text + `"},"id":1}`, `{"jsonrpc":"2.0","id":null,"error":{"code":413,`},
	} {
		t.Run(name, func(t *testing.T) {
			address, _ := startUpstream(t, func(w http.ResponseWriter, r *http.Request, _ int) {
				if r.ContentLength != int64(len(c.body)) {
					t.Errorf("the upstream got %d bytes of %d", r.ContentLength, len(c.body))
				}
				_, _ = io.WriteString(w, "passed")
			})
			s := serveWith(t, "limits {\nbuffered 1MiB\n}", append(toolCallsBlock, "reverse_proxy "+address)...)
			if got := s.mustPost("", c.body); !strings.HasPrefix(got.body, c.want) {
				t.Errorf("got %d %.300s", got.status, got.body)
			}
		})
	}
}

// Under observe calls pass as they are, cancellations too, and are counted as they would have ended: what
// follows the response decides nothing.
func TestToolCallsUnderObserve(t *testing.T) {
	address, _ := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n int) {
		w.Header().Set("Content-Type", asEvents)
		_, _ = io.WriteString(w, []string{"data: {\"id\":1,\"result\":{\"isError\":true}}\n\n", "data: {\"id\":1,\"result\":{}}\n\n", "", "", ""}[n-1])
		if n == 2 {
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
	})
	s := serve(t, "dedup {", "observe", "mode mcp", "key json /params/arguments/idempotency_key", "}", "reverse_proxy "+address)
	counted := s.counted()
	for _, want := range []string{"executed", "executed", "replayed"} {
		_, _ = s.post("", callOf("1", "k"))
		counted.want(t, want)
	}
	for _, body := range []string{`{"method":"tools/list","id":1}`, `{"method":"notifications/cancelled","params":{"requestId":1}}`} {
		if got := s.mustPost("", body); got.status != 200 || len(counted.told) > 0 {
			t.Errorf("%s got %d, and %d were counted", body, got.status, len(counted.told))
		}
	}
}

// Under observe a response that is too large is one that was executed, though it breaks off behind that, and the
// length of the stream before a response is no matter.
func TestLargeAnswersToToolCallsUnderObserve(t *testing.T) {
	large := strings.Repeat("x", 8<<10)
	for name, c := range map[string]struct{ kind, answer, duplicate string }{
		"JSON":           {asJSON, `{"id":1,"result":{"text":"` + large + `"}}`, "not_kept"},
		"events":         {asEvents, `data: {"id":1,"result":{"text":"` + large + "\"}}\n\n", "not_kept"},
		"a long stream":  {asEvents, `data: {"method":"notifications/progress","params":"` + large + "\"}\n\ndata: {\"id\":1,\"result\":{}}\n\n", "replayed"},
		"no JSON or SSE": {"text/plain", large, "executed"},
	} {
		t.Run(name, func(t *testing.T) {
			address, _ := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
				w.Header().Set("Content-Type", c.kind)
				_, _ = io.WriteString(w, c.answer)
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			})
			s := serve(t, "dedup {", "observe", "mode mcp", "key json /params/arguments/idempotency_key", "max_response_body 4KiB", "}", "reverse_proxy "+address)
			counted := s.counted()
			for _, want := range []string{"executed", c.duplicate} {
				_, _ = s.post("", callOf("1", "k"))
				if got := <-counted.told; got != "custom "+want+" true" {
					t.Errorf("it counts as %s, want %s", got, want)
				}
			}
		})
	}
}

// Under observe clients get answers in the encodings that they accept. dedup reads none, and would have asked for
// none: they count as results.
func TestEncodedAnswersToToolCallsUnderObserve(t *testing.T) {
	for _, kind := range []string{asJSON, asEvents} {
		address, _ := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
			w.Header().Set("Content-Type", kind)
			w.Header().Set("Content-Encoding", "br")
			_, _ = io.WriteString(w, "...")
		})
		s := serveLogged(t, "", "", "dedup {", "observe", "mode mcp", "key content", "retention 1m", "}", "reverse_proxy "+address)
		counted := s.counted()
		for _, want := range []string{"executed", "replayed"} {
			s.mustPost("", callOf("1", "k"), "Authorization", "a", "Accept-Encoding", "br")
			counted.want(t, want)
		}
		s.stop()
		if lines := book.about("silent", "level", "warn"); len(lines) > 0 {
			t.Errorf("%s: the log says %v", kind, lines)
		}
	}
}

// JSON that is flushed reaches its client only when it is stored: here it breaks off behind its last byte.
func TestToolCallThatBreaksOffBehindItsResponse(t *testing.T) {
	const pays = `{"jsonrpc":"2.0","id":1,"result":{}}`
	address, _ := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
		w.Header().Set("Content-Type", asJSON)
		_, _ = io.WriteString(w, pays)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	s := serve(t, append(toolCallsBlock, "reverse_proxy "+address)...)
	if got, err := s.post("", callOf("1", "k")); strings.Contains(got.body, pays) {
		t.Errorf("the client got %q, %v", got.body, err)
	}
	if r := s.only(); r.State != idempotency.Released {
		t.Errorf("the key is %v", r.State)
	}
}

// A batch and a call with another id pass with a line in the log that says why.
func TestToolCallsWithoutKeyAreLogged(t *testing.T) {
	for body, reason := range map[string]string{"[" + callOf("1", "k") + "]": "a batch", callOf("1.0", "k"): "a tool call has an id", callOf("null", "k"): "a tool call has an id"} {
		s := serveLogged(t, "", "", append(toolCallsBlock, "reverse_proxy "+toolServer(t))...)
		s.mustPost("", body, "X-Type", asJSON)
		s.stop()
		if line := book.only(t, "unusable"); !strings.HasPrefix(line.text("reason"), reason) {
			t.Errorf("%s: the log says %v", body, line)
		}
	}
}

// An answer without a JSON-RPC response to a call with a key is a warning: the server speaks another
// transport.
func TestToolCallWithoutResponseIsLogged(t *testing.T) {
	for name, c := range map[string]struct {
		kind, says, status string
		warnings           int
	}{
		"accepted":        {asJSON, "", "202", 1},
		"no type":         {"", `{"id":1,"result":{}}`, "200", 1},
		"a broken stream": {asEvents, ": hello||", "200", 0},
		"a result":        {asJSON, `{"id":1,"result":{}}`, "200", 0},
	} {
		for _, observe := range []string{"", "observe"} {
			s := serveLogged(t, "", "", "dedup {", "mode mcp", observe, "key json /params/arguments/idempotency_key", "}", "reverse_proxy "+toolServer(t))
			s.mustPost("", callOf("1", "k"), "X-Type", c.kind, "X-Says", c.says, "X-Status", c.status)
			s.stop()
			if got := book.about("silent", "level", "warn"); len(got) != c.warnings {
				t.Errorf("%s %s: %d warnings, want %d: %v", name, observe, len(got), c.warnings, got)
			}
		}
	}
}
