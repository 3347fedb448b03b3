package toolcall_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/identify"
	"github.com/caddy-dedup/caddy-dedup/internal/toolcall"
)

const (
	before = "2025-11-25"
	since  = "2026-07-28"
)

func TestReplay(t *testing.T) {
	for _, c := range []struct {
		kept, id, version, want string
	}{
		{`{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`, `2`, before,
			`{"jsonrpc":"2.0","id":2,"result":{"_meta":{"caddy-dedup/replayed":true},"content":[]}}`},
		{`{"result":{"content":[]},"id":"a"}`, `"\u0062\/"`, "",
			`{"result":{"_meta":{"caddy-dedup/replayed":true},"content":[]},"id":"\u0062\/"}`},
		// What a client may read exactly stays as it was written.
		{" {\"result\" : { \"x\":1.50e1, \"s\":\"\\u0041\xff\", \"_meta\" : { \"a\":[1] } }, \"id\":1e0 }\n", `1`, before,
			" {\"result\" : { \"x\":1.50e1, \"s\":\"\\u0041\xff\", \"_meta\" : {\"caddy-dedup/replayed\":true, \"a\":[1] } }, \"id\":1 }\n"},
		// The id of the message alone is replaced, and added where there is none.
		{`{"id":null,"error":{"code":-32600,"message":"no"}}`, `7`, since, `{"id":7,"error":{"code":-32600,"message":"no"}}`},
		{`{"error":{"code":1,"data":{"id":3}}}`, `7`, since, `{"id":7,"error":{"code":1,"data":{"id":3}}}`},
		{`{"id":1,"id":2,"result":null}`, `3`, since, `{"id":1,"id":3,"result":null}`},
		// The marker, once.
		{`{"id":1,"result":{}}`, `2`, before, `{"id":2,"result":{"_meta":{"caddy-dedup/replayed":true}}}`},
		{`{"id":1,"result":{"_meta":{}}}`, `2`, before, `{"id":2,"result":{"_meta":{"caddy-dedup/replayed":true}}}`},
		{`{"id":1,"result":{"_meta":null}}`, `2`, before, `{"id":2,"result":{"_meta":{"caddy-dedup/replayed":true}}}`},
		{`{"id":1,"result":{"_meta":{"caddy-dedup/replayed":true}}}`, `2`, before, `{"id":2,"result":{"_meta":{"caddy-dedup/replayed":true}}}`},
		{`{"id":1,"result":{"_meta":{"caddy-dedup\/replayed":true,"a":1}}}`, `2`, before, `{"id":2,"result":{"_meta":{"caddy-dedup\/replayed":true,"a":1}}}`},
		{`{"id":1,"result":{"content":[{"_meta":{}}]},"_meta":{}}`, `2`, before,
			`{"id":2,"result":{"_meta":{"caddy-dedup/replayed":true},"content":[{"_meta":{}}]},"_meta":{}}`},
		{`{"id":1,"result":[]}`, `2`, since, `{"id":2,"result":[]}`},
		// The resultType, from 2026-07-28 on.
		{`{"id":1,"result":{"content":[]}}`, `2`, since, `{"id":2,"result":{"_meta":{"caddy-dedup/replayed":true},"resultType":"complete","content":[]}}`},
		{`{"id":1,"result":{}}`, `2`, "2027-01-01", `{"id":2,"result":{"_meta":{"caddy-dedup/replayed":true},"resultType":"complete"}}`},
		{`{"id":1,"result":{"_meta":{"a":1}}}`, `2`, since, `{"id":2,"result":{"resultType":"complete","_meta":{"caddy-dedup/replayed":true,"a":1}}}`},
		{`{"id":1,"result":{"resultType":"task","_meta":{}}}`, `2`, since, `{"id":2,"result":{"resultType":"task","_meta":{"caddy-dedup/replayed":true}}}`},
		{`{"id":1,"result":{"resultType":"complete"}}`, `2`, before, `{"id":2,"result":{"_meta":{"caddy-dedup/replayed":true},"resultType":"complete"}}`},
	} {
		kept := []byte(c.kept)
		parts, err := (&toolcall.ToolCall{ID: []byte(c.id), Version: c.version}).Replay(kept)
		if got := string(slices.Concat(parts...)); err != nil || got != c.want {
			t.Errorf("%s to %s, %q: %v\ngot  %s\nwant %s", c.kept, c.id, c.version, err, got, c.want)
		}
		if string(kept) != c.kept {
			t.Errorf("%s was changed", c.kept)
		}
	}
	for _, kept := range []string{``, `{}`, `[]`, `{"id":1,"result":{}`, `{"id":1,"result":{}}{}`, `{"id":1,"method":"x","result":{}}`, `{"content":[]}`} {
		if parts, err := (&toolcall.ToolCall{ID: []byte("2"), Version: since}).Replay([]byte(kept)); !errors.Is(err, toolcall.ErrNoResponse) {
			t.Errorf("%s: got %q, %v; want ErrNoResponse", kept, parts, err)
		}
	}
}

// A large response is not copied for each that it is replayed to.
func TestReplaySharesWhatIsKept(t *testing.T) {
	kept := []byte(`{"id":1,"result":{"content":"` + strings.Repeat("x", 1<<20) + `"}}`)
	parts, err := (&toolcall.ToolCall{ID: []byte("2"), Version: since}).Replay(kept)
	if err != nil {
		t.Fatal(err)
	}
	if last := parts[len(parts)-1]; &last[len(last)-1] != &kept[len(kept)-1] || len(last) < 1<<20 {
		t.Error("the content is not that of the kept text")
	}
}

func TestRefusal(t *testing.T) {
	for _, c := range []struct {
		refusal identify.CallRefusal
		id      string
		status  int
		want    string
	}{
		{identify.CallRefusal{Status: 409, Code: "request_in_flight", Message: "wait", RetryAfter: 2, ExecutionID: "e-1"}, `"\u0061<"`, 200,
			`{"jsonrpc":"2.0","id":"\u0061<","error":{"code":409,"message":"wait","data":{"code":"request_in_flight","status":409,"retry_after":2,"execution_id":"e-1"}}}`},
		{identify.CallRefusal{Status: 422, Code: "idempotency_key_reused", Message: `"<&`}, `9007199254740993`, 200,
			`{"jsonrpc":"2.0","id":9007199254740993,"error":{"code":422,"message":"\"<&","data":{"code":"idempotency_key_reused","status":422}}}`},
		{identify.CallRefusal{Status: 413, Code: "request_too_large", Message: "large"}, ``, 413,
			`{"jsonrpc":"2.0","id":null,"error":{"code":413,"message":"large","data":{"code":"request_too_large","status":413}}}`},
	} {
		var id []byte
		if c.id != "" {
			id = []byte(c.id)
		}
		if status, body := (&toolcall.ToolCall{ID: id}).Refuse(c.refusal); status != c.status || string(body) != c.want {
			t.Errorf("%+v to %s: got %d\n%s\nwant %d\n%s", c.refusal, c.id, status, body, c.status, c.want)
		}
	}
}

func FuzzReplay(f *testing.F) {
	for _, kept := range []string{
		`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"\u0041"}],"_meta":{"a":1}}}`,
		`{"result":{"_meta":{"caddy-dedup\/replayed":true}},"id":"a"}`, `{"id":null,"error":{"code":1}}`, `{"result":{"_meta":null}}`,
		`{"result":{},"id":1,"result":{"resultType":"task"}}`, `{"result":{"_meta":{},"_meta":[]}}`, ` {"result":1.5e3 } `,
	} {
		f.Add([]byte(kept), []byte(`"\u0062"`), true)
		f.Add([]byte(kept), []byte(`-12`), false)
	}
	f.Fuzz(func(t *testing.T, kept, id []byte, typed bool) {
		version := before
		if typed {
			version = since
		}
		if toolcall.Read([]byte(`{"method":"tools/call","id":`+string(id)+`}`), true, nil).Kind != toolcall.Call {
			id = []byte("2")
		}
		id, kept = bytes.TrimSpace(id), slices.Clip(kept)
		parts, err := (&toolcall.ToolCall{ID: id, Version: version}).Replay(kept)
		if err != nil {
			return
		}
		got := slices.Concat(parts...)
		if !json.Valid(kept) || !json.Valid(got) {
			t.Fatalf("%q became %q", kept, got)
		}
		message := membersOf(got)
		if string(message["id"]) != string(id) {
			t.Errorf("%q: the id of %q is not %s", kept, got, id)
		}
		if result := membersOf(message["result"]); result != nil {
			if membersOf(result["_meta"])["caddy-dedup/replayed"] == nil {
				t.Errorf("%q: %q has no marker", kept, got)
			}
			if typed && result["resultType"] == nil {
				t.Errorf("%q: %q has no resultType", kept, got)
			}
		}
		// The parts lie in the kept text, one behind the other, but for every second one. Each of these
		// is known, and stands in the place of a value or of nothing.
		at := 0
		for i, part := range parts {
			if i%2 == 1 {
				continue
			}
			begin := cap(kept) - cap(part)
			if begin < at || string(kept[begin:begin+len(part)]) != string(part) {
				t.Fatalf("%q: the part %d of %q is no later one of it", kept, i, parts)
			}
			if i > 0 {
				replaced, added := string(kept[at:begin]), strings.TrimSuffix(string(parts[i-1]), ",")
				known := []string{`"id":` + string(id), `"caddy-dedup/replayed":true`, `"_meta":{"caddy-dedup/replayed":true}`,
					`"_meta":{"caddy-dedup/replayed":true},"resultType":"complete"`, `"resultType":"complete"`}
				if replaced != "" {
					known = []string{string(id), `{"caddy-dedup/replayed":true}`}
				}
				if !slices.Contains(known, added) {
					t.Errorf("%q: %q was replaced by %q", kept, replaced, added)
				}
			}
			at = begin + len(part)
		}
		if at != len(kept) {
			t.Errorf("%q lost its end in %q", kept, parts)
		}
	})
}

// membersOf returns the members of an object, of a name that occurs twice the last, nil of what is none.
func membersOf(text []byte) (members map[string]json.RawMessage) {
	if json.Unmarshal(text, &members) != nil {
		return nil
	}
	return members
}
