package exchange

import (
	"fmt"
	"net/http"
	"testing"
)

func TestKeptHeader(t *testing.T) {
	found := http.Header{"Server": {"Caddy"}, "X-Front": {"1"}, "X-Gone": {"1"}}
	answered := http.Header{
		"Server": {"Caddy"}, "X-Front": {"1", "2"}, // the upstream added to it
		"Content-Type": {"text/plain"}, "Access-Control-Allow-Origin": {"*"}, "X-Two": {"a", "b"},
		"Connection": {"close, X-Named"}, "X-Named": {"1"}, "Keep-Alive": {"timeout=5"}, "Upgrade": {"h2c"},
		"Proxy-Authenticate": {"Basic"}, "Transfer-Encoding": {"chunked"}, "Te": {"trailers"}, "Content-Length": {"3"},
		"Trailer": {"X-Sum"}, "X-Sum": {"1"}, http.TrailerPrefix + "X-Late": {"1"},
		"Set-Cookie": {"a=b"}, "Date": {"now"}, "Age": {"1"}, "Alt-Svc": {"h3"}, "Server-Timing": {"db"},
		"Dedup-Execution-Id": {"1"}, "Mcp-Session-Id": {"s"},
	}
	got := newHeaderRules([]string{"set-cookie"}).kept(found, answered)
	want := map[string][]string{
		"X-Front": {"1", "2"}, "Content-Type": {"text/plain"}, "Access-Control-Allow-Origin": {"*"}, "X-Two": {"a", "b"},
		"Set-Cookie": {"a=b"}, "X-Gone": nil,
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("kept %v, want %v", got, want)
	}
}
