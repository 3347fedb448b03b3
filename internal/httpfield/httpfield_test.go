package httpfield

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
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
	got := NewRules([]string{"set-cookie"}).Kept(found, answered)
	want := map[string][]string{
		"X-Front": {"1", "2"}, "Content-Type": {"text/plain"}, "Access-Control-Allow-Origin": {"*"}, "X-Two": {"a", "b"},
		"Set-Cookie": {"a=b"}, "X-Gone": nil,
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("kept %v, want %v", got, want)
	}
}

// A client sends no field of ours: neither in its header, nor as a trailer, nor does Connection name one.
func TestClientsOwnFieldsAreRemoved(t *testing.T) {
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("body"))
	r.Header = http.Header{
		"Dedup-Attempt": {"7"}, "Dedup-Execution-Id": {"forged"}, "Dedup-Parent-Id": {"x"}, "Dedup-Anything": {"x"},
		"Connection": {"close, dedup-execution-id"}, "Other": {"stays"},
	}
	r.Trailer = http.Header{"Dedup-Attempt": nil, "Checksum": nil}
	if within := TakeDedup(r); within != "forged" {
		t.Errorf("the request names the run %q it may be part of", within)
	}
	if want := (http.Header{"Connection": {"close"}, "Other": {"stays"}}); !maps.EqualFunc(r.Header, want, slices.Equal) {
		t.Errorf("the header is %v, want %v", r.Header, want)
	}
	r.Trailer["Dedup-Execution-Id"] = []string{"not announced"}
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		t.Fatal(err)
	}
	if want := (http.Header{"Checksum": nil}); !maps.EqualFunc(r.Trailer, want, slices.Equal) {
		t.Errorf("the trailer is %v, want %v", r.Trailer, want)
	}
}
