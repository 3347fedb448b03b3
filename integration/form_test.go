package integration

import (
	"strings"
	"testing"
)

// A form is submitted twice by curl, which generates another boundary each time.
func TestFormSubmittedTwice(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines(dedupBlock("key form order_token"), proxyTo(up))})
	form := func(boundary, token string) string {
		return strings.ReplaceAll("--B\r\nContent-Disposition: form-data; name=\"order_token\"\r\n\r\n"+token+"\r\n--B--\r\n", "B", boundary)
	}
	submit := func(boundary, token string) reply {
		return p.post(t, "/", "", form(boundary, token), header("Content-Type", "multipart/form-data; boundary="+boundary))
	}
	first := submit("one", "t1")
	wantReplay(t, submit("two", "t1"), first)
	if other := submit("three", "t2"); other.Header.Get("Idempotent-Replayed") != "" {
		t.Error("another token has the answer of the first one")
	}
}
