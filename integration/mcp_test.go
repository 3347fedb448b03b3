package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// tools is the binary before a server with tools, whose answers each test scripts.
type tools struct {
	*caddy
	up      *upstream
	events  bool // the server answers by a stream
	shared  bool // others may use the store
	scripts *sync.Map
}

func startTools(t *testing.T, store string) tools {
	t.Helper()
	s := tools{scripts: new(sync.Map)}
	s.up = startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		script, _ := s.scripts.Load(n.Key)
		script.(answering)(w, r, n)
	})
	s.caddy = start(t, conf{store: store, site: lines(dedupBlock("mode mcp", "key json /params/arguments/idempotency_key"), proxyTo(s.up))})
	return s
}

// on says how the server answers the calls of a test, and returns their key. The upstream counts
// by the field Idempotency-Key, which is no source of a key here.
func (s tools) on(t *testing.T, script answering) (key string) {
	key = strings.ReplaceAll(t.Name(), "/", ".")
	s.scripts.Store(key, script)
	return key
}

// toolCall is the call with an id and a key. more is added to params.
func toolCall(id, key, more string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"pay","arguments":{"idempotency_key":%q}%s}}`, id, key, more)
}

func (s tools) call(t *testing.T, key, id string, options ...option) reply {
	t.Helper()
	return s.post(t, "/mcp", key, toolCall(id, key, ""), options...)
}

func (s tools) callLater(key, id string, options ...option) *pending {
	return s.postLater("/mcp", key, toolCall(id, key, ""), options...)
}

const ( // what is written of a result behind its _meta
	paid   = `"content":[{"type":"text","text":"RUN"}]}`
	failed = `"isError":true,` + paid
	asking = `"resultType":"input_required","requestState":"RUN"}`
)

// idOf finds the id of a call.
var idOf = regexp.MustCompile(`"id":([^,]*),"method":"tools/call"`)

// message is the response with a result to a call.
func message(n run, meta, result string) string {
	id := idOf.FindStringSubmatch(n.Body + `"id":null,"method":"tools/call"`)[1]
	return strings.ReplaceAll(`{"jsonrpc":"2.0","id":`+id+`,"result":{`+meta+result+`}`, "RUN", n.text())
}

// answers is the script of a server whose runs have these results, the last one all further runs.
func (s tools) answers(results ...string) answering {
	return func(w http.ResponseWriter, _ *http.Request, n run) {
		response := message(n, "", results[min(n.N, len(results))-1])
		w.Header().Set("Mcp-Session-Id", "s")
		w.Header().Set("X-Server", "tools")
		if !s.events {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, response)
			return
		}
		writeEvents(w, `{"method":"notifications/progress","params":{"progressToken":1}}`,
			`{"id":1,"method":"elicitation/create","params":{}}`, response)
	}
}

func writeEvents(w http.ResponseWriter, messages ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Set("X-Accel-Buffering", "no")
	for _, m := range messages {
		fmt.Fprintf(w, ": keepalive\n\nevent: message\ndata: %s\n\n", m)
		w.(http.Flusher).Flush()
	}
}

// wantRun fails unless an answer has the result of a run of its own, under the id of the call.
func (s tools) wantRun(t *testing.T, got reply, id, key string, n int, result string) {
	t.Helper()
	text := message(run{Key: key, N: n, Body: toolCall(id, key, "")}, "", result)
	if s.events {
		text = "data: " + text + "\n\n"
	}
	if got.Status != 200 || !strings.HasSuffix(got.Body, text) || got.Header.Get("Idempotent-Replayed") != "" {
		t.Errorf("got %d %s %q, want at its end %q", got.Status, got.Header, got.Body, text)
	}
}

// wantResult fails unless an answer is the kept result of a run, under the id of the call.
func wantResult(t *testing.T, got reply, id, key string, n int) {
	t.Helper()
	text := message(run{Key: key, N: n, Body: toolCall(id, key, "")}, `"_meta":{"caddy-dedup/replayed":true},`, paid)
	if got.Status != 200 || got.Body != text {
		t.Errorf("got %d %q, want %q", got.Status, got.Body, text)
	}
	for name, want := range map[string]string{
		"Content-Type": "application/json", "Idempotent-Replayed": "true", "X-Server": "tools",
		"Mcp-Session-Id": "", "Cache-Control": "", "X-Accel-Buffering": "",
	} {
		if got.Header.Get(name) != want {
			t.Errorf("%s is %q, want %q", name, got.Header.Get(name), want)
		}
	}
}

// wantRefusal fails unless an answer is a JSON-RPC error, under the id of the call.
func wantRefusal(t *testing.T, got reply, status int, id string, errorCode int, code string) {
	t.Helper()
	var body struct {
		ID    json.RawMessage
		Error struct {
			Code int
			Data struct {
				Code   string
				Status int
			}
		}
	}
	err := json.Unmarshal([]byte(got.Body), &body)
	e := body.Error
	if err != nil || got.Status != status || got.Header.Get("Content-Type") != "application/json" || string(body.ID) != id ||
		e.Code != errorCode || e.Data.Status != errorCode || e.Data.Code != code {
		t.Errorf("got %d %s %s, want %d with id %s and %d %s", got.Status, got.Header, got.Body, status, id, errorCode, code)
	}
}

// The scenarios are those of the official SDKs in integration/mcp, in the form of their requests.
func TestToolCalls(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]func(*testing.T) string{"file": func(*testing.T) string { return "store file" }, "redis": redisStore} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startTools(t, store(t))
			s.shared = name == "redis"
			for form, events := range map[string]bool{"json": false, "events": true} {
				s.events = events
				for scenario, run := range toolScenarios {
					t.Run(form+"/"+scenario, func(t *testing.T) { run(t, s) })
				}
			}
		})
	}
}

var toolScenarios = map[string]func(*testing.T, tools){
	"repeated": func(t *testing.T, s tools) {
		key := s.on(t, s.answers(paid))
		s.wantRun(t, s.call(t, key, `"a\u002d1"`), `"a\u002d1"`, key, 1, paid)
		wantResult(t, s.call(t, key, "1"), "1", key, 1)
		wantResult(t, s.call(t, key, `"a\u002d2"`), `"a\u002d2"`, key, 1)
		got := s.call(t, key, "9007199254740993", header("Mcp-Protocol-Version", "2026-07-28"))
		if want := `{"jsonrpc":"2.0","id":9007199254740993,"result":{"_meta":{"caddy-dedup/replayed":true},"resultType":"complete","content":`; !strings.HasPrefix(got.Body, want) {
			t.Errorf("got %s, want at its beginning %s", got.Body, want)
		}
		s.up.wantRuns(t, key, 1)
	},
	"two at once": func(t *testing.T, s tools) {
		g := newGate(t)
		key := s.on(t, g.before(s.answers(paid)))
		first := s.callLater(key, "1")
		s.up.awaitRuns(t, key, 1)
		second := s.callLater(key, "2")
		s.awaitWaiting(t, 1, second)
		g.open()
		s.wantRun(t, first.reply(t), "1", key, 1, paid)
		wantResult(t, second.reply(t), "2", key, 1)
		s.up.wantRuns(t, key, 1)
	},
	"failed, then done": func(t *testing.T, s tools) {
		key := s.on(t, s.answers(failed, paid))
		s.wantRun(t, s.call(t, key, "1"), "1", key, 1, failed)
		s.wantRun(t, s.call(t, key, "2"), "2", key, 2, paid)
		wantResult(t, s.call(t, key, "3"), "3", key, 2)
	},
	"cancelled, then repeated": func(t *testing.T, s tools) {
		g := newGate(t)
		key := s.on(t, g.before(s.answers(paid)))
		ctx, disconnect := context.WithCancel(t.Context())
		defer disconnect()
		first := s.callLater(key, "1", within(ctx), header("Mcp-Session-Id", "s"))
		s.up.awaitRuns(t, key, 1)
		other := key + ".other"
		s.scripts.Store(other, answersStatus(http.StatusNoContent))
		cancelled := `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`
		unknown, handedOn := http.StatusNoContent, 2
		if s.shared { // the call may be in flight in another process
			unknown, handedOn = http.StatusAccepted, 0
		}
		for _, c := range []struct {
			status  int
			options []option
		}{
			{202, []option{header("Mcp-Session-Id", "s")}},
			{unknown, []option{header("Mcp-Session-Id", "t")}},
			{unknown, []option{header("Mcp-Session-Id", "s"), header("Authorization", "Bearer other")}},
		} {
			if got := s.post(t, "/mcp", other, cancelled, c.options...); got.Status != c.status {
				t.Errorf("a cancellation was answered %d, want %d", got.Status, c.status)
			}
		}
		s.up.wantRuns(t, other, handedOn)
		disconnect()
		<-first.done
		second := s.callLater(key, "2")
		s.awaitWaiting(t, 1, second)
		g.open()
		wantResult(t, second.reply(t), "2", key, 1)
		s.up.wantRuns(t, key, 1)
	},
	"asks twice": func(t *testing.T, s tools) {
		key := s.on(t, s.answers(asking, asking, paid))
		rounds := []string{"", `,"requestState":"run 1","inputResponses":{"a":{}}`, `,"requestState":"run 2","inputResponses":{"b":{}},"_meta":{"x":1}`}
		for i, more := range rounds {
			id, result := fmt.Sprint(i+1), asking
			if i == 2 {
				result = paid
			}
			s.wantRun(t, s.post(t, "/mcp", key, toolCall(id, key, more)), id, key, i+1, result)
		}
		for _, more := range rounds {
			wantResult(t, s.post(t, "/mcp", key, toolCall(`"again"`, key, more)), `"again"`, key, 3)
		}
	},
	"refused": func(t *testing.T, s tools) {
		key := s.on(t, s.answers(paid))
		s.wantRun(t, s.call(t, key, "1"), "1", key, 1, paid)
		got := s.post(t, "/mcp", key, toolCall(`"2"`, key, `,"task":{}`))
		wantRefusal(t, got, 200, `"2"`, 422, "idempotency_key_reused")
		wantResult(t, s.call(t, key, "3"), "3", key, 1)
	},
}

// A client that has lost the stream of a call gets its result from any replica, and cancels the call on none.
func TestToolCallResumedOnAnotherReplica(t *testing.T) {
	t.Parallel()
	store := redisStore(t)
	a := startTools(t, store)
	b := start(t, conf{store: store, site: lines(dedupBlock("mode mcp", "key json /params/arguments/idempotency_key"), proxyTo(a.up))})
	g := newGate(t)
	key := a.on(t, func(w http.ResponseWriter, _ *http.Request, n run) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "id: theirs\ndata:\n\n")
		w.(http.Flusher).Flush()
		<-g.opened
		writeEvents(w, message(n, "", paid))
	})
	first, err := oneShot.Do(a.newPost("/mcp", key, toolCall(`"a"`, key, "")))
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(first.Body).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	first.Body.Close()
	id := strings.TrimSpace(strings.TrimPrefix(line, "id: "))
	resumed, err := oneShot.Do(b.newPost("/mcp", key, "", method(http.MethodGet), header("Last-Event-ID", id)))
	if err != nil {
		t.Fatal(err)
	}
	defer resumed.Body.Close()
	if got := b.post(t, "/mcp", key, `{"method":"notifications/cancelled","params":{"requestId":"a"}}`); got.Status != http.StatusAccepted {
		t.Errorf("the cancellation was answered %d", got.Status)
	}
	g.open()
	want := "id: " + id + "\ndata:\n\ndata: " + message(run{Key: key, N: 1, Body: toolCall(`"a"`, key, "")}, `"_meta":{"caddy-dedup/replayed":true},`, paid) + "\n\n"
	if got, err := io.ReadAll(resumed.Body); string(got) != want || err != nil {
		t.Errorf("the rest is %q, %v; want %q", got, err, want)
	}
	a.up.wantRuns(t, key, 1)
}

// badInput is the body of a request after a call with KEY was kept.
type badInput struct {
	body    string
	options []option
	// The id under which the kept result is the answer to its own caller; "" if it passes.
	replayed string
	// Or the id of its refusal, and the status of HTTP.
	refused string
	status  int
}

var (
	tooLong = strings.Repeat("x", 8<<20)

	badInputs = map[string]badInput{
		"batch":                    {body: "[" + toolCall("2", "KEY", "") + "]"},
		"notification":             {body: strings.Replace(toolCall("2", "KEY", ""), `"id":2,`, "", 1)},
		"id null":                  {body: toolCall("null", "KEY", "")},
		"id with a fraction":       {body: toolCall("2.0", "KEY", "")},
		"id with an exponent":      {body: toolCall("2e0", "KEY", "")},
		"id in an array":           {body: toolCall("[2]", "KEY", "")},
		"another method":           {body: strings.Replace(toolCall("2", "KEY", ""), "tools/call", "tools/list", 1)},
		"Mcp-Method disagrees":     {body: toolCall("2", "KEY", ""), options: []option{header("Mcp-Method", "tools/list")}},
		"no JSON":                  {body: toolCall("2", "KEY", "") + "}"},
		"key is an object":         {body: strings.Replace(toolCall("2", "KEY", ""), `"KEY"`, `{"KEY":1}`, 1)},
		"key is too long":          {body: toolCall("2", "KEY"+strings.Repeat("x", 256), "")},
		"nested deeply":            {body: toolCall("2", "KEY", `,"x":`+strings.Repeat("[", 100_000)+strings.Repeat("]", 100_000))},
		"id twice":                 {body: toolCall(`1,"id":2`, "KEY", ""), replayed: "2"},
		"id twice, the last null":  {body: toolCall(`1,"id":null`, "KEY", "")},
		"method twice":             {body: toolCall(`2,"method":"tools/list"`, "KEY", ""), replayed: "2"},
		"key twice":                {body: strings.Replace(toolCall("2", "KEY", ""), `"idempotency_key"`, `"idempotency_key":"other","idempotency_key"`, 1), replayed: "2"},
		"params twice":             {body: strings.Replace(toolCall("2", "KEY", ""), `"params"`, `"params":{"arguments":{"idempotency_key":"other"}},"params"`, 1), replayed: "2"},
		"members escaped":          {body: strings.NewReplacer("method", `\u006dethod`, "idempotency_key", `idempotency\u005fkey`).Replace(toolCall("2", "KEY", "")), replayed: "2"},
		"too long":                 {body: toolCall(`"\u0032"`, "KEY", `,"x":"`+tooLong+`"`), refused: `"\u0032"`, status: 200},
		"too long, id afterwards":  {body: `{"method":"tools/call","x":"` + tooLong + `",` + toolCall("2", "KEY", "")[1:], refused: "null", status: 413},
		"too long, by Mcp-Method":  {body: `{"x":"` + tooLong + `",` + toolCall("2", "KEY", "")[1:], options: []option{header("Mcp-Method", "tools/call")}, refused: "null", status: 413},
		"too long, what is unsaid": {body: `{"x":"` + tooLong + `",` + toolCall("2", "KEY", "")[1:]},
	}
)

func TestBadInputToToolCalls(t *testing.T) {
	t.Parallel()
	s := startTools(t, "store file")
	for name, in := range badInputs {
		t.Run(name, func(t *testing.T) {
			key := s.on(t, s.answers(paid))
			s.wantRun(t, s.call(t, key, "1", header("Authorization", "Bearer a")), "1", key, 1, paid)
			body, runs := strings.ReplaceAll(in.body, "KEY", key), 1
			for _, caller := range []string{"Bearer a", "Bearer b"} {
				got := s.post(t, "/mcp", key, body, append(in.options, header("Authorization", caller))...)
				switch {
				case in.refused != "":
					wantRefusal(t, got, in.status, in.refused, 413, "request_too_large")
				case in.replayed != "" && caller == "Bearer a":
					wantResult(t, got, in.replayed, key, 1)
				default: // it passes, as it is
					runs++
					latest := s.up.nth(t, key, runs)
					if got.Status != 200 || !strings.Contains(got.Body, latest.text()) || latest.Body != body {
						t.Errorf("%s got %d %.500q after %.500q", caller, got.Status, got.Body, latest.Body)
					}
				}
			}
			s.up.wantRuns(t, key, runs)
		})
	}
}

// What the server answers first, and what a repeat then gets.
func TestBadAnswersToToolCalls(t *testing.T) {
	t.Parallel()
	s := startTools(t, "store file")
	events := func(messages ...string) answering {
		return func(w http.ResponseWriter, _ *http.Request, n run) {
			w.Header().Set("X-Server", "tools")
			for i, m := range messages {
				messages[i] = strings.ReplaceAll(m, "RESPONSE", message(n, "", paid))
			}
			writeEvents(w, messages...)
		}
	}
	inJSON := func(text string) answering {
		return func(w http.ResponseWriter, _ *http.Request, n run) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, strings.ReplaceAll(text, "RESPONSE", message(n, "", paid))) // the proxy reads all of it
		}
	}
	for name, c := range map[string]struct {
		first answering
		runs  int    // that there are after a repeat; 1: it got the first run's result
		code  string // or its refusal
	}{
		"no response in a stream":     {events(`{"method":"notifications/progress"}`), 2, ""},
		"broken stream":               {cutStream, 2, ""},
		"response in another event":   {events("{}\nevent: close\nid: RESPONSE"), 2, ""},
		"batch in a stream":           {events("[RESPONSE]"), 2, ""},
		"two responses":               {events("RESPONSE", `{"id":1,"result":{"content":"second"}}`), 1, ""},
		"a response, then an error":   {events("RESPONSE", `{"id":1,"error":{"code":1,"message":"second"}}`), 1, ""},
		"an error, then a response":   {events(`{"id":1,"error":{"code":1,"message":"first"}}`, "RESPONSE"), 2, ""},
		"a request with the id of it": {events(`{"id":1,"method":"elicitation/create","result":{}}`, "RESPONSE"), 1, ""},
		"long stream":                 {events(`{"method":"notifications/message","params":"`+tooLong+`"}`, "RESPONSE"), 1, ""},
		"batch":                       {inJSON("[RESPONSE]"), 2, ""},
		"no JSON":                     {inJSON("RESPONSE}"), 2, ""},
		"accepted":                    {answersStatus(http.StatusAccepted), 2, ""},
		"large":                       {inJSON(`{"id":1,"result":{"content":"` + tooLong + `"}}`), 1, "response_not_kept"},
		"large in a stream":           {events(`{"id":1,"result":{"content":"` + tooLong + `"}}`), 1, "response_not_kept"},
		"large error":                 {inJSON(`{"id":1,"error":{"message":"` + tooLong + `"}}`), 2, ""},
	} {
		t.Run(name, func(t *testing.T) {
			key := s.on(t, inTurn(c.first, s.answers(paid)))
			first, err := try(oneShot, s.newPost("/mcp", key, toolCall("1", key, "")))
			if err != nil && name != "broken stream" {
				t.Fatal(err)
			}
			if strings.HasPrefix(name, "large") && len(first.Body) < len(tooLong) {
				t.Errorf("the client got %d bytes", len(first.Body))
			}
			got := s.call(t, key, "2")
			switch {
			case c.code != "":
				wantRefusal(t, got, 200, "2", 409, c.code)
			case c.runs == 1:
				wantResult(t, got, "2", key, 1)
			default:
				s.wantRun(t, got, "2", key, 2, paid)
			}
			s.up.wantRuns(t, key, c.runs)
		})
	}
}
