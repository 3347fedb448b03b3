package servers

import (
	"fmt"
	"strings"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// Link is a way to a server that takes its time.
type Link struct {
	Addr  string
	proxy *toxiproxy.Proxy
}

// StartLink starts a link to an address with a round trip of the given time, half of it
// in each direction. Whole milliseconds only.
func (s *Stage) StartLink(name, to string, roundTrip time.Duration) (*Link, error) {
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	l := &Link{proxy: toxiproxy.NewProxy(server, name, "127.0.0.1:0", to)}
	if err := l.proxy.Start(); err != nil {
		return nil, err
	}
	l.Addr = l.proxy.Listen
	for _, stream := range []string{"upstream", "downstream"} {
		toxic := fmt.Sprintf(`{"name": %q, "type": "latency", "stream": %q, "attributes": {"latency": %d}}`, stream, stream, roundTrip.Milliseconds()/2)
		if _, err := l.proxy.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
			l.Stop()
			return nil, err
		}
	}
	return l, nil
}

// Stop closes the link.
func (l *Link) Stop() { l.proxy.Stop() }
