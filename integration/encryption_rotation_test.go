package integration

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
)

// rotationSteps are how encryption is turned on and the key a replaced by b, with
// what is kept in between.
var rotationSteps = []string{"", "a", "ba", "b"}

// reads reports whether a replica with some keys reads what one with others wrote.
func reads(keys, writer string) bool {
	return writer == "" || strings.Contains(keys, writer[:1])
}

// While a step is rolled out, replicas of both share a store: no request runs
// twice, whichever of them it comes to, and it is answered wherever it can be read.
// To put the new key behind the old one first is the way in which it always can.
func TestEncryptionKeysAreRotated(t *testing.T) {
	t.Parallel()
	for _, step := range [][2]string{{"", "a"}, {"a", "ba"}, {"ba", "b"}, {"a", "ab"}, {"ab", "ba"}} {
		before, after := step[0], step[1]
		t.Run(before+" to "+after, func(t *testing.T) {
			t.Parallel()
			gates := map[string]*gate{"slow 0": newGate(t), "slow 1": newGate(t)}
			up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
				if g := gates[n.Key]; g != nil {
					<-g.opened
				}
				answers201(w, r, n)
			})
			store, dir := redisStore(t), shortTempDir(t)
			site := lines(keyHeader, "dedup", proxyTo(up))
			replicas := []*caddy{
				start(t, conf{store: store, dedup: keyFiles(t, dir, before), site: site}),
				start(t, conf{store: store, dedup: keyFiles(t, dir, after), site: site}),
			}
			for n, p := range replicas {
				other := replicas[1-n]
				readable := reads(step[1-n], step[n])
				kept := fmt.Sprint("kept ", n)
				first := p.post(t, "/", kept, "body")
				wantReplay(t, p.post(t, "/", kept, "body"), first)
				wantProblem(t, p.post(t, "/", kept, "another"), 422, "idempotency_key_reused")
				got := other.post(t, "/", kept, "body")
				if readable {
					wantReplay(t, got, first)
					wantProblem(t, other.post(t, "/", kept, "another"), 422, "idempotency_key_reused")
				} else {
					wantProblem(t, got, 500, "record_unreadable")
				}
				if got.Header.Get("X-Key") != first.Header.Get("X-Key") {
					t.Errorf("the replicas have two names for one key")
				}
				up.wantRuns(t, kept, 1)

				slow := fmt.Sprint("slow ", n)
				running := p.postLater("/", slow, "body")
				up.awaitRuns(t, slow, 1)
				waiting := p.postMany(5, "/", slow, "body")
				if readable {
					waiting = append(waiting, other.postMany(5, "/", slow, "body")...)
					other.awaitWaiting(t, 5, waiting...)
				} else {
					wantProblem(t, other.post(t, "/", slow, "body"), 500, "record_unreadable")
				}
				p.awaitWaiting(t, 5, waiting...)
				gates[slow].open()
				allAlike(t, append(replies(t, waiting), running.reply(t)))
				up.wantRuns(t, slow, 1)
			}
			// Many at once, on both, that no one has seen before.
			for n := range 10 {
				id := fmt.Sprint("burst ", n)
				all := append(replicas[0].postMany(5, "/", id, "body"), replicas[1].postMany(5, "/", id, "body")...)
				var answered []reply
				for _, got := range replies(t, all) {
					if got.Status == 500 {
						wantProblem(t, got, 500, "record_unreadable")
					} else {
						answered = append(answered, got)
					}
				}
				if bothRead := reads(before, after) && reads(after, before); bothRead && len(answered) < len(all) {
					t.Errorf("%d of %d requests were refused", len(all)-len(answered), len(all))
				}
				allAlike(t, answered)
				up.wantRuns(t, id, 1)
			}
		})
	}
}

// Through all steps, each replica replaced by one with the next step's keys:
// nothing is forgotten, and what was kept with a key is read as long as that key is
// configured.
func TestResponsesOutliveARotation(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	store, dir := redisStore(t), shortTempDir(t)
	firsts, writers := make(map[string]reply), make(map[string]string)
	for i, keys := range rotationSteps {
		p := start(t, conf{store: store, dedup: keyFiles(t, dir, keys), site: lines("dedup", proxyTo(up))})
		for id, first := range firsts {
			if reads(keys, writers[id]) {
				wantReplay(t, p.post(t, "/", id, "body"), first)
			} else {
				wantProblem(t, p.post(t, "/", id, "body"), 500, "record_unreadable")
			}
			up.wantRuns(t, id, 1)
		}
		id := fmt.Sprint(i)
		firsts[id], writers[id] = p.post(t, "/", id, "body"), keys
		wantFresh(t, firsts[id], 201, "run 1 of "+id)
		p.terminate(t)
		if code := p.awaitExit(t); code != 0 {
			t.Errorf("the process ended with %d", code)
		}
	}
}

// A key that is held is shown and freed by any replica that has its key.
func TestHeldKeyOfARotation(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, inTurn(noAnswer, answers201))
	store, dir := redisStore(t), shortTempDir(t)
	site := lines(dedupBlock("on_unknown hold"), proxyTo(up))
	a := start(t, conf{store: store, dedup: keyFiles(t, dir, "ab"), site: site})
	b := start(t, conf{store: store, dedup: keyFiles(t, dir, "ba"), site: site})
	if got := a.post(t, "/", "k", "body"); got.Status != 502 {
		t.Fatalf("got %d", got.Status)
	}
	problem := wantProblem(t, b.post(t, "/", "k", "body"), 409, "outcome_unknown")
	key := problem.Detail[len(problem.Detail)-64:]
	if record := b.operator(t, "GET", key, 200); record["state"] != "held" || record["delivery_id"] != "k" {
		t.Errorf("under the key of the refusal there is %v", record)
	}
	b.operator(t, "POST", key+"/release", 204)
	first := b.post(t, "/", "k", "body")
	wantFresh(t, first, 201, "run 2 of k")
	wantReplay(t, a.post(t, "/", "k", "body"), first)
}

// A reload changes the keys under a run in flight. The store file stays open, and
// requests of both configurations meet.
func TestReloadChangesEncryptionKeys(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store string) {
		for i := range rotationSteps[1:] {
			before, after := rotationSteps[i], rotationSteps[i+1]
			g, dir := newGate(t), shortTempDir(t)
			up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
				if n.Key == "slow" {
					<-g.opened
				}
				answers201(w, r, n)
			})
			site := lines("dedup", proxyTo(up))
			p := start(t, conf{store: store, dedup: keyFiles(t, dir, before), site: site, global: "grace_period 20s"})
			first := p.post(t, "/"+before, "kept", "body")
			slow := p.postLater("/"+before, "slow", "body")
			up.awaitRuns(t, "slow", 1)

			p.conf.dedup = keyFiles(t, dir, after)
			p.reload(t, site)
			if reads(after, before) {
				wantReplay(t, p.post(t, "/"+before, "kept", "body"), first)
				waiting := p.postMany(3, "/"+before, "slow", "body")
				p.awaitWaiting(t, 3, waiting...)
				g.open()
				allAlike(t, append(replies(t, waiting), slow.reply(t)))
			} else {
				g.open()
				wantFresh(t, slow.reply(t), 201, "run 1 of slow")
			}
			up.wantRuns(t, "slow", 1)
			next := p.post(t, "/"+before, "next", "body")
			wantReplay(t, p.post(t, "/"+before, "next", "body"), next)
		}
	})
}

// A configuration that does not come up changes no key: what the old one keeps
// from then on opens after a restart.
func TestFailedReloadChangesNoEncryptionKey(t *testing.T) {
	t.Parallel()
	occupied, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer occupied.Close()
	up := startUpstream(t, answers201)
	dir := shortTempDir(t)
	c := conf{store: "store file", dedup: keyFiles(t, dir, "a"), site: lines("dedup", proxyTo(up))}
	p := start(t, c)
	first := p.post(t, "/", "before", "body")

	failing := p.conf
	failing.dedup = keyFiles(t, dir, "b")
	failing.sites = fmt.Sprintf("http://:PORT {\n%s\n}\nhttp://%s {\ndedup\n}\n", c.site, occupied.Addr())
	status, answer := p.askAdmin(t, "POST", "/load", "text/caddyfile", failing.caddyfile(p.conf.dir, p.conf.port))
	if status == http.StatusOK || !strings.Contains(answer, "address already in use") {
		t.Fatalf("the reload was answered %d %s", status, answer)
	}
	// A connection that the failed configuration has accepted ends with it.
	eventually(t, "the port has one listener again", func() bool { return listeners(t, p.conf.port) <= 1 })
	wantReplay(t, p.post(t, "/", "before", "body"), first)
	after := p.post(t, "/", "after", "body")
	p.terminate(t)
	p.awaitExit(t)

	c.dir = p.conf.dir
	q := start(t, c)
	wantReplay(t, q.post(t, "/", "before", "body"), first)
	wantReplay(t, q.post(t, "/", "after", "body"), after)
}
