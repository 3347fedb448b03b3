package integration

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
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
		first := deliver("7:sms", "push") // another ID, and another key than the next
		deliver("7", "sms:push")
		wantReplay(t, deliver("7:sms", "push"), first)

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

		if found := objects(t, p.keys(t, 0, "list", "--json", "--delivery-id", "7:sms")); len(found) != 1 || found[0]["delivery_id"] != "7:sms" {
			t.Errorf("the whole text counts as an ID first: 7:sms is found as %v", found)
		}
		mustSay(t, p.keys(t, 2, "forget", "7"), "2 keys", "nothing was changed")
		p.keys(t, 0, "forget", "--yes", "7:sms", "7:sms:push")
		p.keys(t, 1, "show", "7:sms:push")

		status, answer := p.askAdmin(t, http.MethodPost, "/dedup/lookup", "application/json", `{"ids": ["8:email", "7:sms:push", "9:email"]}`)
		looked := objects(t, answer)
		if status != 200 || len(looked) != 1 {
			t.Fatalf("the lookup got %d %s", status, answer)
		}
		keys, _ := looked[0]["keys"].([]any)
		var ids []string
		for _, one := range keys {
			record, _ := one.(map[string]any)
			ids = append(ids, fmt.Sprint(record["delivery_id"]))
		}
		slices.Sort(ids)
		if !slices.Equal(ids, []string{"8", "9"}) || fmt.Sprint(looked[0]["missing"]) != "[7:sms:push]" {
			t.Errorf("the lookup found %v and is missing %v", ids, looked[0]["missing"])
		}
		if n := len(objects(t, p.keys(t, 0, "list", "--json", "--limit", "50"))); n != 40 {
			t.Errorf("%d keys are left, want 40", n)
		}
		if status, answer := p.askAdmin(t, http.MethodGet, "/dedup/ready", "", ""); status != 200 {
			t.Errorf("ready is %d %s", status, answer)
		}
	})
}

// While Redis is away, the commands say so and do not say that there is nothing.
func TestOperatorWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store redis redis://" + server.Addr, site: lines("dedup", proxyTo(up))})
	p.post(t, "/", "k", "body")
	p.keys(t, 0, "show", "k")
	server.Kill()
	for _, args := range [][]string{{"list"}, {"show", "k"}, {"show", unknownKey}, {"forget", "k"}, {"release", "--yes", "k"}} {
		mustSay(t, p.keys(t, 3, args...), "redis at "+server.Addr)
	}
	if status, answer := p.askAdmin(t, http.MethodGet, "/dedup/ready", "", ""); status != 503 || !strings.Contains(answer, server.Addr) {
		t.Errorf("ready is %d %s", status, answer)
	}
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

// The keys of a store that only ends what it has begun are found by their delivery IDs.
func TestOperatorFindsKeysOfAStoreThatWasConfiguredAway(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		if n.Key == "running" {
			<-g.opened
		}
		answers201(w, r, n)
	})
	p := start(t, conf{store: "store memory", site: lines("dedup", proxyTo(up))})
	wantFresh(t, p.post(t, "/", "k", "body"), 201, "run 1 of k")
	running := p.postLater("/", "running", "body")
	up.awaitRuns(t, "running", 1)
	p.reloadAs(t, func(c *conf) { c.store = "store file " + filepath.Join(c.dir, "store") })
	mustSay(t, p.keys(t, 0, "show", "k"), "memory store", "complete")
	mustSay(t, p.keys(t, 0, "show", "running"), "in_flight")
	g.open()
	wantFresh(t, running.reply(t), 201, "run 1 of running")
}
