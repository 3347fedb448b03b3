package integration

import (
	"fmt"
	"net/http"
	"testing"
)

// verifying is an upstream that knows genuine deliveries by their signature.
func verifying(status int) answering {
	return func(w http.ResponseWriter, r *http.Request, n run) {
		if n.Header.Get("X-Hub-Signature-256") != "sha256=genuine" {
			answersStatus(status)(w, r, n)
			return
		}
		answers201(w, r, n)
	}
}

// The answer to the forged one is a stream, and a response handler shows it as a success: it
// is about the forged one all the same, and the genuine one does not follow it.
func TestAttackForgedDeliveryIsAnsweredByAMaskedStream(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	answer := verifying(401)
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		if n.N > 1 {
			answer(w, r, n)
			return
		}
		w.WriteHeader(401)
		fmt.Fprint(w, "forged")
		w.(http.Flusher).Flush()
		<-g.opened
	})
	p := start(t, conf{store: "store memory", site: lines("dedup github",
		"reverse_proxy "+up.addr+" {", "flush_interval -1", "@forged status 401", "handle_response @forged {", "copy_response 200", "}", "}")})
	forged := p.postLater("/", "", "body", header("X-GitHub-Delivery", "d"))
	up.awaitRuns(t, "d", 1)
	genuine := p.postLater("/", "", "body", header("X-GitHub-Delivery", "d"), header("X-Hub-Signature-256", "sha256=genuine"))
	p.awaitWaiting(t, 1, genuine)
	g.open()
	wantAnswer(t, forged.reply(t), 200, "forged")
	wantFresh(t, genuine.reply(t), 201, "run 2 of d")
}
