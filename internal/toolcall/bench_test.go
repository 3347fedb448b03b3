package toolcall_test

import (
	"io"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/canonicaljson"
	"github.com/caddy-dedup/caddy-dedup/internal/toolcall"
)

// A call and a result of 2 kB.
var (
	benchCall = []byte(`{"jsonrpc":"2.0","id":17,"method":"tools/call","params":{"_meta":{"progressToken":17},"name":"pay","arguments":{"lines":[` +
		strings.Repeat(`{"sku":"a-17","amount":12.50,"note":"for \"one\""},`, 36) + `{}]}}}`)
	benchResult = []byte(`{"result":{"content":[` + strings.Repeat(`{"type":"text","text":"paid \"12.50\" for one"},`, 40) +
		`{}],"isError":false},"jsonrpc":"2.0","id":17}`)
)

func BenchmarkRead(b *testing.B) {
	b.SetBytes(int64(len(benchCall)))
	b.ReportAllocs()
	for b.Loop() {
		if toolcall.Read(benchCall, true, nil).Kind != toolcall.Call {
			b.Fatal("it is no call")
		}
	}
}

func BenchmarkWriteFingerprint(b *testing.B) {
	b.SetBytes(int64(len(benchCall)))
	b.ReportAllocs()
	for b.Loop() {
		doc, err := canonicaljson.Parse(benchCall, nil)
		if err != nil || (toolcall.Mode{}).WriteFingerprint(io.Discard, doc) != nil {
			b.Fatal("it has no params")
		}
	}
}

func BenchmarkReader(b *testing.B) {
	stream := []byte("event: message\nid: 1\ndata: " + string(benchResult) + "\n\n")
	b.SetBytes(int64(len(stream)))
	b.ReportAllocs()
	for b.Loop() {
		r := toolcall.NewReader(200, "text/event-stream", "", 1<<20, anyRoom)
		if _, ended := r.Feed(stream); !ended {
			b.Fatal("it has no response")
		}
	}
}

func BenchmarkReplay(b *testing.B) {
	b.SetBytes(int64(len(benchResult)))
	b.ReportAllocs()
	call := &toolcall.ToolCall{ID: []byte("18"), Version: since}
	for b.Loop() {
		if _, err := call.Replay(benchResult); err != nil {
			b.Fatal(err)
		}
	}
}
