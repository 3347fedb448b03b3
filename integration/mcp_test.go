package integration

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// A client that has lost the stream of a call gets its result from any replica, and cancels the call on none.
func TestToolCallResumedOnAnotherReplica(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, n run) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\n\n")
		w.(http.Flusher).Flush()
		<-g.opened
		fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":\"a\",\"result\":{\"text\":%q}}\n\n", n.text())
	})
	c := conf{store: redisStore(t), site: lines(dedupBlock("mode mcp", "key json /params/arguments/idempotency_key"), proxyTo(up))}
	a, b := start(t, c), start(t, c)
	call := `{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"pay","arguments":{"idempotency_key":"k"}}}`
	first, err := oneShot.Do(a.newPost("/mcp", "k", call))
	if err != nil {
		t.Fatal(err)
	}
	defer first.Body.Close()
	stream, id := bufio.NewReader(first.Body), ""
	for is := false; !is; id, is = strings.CutPrefix(id, "id: ") {
		if id, err = stream.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	first.Body.Close()
	id = strings.TrimSpace(id)
	resumed, err := oneShot.Do(b.newPost("/mcp", "k", "", method(http.MethodGet), header("Last-Event-ID", id)))
	if err != nil {
		t.Fatal(err)
	}
	defer resumed.Body.Close()
	if got := b.post(t, "/mcp", "k", `{"method":"notifications/cancelled","params":{"requestId":"a"}}`); got.Status != http.StatusAccepted {
		t.Errorf("the cancellation was answered %d", got.Status)
	}
	g.open()
	want := "id: " + id + "\ndata:\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":\"a\",\"result\":{\"_meta\":{\"caddy-dedup/replayed\":true},\"text\":\"run 1 of k\"}}\n\n"
	if got, err := io.ReadAll(resumed.Body); string(got) != want || err != nil {
		t.Errorf("the rest is %q, %v; want %q", got, err, want)
	}
	up.wantRuns(t, "k", 1)
}
