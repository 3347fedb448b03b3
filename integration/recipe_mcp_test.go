package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// toolServer is a model of an MCP server: it counts the calls of each tool, and the number is in its
// result. The tool says by its name how it answers.
func toolServer(g *gate) answering {
	var mu sync.Mutex
	calls := make(map[string]int)
	return func(w http.ResponseWriter, r *http.Request, n run) {
		if r.URL.Path == "/verify" {
			user, _, _ := strings.Cut(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), "-")
			w.Header().Set("Remote-User", user)
			return
		}
		var call struct {
			ID     json.RawMessage
			Method string
			Params struct{ Name string }
		}
		if json.Unmarshal([]byte(n.Body), &call) != nil || call.Method != "tools/call" {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		tool := call.Params.Name
		mu.Lock()
		calls[tool]++
		count := calls[tool]
		mu.Unlock()
		text := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"%s %d"}],"isError":%t}}`, call.ID, tool, count, tool == "fails")
		switch tool {
		case "streams":
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\n\ndata: %s\n\n", text)
			return
		case "breaks":
			noAnswer(w, r, n)
			return
		case "lasts":
			<-g.opened
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, text)
	}
}

func TestRecipeMCPServer(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	up := startUpstream(t, toolServer(g))
	p := start(t, conf{store: "store memory", sites: sitesOfAPage(t, "scope mcp {", "localhost:3000", up.addr)})
	request := func(id, tool, key, more string) string {
		return fmt.Sprintf(`{"jsonrpc": "2.0", "id": %s, "method": "tools/call", "params": {"name": %q, "arguments": {"idempotency_key": %q, "context": %[1]s%[4]s}}}`, id, tool, key, more)
	}
	as := func(token string) option { return header("Authorization", "Bearer "+token) }
	p.post(t, "/mcp", "", request("0", "breaks", "u", ""), as("alice-1"))
	// Each has its own id, and most a token of their own.
	for _, call := range []struct {
		id, tool, key, more, token string
		want                       string // in the answer
		replayed                   bool
	}{
		{`1`, "pays", "k", ``, "alice-1", `"text":"pays 1"`, false},
		{`"b"`, "pays", "k", ``, "alice-2", `"text":"pays 1"`, true},
		{`3`, "pays", "k", `, "amount": 2`, "alice-2", `"code":422`, false},
		{`4`, "streams", "k", ``, "alice-2", `"code":422`, false},
		{`5`, "pays", "k", ``, "bob-1", `"text":"pays 2"`, false},
		{`6`, "streams", "s", ``, "alice-1", `"text":"streams 1"`, false},
		{`7`, "streams", "s", ``, "alice-2", `"text":"streams 1"`, true},
		{`8`, "fails", "f", ``, "alice-1", `"text":"fails 1"`, false},
		{`9`, "fails", "f", ``, "alice-1", `"text":"fails 2"`, false},
		{`10`, "breaks", "u", ``, "alice-1", `"code":"outcome_unknown"`, false},
		{`11`, "pays", "", ``, "alice-1", `"text":"pays 3"`, false},
		{`12`, "pays", "", ``, "alice-1", `"text":"pays 4"`, false},
	} {
		got := p.post(t, "/mcp", "", request(call.id, call.tool, call.key, call.more), as(call.token))
		marked := strings.Contains(got.Body, `"_meta":{"caddy-dedup/replayed":true}`)
		if got.Status != 200 || !strings.Contains(got.Body, `"id":`+call.id+`,`) || !strings.Contains(got.Body, call.want) || marked != call.replayed ||
			call.replayed && !json.Valid([]byte(got.Body)) {
			t.Errorf("call %s got %d %s, want %s, replayed: %t", call.id, got.Status, got.Body, call.want, call.replayed)
		}
	}

	// Neither a cancellation nor a repeat reaches the server.
	first := p.postLater("/mcp", "", request("20", "lasts", "l", ""), as("alice-1"))
	eventually(t, "the server has the call", func() bool { return strings.Contains(up.all()[len(up.all())-1].Body, "lasts") })
	n := len(up.all())
	if got := p.post(t, "/mcp", "", `{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 20}}`, as("alice-1")); got.Status != 202 {
		t.Errorf("the cancellation got %d %s", got.Status, got.Body)
	}
	repeat := p.postLater("/mcp", "", request("21", "lasts", "l", ""), as("alice-2"))
	p.awaitWaiting(t, 1, repeat)
	g.open()
	if a, b := first.reply(t), repeat.reply(t); !strings.Contains(a.Body, `"text":"lasts 1"`) || !strings.Contains(b.Body, `"text":"lasts 1"`) || !strings.Contains(b.Body, `"id":21`) {
		t.Errorf("the call that was cancelled got %s, and its repeat %s", a.Body, b.Body)
	}
	for _, r := range up.all()[n:] {
		if r.URI != "/verify" {
			t.Errorf("the server got %s", r.Body)
		}
	}
}

// Under observe the recipe for clients without keys counts the calls that repeat another one. Without it they run
// once.
func TestRecipeMCPServerWithoutKeys(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, n run) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":1,"result":{"text":%q}}`, n.text())
	})
	site := sitesOfAPage(t, "key content calls", "localhost:3000", up.addr)
	p := start(t, conf{store: "store memory", sites: site})
	call := func(id, tool string) string {
		return p.post(t, "/mcp", "", fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q,"arguments":{"amount":1}}}`, id, tool), header("Mcp-Session-Id", "s")).Body
	}
	counted := series{}
	for i, outcome := range []string{"executed", "replayed"} {
		call(strconv.Itoa(i), "pay")
		counted[strings.Replace(requests("calls", outcome), `observed="false"`, `observed="true"`, 1)] = 1
		eventuallyEqual(t, "what would have become of them", counted, func() series { return p.scrape(t).since(nil) })
	}
	call("3", "list")
	up.wantRuns(t, "", 3)
	p.reloadAs(t, func(c *conf) { c.sites = strings.Replace(site, "observe", "", 1) })
	for _, id := range []string{"4", "5"} {
		if got := call(id, "pay"); !strings.Contains(got, "run 4") {
			t.Errorf("call %s got %s, want run 4", id, got)
		}
	}
	up.wantRuns(t, "", 4)
}
