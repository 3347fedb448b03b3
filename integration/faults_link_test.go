package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
)

// link is a way to a server, on which things can go wrong.
type link struct {
	addr  string
	proxy *toxiproxy.Proxy
}

// toxic is something that goes wrong on a link, as toxiproxy writes it.
type toxic string

// The store does not hear what is asked, or is not heard. When such a toxic is
// taken away, the connections that suffered it are closed.
const (
	lostReplies  toxic = `{"name": "lost replies", "type": "timeout", "stream": "downstream", "attributes": {"timeout": 0}}`
	lostRequests toxic = `{"name": "lost requests", "type": "timeout", "stream": "upstream", "attributes": {"timeout": 0}}`
	// cutReplies closes each connection after so many bytes, mostly within a reply.
	cutReplies toxic = `{"name": "cut replies", "type": "limit_data", "stream": "downstream", "attributes": {"bytes": 300}}`
	slow       toxic = `{"name": "slow", "type": "latency", "stream": "downstream", "attributes": {"latency": 90, "jitter": 60}}`
	// tooSlow is later than any operation waits.
	tooSlow toxic = `{"name": "too slow", "type": "latency", "stream": "downstream", "attributes": {"latency": 1500}}`
)

func startLink(t *testing.T, to string) *link {
	t.Helper()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	l := &link{proxy: toxiproxy.NewProxy(server, t.Name(), fmt.Sprintf("127.0.0.1:%d", freeport.Of(t)), to)}
	l.mend(t)
	l.addr = l.proxy.Listen
	t.Cleanup(l.proxy.Stop)
	return l
}

// suffer lets something go wrong until the returned function is called.
func (l *link) suffer(t *testing.T, what toxic) (end func()) {
	t.Helper()
	added, err := l.proxy.Toxics.AddToxicJson(strings.NewReader(string(what)))
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := l.proxy.Toxics.RemoveToxic(context.Background(), added.Name); err != nil {
			t.Fatal(err)
		}
	}
}

// cut closes all connections, and refuses new ones until the link is mended.
func (l *link) cut() { l.proxy.Stop() }

func (l *link) mend(t *testing.T) {
	t.Helper()
	// A process that is being started, by another test, has the listener that was closed
	// until it runs its own program.
	eventually(t, "the link listens", func() bool { return l.proxy.Start() == nil })
}
