package caddymodule

import (
	"testing"
)

// A line end at the end of a variable is no part of its value: replicas share their keys if only one
// of them has it.
func TestLineEndsOfVariablesArePartOfNoKey(t *testing.T) {
	t.Setenv("TEST_REGION", "eu")
	t.Setenv("TEST_REGION_LINE", "eu\n")
	t.Setenv("TEST_REGION_CRLF", "eu\r\n")
	t.Setenv("TEST_REGION_LINES", "eu\n\n")
	keys := map[string]string{}
	for _, name := range []string{"TEST_REGION", "TEST_REGION_LINE", "TEST_REGION_CRLF", "TEST_REGION_LINES"} {
		placeholder := "{env." + name + "}"
		s := serveWith(t, "namespace shop-"+placeholder, "header >X-Key {http.dedup.key}",
			"dedup {", "scope {http.request.host} "+placeholder, "key value {http.request.header.X-Id}-"+placeholder, "}", "respond done 201")
		keys[name] = s.mustPost("", "body", "X-Id", "1", "Host", "a.test").header.Get("X-Key")
		s.stop()
	}
	if want := keys["TEST_REGION"]; want == "" || keys["TEST_REGION_LINE"] != want || keys["TEST_REGION_CRLF"] != want || keys["TEST_REGION_LINES"] == want {
		t.Errorf("the keys are %q", keys)
	}
}
