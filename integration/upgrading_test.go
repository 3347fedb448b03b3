package integration

import (
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// With the page's Caddyfile, no request runs twice on the way from the file store to
// Redis.
func TestFromOneStoreToAnother(t *testing.T) {
	t.Parallel()
	server, up := redistest.Start(t), startUpstream(t, answers201)
	old := start(t, conf{store: "store file", site: lines("dedup", proxyTo(up))})
	first := map[string]reply{"before": old.post(t, "/", "before", "body")}
	old.terminate(t)
	old.awaitExit(t)

	page := caddyfileWith(t, "dedup\n\t\tdedup {\n\t\t\tstore file\n")
	options, site, found := strings.Cut(strings.NewReplacer("{env.REDIS_URL}", "redis://"+server.Addr, "localhost:3000", up.addr, ":8080 {", "http://:PORT {").Replace(page), "\n}\n\n")
	if !found {
		t.Fatal("the page has no Caddyfile")
	}
	both := start(t, conf{global: strings.TrimPrefix(options, "{\n"), sites: site, dir: old.conf.dir, port: old.conf.port})
	same := func(p *caddy, key string) {
		t.Helper()
		got := p.post(t, "/", key, "body")
		if !got.replayed() || got.Status != first[key].Status || got.Body != first[key].Body {
			t.Errorf("%s: got %d %q, replayed %t; want %q again", key, got.Status, got.Body, got.replayed(), first[key].Body)
		}
		up.wantRuns(t, key, 1)
	}
	same(both, "before")
	first["during"] = both.post(t, "/", "during", "body")
	wantFresh(t, first["during"], 201, "run 1 of during")
	same(both, "during")
	both.terminate(t)
	both.awaitExit(t)

	next := start(t, conf{store: storeAt(server.Addr), site: lines("dedup", proxyTo(up)), dir: old.conf.dir, port: old.conf.port})
	same(next, "before")
	same(next, "during")
}
