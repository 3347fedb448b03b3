package toolcall_test

import (
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/canonicaljson"
	"github.com/caddy-dedup/caddy-dedup/internal/toolcall"
)

func TestRead(t *testing.T) {
	long := `"` + strings.Repeat("x", 100_000) + `"`
	for _, c := range []struct {
		body    string
		methods []string
		kind    toolcall.Kind
		id      string
	}{
		{body: `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"pay"}}`, kind: toolcall.Call, id: `7`},
		{body: "\ufeff { \"method\" : \"tools/call\" , \"id\" : \"a\\u0062\\/\" }\n", kind: toolcall.Call, id: `"a\u0062\/"`},
		{body: `{"\u006dethod":"tools\/call","i\u0064":-0}`, kind: toolcall.Call, id: `-0`},
		{body: `{"method":"tools/call","id":9007199254740993}`, kind: toolcall.Call, id: `9007199254740993`},
		{body: `{"method":"tools/call","id":""}`, kind: toolcall.Call, id: `""`},
		{body: `{"method":"tools/call","id":` + long + `}`, kind: toolcall.Call, id: long},
		{body: "{\"method\":\"tools/call\",\"id\":1,\"params\":\"\xff\\ud800\"}", kind: toolcall.Call, id: `1`},
		// Of a member that occurs twice the last counts.
		{body: `{"method":"ping","id":1,"method":"tools/call","id":2}`, kind: toolcall.Call, id: `2`},
		{body: `{"method":"tools/call","id":1,"method":"ping"}`},
		{body: `{"method":"tools/call","id":1,"id":null}`, kind: toolcall.UnusableID},
		{body: `{"method":"tools/call","id":null,"id":1}`, kind: toolcall.Call, id: `1`},
		// What is no call.
		{body: `{"method":"tools/list","id":1}`},
		{body: `{"method":"Tools/call","id":1}`},
		{body: `{"Method":"tools/call","id":1}`},
		{body: `{"method":["tools/call"],"id":1}`},
		{body: `{"params":{"method":"tools/call","id":1}}`},
		{body: `{"method":"tools/call"}`},
		{body: `{"method":"tools/call","id":null}`, kind: toolcall.UnusableID},
		{body: `{"method":"tools/call","id":true}`, kind: toolcall.UnusableID},
		{body: `{"method":"tools/call","id":[1]}`, kind: toolcall.UnusableID},
		{body: `{"method":"tools/call","id":{"a":1}}`, kind: toolcall.UnusableID},
		{body: `{"method":"tools/call","id":1.0}`, kind: toolcall.UnusableID, id: `1.0`},
		{body: `{"method":"tools/call","id":1e2}`, kind: toolcall.UnusableID, id: `1e2`},
		{body: `{"method":"tools/call","id":1E2}`, kind: toolcall.UnusableID, id: `1E2`},
		{body: `{"method":"tools/call","id":1}{}`},
		{body: `{"method":"tools/call","id":1`},
		{body: `{"method":"tools/call","id":1,"params":{]}`},
		{body: ``},
		{body: `"tools/call"`},
		{body: "\ufeff [{\"method\":\"tools/call\",\"id\":1}]", kind: toolcall.Batch},
		{body: `[]`, kind: toolcall.Batch},
		// Mcp-Method has to agree.
		{body: `{"method":"tools/call","id":1}`, methods: []string{"tools/call"}, kind: toolcall.Call, id: `1`},
		{body: `{"method":"tools/call","id":1}`, methods: []string{"tools/list"}},
		{body: `{"method":"tools/call","id":1}`, methods: []string{"tools/call", "tools/list"}},
		{body: `{"method":"tools/call","id":1}`, methods: []string{""}},
		{body: `{"method":"tools/list","id":1}`, methods: []string{"tools/call"}},
		// A cancellation has the id of the call in its params, and none of its own.
		{body: `{"method":"notifications/cancelled","params":{"requestId":"1","reason":"timeout"}}`, kind: toolcall.Cancellation, id: `"1"`},
		{body: `{"params":{"requestId":2,"requestId":3},"method":"notifications/cancelled"}`, kind: toolcall.Cancellation, id: `3`},
		{body: `{"method":"notifications/cancelled","params":{"requestId":1}}`, methods: []string{"notifications/cancelled"}, kind: toolcall.Cancellation, id: `1`},
		{body: `{"method":"notifications/cancelled","params":{"requestId":1}}`, methods: []string{"tools/call"}},
		{body: `{"method":"notifications/cancelled","id":5,"params":{"requestId":1}}`},
		{body: `{"method":"notifications/cancelled","params":{"requestId":1.5}}`},
		{body: `{"method":"notifications/cancelled","params":[1]}`},
		{body: `{"method":"notifications/cancelled","requestId":1}`},
	} {
		got := toolcall.Read([]byte(c.body), true, c.methods)
		if got.Kind != c.kind || got.Kind != toolcall.Other && string(got.ID) != c.id {
			t.Errorf("%.80s with %q: got %d, %.40s; want %d, %.40s", c.body, c.methods, got.Kind, got.ID, c.kind, c.id)
		}
		if got.Kind != toolcall.Other && got.Kind != toolcall.Batch && !toolcall.NeedsBody(c.methods) {
			t.Errorf("%.80s with %q: the body would not be read", c.body, c.methods)
		}
	}
	if toolcall.NeedsBody([]string{"tools/list"}) {
		t.Error("the body of tools/list would be read")
	}
}

// The tool of a call is named in its params, or is not known.
func TestToolsOfRequests(t *testing.T) {
	for body, want := range map[string]string{
		`{"method":"tools/call","id":1,"params":{"name":"pay"}}`:               `"pay"`,
		`{"params":{"name":"x","n\u0061me":"p\u0061y"},"method":"tools/call",`: `"p\u0061y"`,
		`{"method":"tools/call","id":1,"params":{"name":"pay","arguments":{"a`: `"pay"`,
		`{"method":"tools/call","id":1,"params":{"name":"pa`:                   ``,
		`{"method":"tools/call","id":1,"params":{"arguments":{"name":"pay"}}}`: ``,
		`{"method":"tools/call","id":1,"params":["name"]}`:                     ``,
		`{"method":"tools/call","id":1,"name":"pay"}`:                          ``,
	} {
		if got := toolcall.Read([]byte(body), false, nil); got.Kind != toolcall.Call || string(got.Tool) != want {
			t.Errorf("%s: got %d of %s, want %s", body, got.Kind, got.Tool, want)
		}
	}
}

func TestReadBeginning(t *testing.T) {
	call := []string{"tools/call"}
	for _, c := range []struct {
		body    string
		methods []string
		kind    toolcall.Kind
		id      string
	}{
		{body: `{"jsonrpc":"2.0","id":12,"method":"tools/call","params":{"a":"xx`, kind: toolcall.Call, id: `12`},
		{body: "\ufeff{\"method\":\"tools/call\",\"params\":{\"a\":[[", kind: toolcall.Call},
		{body: `{"method":"tools/call","id":12`, kind: toolcall.Call}, // it may be 123
		{body: `{"method":"tools/call","id":12 `, kind: toolcall.Call, id: `12`},
		{body: `{"method":"tools/call","id":"12`, kind: toolcall.Call},
		{body: `{"method":"tools/call","id":null,`, kind: toolcall.UnusableID},
		{body: `{"method":"tools/call`},
		{body: `{"method":"tools/list","id":12,"params":{`},
		{body: `{"params":{"a":"xx`},
		{body: `[{"method":"tools/call","id":1,`, kind: toolcall.Batch},
		{body: `{"params":{"a":"xx`, methods: call, kind: toolcall.Call},
		{body: `{"id":5,"params":{"a":"xx`, methods: call, kind: toolcall.Call, id: `5`},
		{body: `{"id":5,"method":"tools/list","params":{"a":"xx`, methods: call},
		{body: `{"id":5,"method":"tools/call","params":{"a":"xx`, methods: []string{"tools/list"}},
		{body: `{"id":5,"params":{"a":"xx`, methods: []string{"tools/list"}},
	} {
		if got := toolcall.Read([]byte(c.body), false, c.methods); got.Kind != c.kind || got.Kind != toolcall.Other && string(got.ID) != c.id {
			t.Errorf("%s with %q: got %d, %s; want %d, %s", c.body, c.methods, got.Kind, got.ID, c.kind, c.id)
		}
	}
}

func TestWriteFingerprint(t *testing.T) {
	const first = `{"id":1,"method":"tools/call","params":{"name":"pay","arguments":{"b":[1,2.0],"a":{"at":5}},"_meta":{"progressToken":1}}}`
	const same = `{"name":"pay","arguments":{"a":{"at":5},"b":[1,2]}}`
	for _, c := range []struct {
		body    string
		exclude []string
		want    string
	}{
		{first, nil, `{"arguments":{"a":{"at":5},"b":[1,2]},"name":"pay"}`},
		// Another id, another round, other white space: the same operation.
		{`{"params":{"arguments":{"a":{"at":5},"b":[1,2]}, "name":"pay","inputResponses":{"x":1},"requestState":"st-3"},"id":"2","more":3}`, nil,
			`{"arguments":{"a":{"at":5},"b":[1,2]},"name":"pay"}`},
		// The pointers start at the body.
		{`{"params":` + same + `}`, []string{"/params/arguments/a/at", "/arguments/b", "/id"}, `{"arguments":{"a":{},"b":[1,2]},"name":"pay"}`},
		{`{"params":` + same + `}`, []string{"/params/arguments/*"}, `{"arguments":{},"name":"pay"}`},
		// Only these members of params are left out, and not those of the same names within.
		{`{"params":{"arguments":{"_meta":1,"requestState":2},"_meta":3}}`, nil, `{"arguments":{"_meta":1,"requestState":2}}`},
		{`{"params":[{"_meta":1}]}`, nil, `[{"_meta":1}]`},
		{`{"id":1}`, nil, ``},
	} {
		doc, err := canonicaljson.Parse([]byte(c.body), nil)
		if err != nil {
			t.Fatalf("%s: %v", c.body, err)
		}
		var got strings.Builder
		if err := (toolcall.Mode{}).WriteFingerprint(&got, doc, c.exclude...); err != nil || got.String() != c.want {
			t.Errorf("%s without %q: got %s, %v; want %s", c.body, c.exclude, got.String(), err, c.want)
		}
	}
}
