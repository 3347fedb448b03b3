package caddymodule

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

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
	address, _ := upstream(t, func(w http.ResponseWriter, r *http.Request, n int) {
		status, _ := strconv.Atoi(cmp.Or(r.Header.Get("X-Status"), "200"))
		w.Header().Set("Content-Type", r.Header.Get("X-Type"))
		w.Header().Set("Mcp-Session-Id", "session")
		w.Header().Set("Cache-Control", "no-cache")
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
		"a result":                         {asJSON, pays, "", kept},
		"a result, with a charset":         {asJSON + "; charset=utf-8", pays, "", kept},
		"a task":                           {asJSON, `{"id":1,"result":{"resultType":"task"}}`, "", kept},
		"a result at another status":       {asJSON, pays, "201", released},
		"isError":                          {asJSON, fails, "", released},
		"an error":                         {asJSON, `{"id":1,"error":{"code":-1}}`, "", released},
		"an error at 400":                  {asJSON, `{"id":1,"error":{"code":-1}}`, "400", released},
		"a question":                       {asJSON, `{"id":1,"result":{"resultType":"input_required"}}`, "", released},
		"accepted":                         {asJSON, "", "202", released},
		"HTML":                             {"text/html", "<p>", "", released},
		"HTML of 502":                      {"text/html", "<p>", "502", released},
		"an array":                         {asJSON, "[" + pays + "]", "", released},
		"a result in a stream":             {asEvents, ": hello||data: {\"method\":\"notifications/progress\"}||data: " + pays + "||", "", kept},
		"another id in a stream":           {asEvents, `data: {"id":1,"method":"elicitation/create"}||data: {"id":7,"result":{}}||`, "", kept},
		"isError in a stream":              {asEvents, "data: " + fails + "||data: " + pays + "||", "", released},
		"a stream without a response":      {asEvents, ": hello||", "", released},
		"a stream that ends in an event":   {asEvents, "data: " + pays + "|", "", released},
		"a result in an event of a server": {asEvents, "event: close|data: " + pays + "||", "", released},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, append(toolCallsBlock, "reverse_proxy "+address)...)
			header := []string{"X-Type", c.kind, "X-Says", c.says, "X-Status", c.status}
			first := s.mustPost("", callOf("1", name), header...)
			if want := strings.ReplaceAll(c.says, "|", "\n"); first.body != want {
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
			second := s.mustPost("", callOf(`"\u0032"`, name), header...)
			if replayed := second.header.Get("Idempotent-Replayed") != ""; replayed != (c.state == kept) {
				t.Errorf("the second client got %v", second)
			}
			if c.state != kept {
				return
			}
			if !strings.Contains(second.body, `"id":"\u0032"`) || strings.Count(second.body, `"caddy-dedup/replayed":true`) != 1 || !json.Valid([]byte(second.body)) {
				t.Errorf("the second client got %s", second.body)
			}
			if h := second.header; second.status != 200 || h.Get("Content-Type") != asJSON || h.Get("Mcp-Session-Id") != "" || h.Get("Cache-Control") != "" {
				t.Errorf("the second client got %d %v", second.status, h)
			}
		})
	}
}
