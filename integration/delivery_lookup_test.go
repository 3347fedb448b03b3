package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// everyStore is eachStore with the ways in which Redis is several servers.
func everyStore(t *testing.T, test func(t *testing.T, store string)) {
	t.Helper()
	eachStore(t, test)
	t.Run("sentinel", func(t *testing.T) {
		t.Parallel()
		sentinels := redistest.StartSentinels(t, redistest.Start(t), 0, 1)
		test(t, "store redis {\naddress "+sentinels[0].Addr+"\nsentinel "+redistest.MasterName+"\ntimeout 5s\n}")
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		cluster := redistest.StartCluster(t, 3, 0)
		test(t, "store redis {\naddress "+strings.Join(cluster.Addrs(), " ")+"\ncluster\ntimeout 5s\n}")
	})
}

// Somebody who knows only what a delivery is made of finds it and removes it, among
// others and encrypted as it is; then it is delivered once more.
func TestDeliveryIsFoundByItsParts(t *testing.T) {
	t.Parallel()
	everyStore(t, func(t *testing.T, store string) {
		up := startUpstream(t, answers201)
		global := lines("namespace shop", keyFiles(t, shortTempDir(t), "a"))
		p := start(t, conf{store: store, dedup: global, site: lines(
			dedupBlock("mode webhook", "key parts notification {\njson /uid\njson /channel\n}", "lease 20s"), proxyTo(up))})
		deliver := func(uid, channel string) reply {
			return p.post(t, "/", "", fmt.Sprintf(`{"uid": %q, "channel": %q}`, uid, channel))
		}
		for i := range 40 {
			deliver(fmt.Sprint(i), "email")
		}
		found := objects(t, p.keys(t, 0, "list", "--json", "--delivery-id", "7:email"))
		if len(found) != 1 || found[0]["delivery_id"] != "7" || fmt.Sprint(found[0]["parts"]) != "[email]" || found[0]["state"] != "complete" {
			t.Fatalf("7:email is found as %v", found)
		}
		mustSay(t, p.keys(t, 0, "forget", "7:email"), "forgotten", " 7 ")
		p.keys(t, 1, "show", "7:email")
		before := len(up.all())
		deliver("7", "email")
		if ran := len(up.all()) - before; ran != 1 {
			t.Errorf("once forgotten it ran %d times, want 1", ran)
		}

		if n := len(objects(t, p.keys(t, 0, "list", "--json", "--limit", "50"))); n != 40 {
			t.Errorf("there are %d keys, want 40", n)
		}
		if status, answer := p.askAdmin(t, http.MethodGet, "/dedup/ready", "", ""); status != 200 {
			t.Errorf("ready is %d %s", status, answer)
		}
	})
}

// A configuration with another store is the way out of an outage. The store that is away
// stays open, for the end of a run that it has not stored; operators work on the others.
func TestOperatorAfterAReloadAwayFromADeadStore(t *testing.T) {
	t.Parallel()
	dead, server := redistest.Start(t), redistest.Start(t)
	g := newGate(t)
	up := startUpstream(t, g.before(answers201))
	p := start(t, conf{store: storeAt(dead.Addr), site: lines("dedup_health /ready", "dedup", proxyTo(up))})
	running := p.postLater("/", "running", "body")
	up.awaitRuns(t, "running", 1)
	dead.Kill()
	p.reloadAs(t, func(c *conf) { c.store = storeAt(server.Addr) })
	g.open()
	wantFresh(t, running.reply(t), 201, "run 1 of running")
	wantFresh(t, p.post(t, "/", "k", "body"), 201, "run 1 of k")
	_, probed := p.askAdmin(t, "GET", "/dedup/ready", "", "")
	if got := p.post(t, "/ready", "", "", method("GET")); got.Status != 200 || got.Body != probed {
		t.Errorf("a probe is answered %d %s, the admin API answers %s", got.Status, got.Body, probed)
	}
	mustSay(t, p.health(t, 0), "ready: redis at "+server.Addr)
	mustSay(t, p.keys(t, 3, "list"), "k", dead.Addr)
	mustSay(t, p.keys(t, 3, "forget", "k"), "forgotten", dead.Addr)
	wantFresh(t, p.post(t, "/", "k", "body"), 201, "run 2 of k")
}
