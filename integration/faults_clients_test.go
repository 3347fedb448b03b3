package integration

import (
	"io"
	"net/http"
	"testing"
)

// A client that sends its body slowly holds no key meanwhile.
func TestSlowBodyHoldsNoKey(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store string) {
		up := startUpstream(t, answers201)
		p := start(t, conf{store: store, site: lines(dedupBlock("wait off"), proxyTo(up))})
		body, write := io.Pipe()
		slow := sendLater(oneShot, p.newPost("/", "k", "", func(r *http.Request) { r.Body, r.ContentLength = body, 4 }))
		if _, err := io.WriteString(write, "bo"); err != nil {
			t.Fatal(err)
		}
		first := p.post(t, "/", "k", "body")
		wantFresh(t, first, 201, "run 1 of k")
		slow.mustWait(t)
		if _, err := io.WriteString(write, "dy"); err != nil {
			t.Fatal(err)
		}
		wantReplay(t, slow.reply(t), first)
		up.wantRuns(t, "k", 1)
	})
}

func TestThousandDuplicatesOverThreeReplicasRunOnce(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	up := startUpstream(t, g.before(answers201))
	c := conf{store: redisStore(t), site: lines(dedupBlock("wait 1m"), proxyTo(up))}
	const each = 334
	var all []*pending
	var replicas []*caddy
	for range 3 {
		p := start(t, c)
		replicas = append(replicas, p)
		all = append(all, p.postMany(each, "/", "k", "body")...)
	}
	up.awaitRuns(t, "k", 1)
	for _, p := range replicas {
		p.awaitWaiting(t, each-1, all...)
	}
	g.open()
	got := replies(t, all)
	allAlike(t, got)
	wantAnswer(t, got[0], 201, "run 1 of k")
	// The first answer was stored before its last byte: no replica may still find the run in flight.
	for _, p := range replicas {
		wantReplay(t, p.post(t, "/", "k", "body"), got[0])
	}
	up.wantRuns(t, "k", 1)
}
