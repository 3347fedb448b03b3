package integration

import (
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// The claim stands in the store, and its process does not know: it refuses the
// request, and takes the claim back as soon as it can.
func TestLostReplyToAClaimRunsNothingAndLocksNothing(t *testing.T) {
	t.Parallel()
	for _, unknown := range []string{"release", "hold"} {
		t.Run(unknown, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			way := startLink(t, server.Addr)
			up := startUpstream(t, answers201)
			site := bothModes(up, "on_unknown "+unknown, "lease 1m", "wait off")
			p := start(t, conf{store: storeAt(way.addr), site: site})
			other := start(t, conf{store: storeAt(server.Addr), site: site})
			options := []option{host("shop.test")}
			p.post(t, "/", "warm", "body", options...) // a connection is open

			end := way.suffer(t, lostReplies)
			refused := p.post(t, "/", "k", "body", options...)
			wantProblem(t, refused, 503, "store_unavailable")
			wantRetryAfter(t, refused)
			wantProblem(t, other.post(t, "/", "k", "body", options...), 409, "request_in_flight")
			hook := p.post(t, "/hook", "hook", "body", options...)
			wantProblem(t, hook, 503, "store_unavailable")
			up.wantRuns(t, "k", 0)
			end()

			// The lease is far longer than the test's patience: only the withdrawal
			// frees the key.
			for path, key := range map[string]string{"/": "k", "/hook": "hook"} {
				var got reply
				eventually(t, key+" is free again", func() bool {
					got = other.post(t, path, key, "body", options...)
					return got.Status == 201
				})
				wantFresh(t, got, 201, "run 1 of "+key)
				wantAttempt(t, up, key, 1, "1")
				wantReplay(t, p.post(t, path, key, "body", options...), got)
			}
		})
	}
}

// The reply to the claim's end is lost: the answer is stored, and stored once.
func TestLostReplyToAnAnswersStoring(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 50_000)
	for name, answer := range map[string]answering{
		"small": answers201,
		"large": func(w http.ResponseWriter, _ *http.Request, _ run) {
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write([]byte(large)) // the proxy may be cut off meanwhile
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			way := startLink(t, server.Addr)
			g := newGate(t)
			up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
				if n.Key == "k" {
					<-g.opened
				}
				answer(w, r, n)
			})
			site := lines(dedupBlock(), proxyTo(up))
			p := start(t, conf{store: storeAt(way.addr), site: site})
			other := start(t, conf{store: storeAt(server.Addr), site: site})
			// Redis knows the scripts: else it would only reply that it does not. The proxy is connected,
			// also for large responses: a new connection needs replies.
			p.post(t, "/", "warm", "body")
			first := p.postLater("/", "k", "body", host("shop.test"))
			up.awaitRuns(t, "k", 1)
			end := way.suffer(t, lostReplies)
			g.open()
			got := first.reply(t)
			if got.Status != 201 || got.replayed() {
				t.Errorf("the client got %d %v, want its run's answer", got.Status, got.Header)
			}
			wantReplay(t, p.post(t, "/", "k", "body", host("shop.test")), got)
			wantReplay(t, other.post(t, "/", "k", "body", host("shop.test")), got)
			end()
			p.awaitLog(t, "that the run's end is stored now", func(e entry) bool { return strings.Contains(e.text("msg"), "stored now") })
			wantReplay(t, p.post(t, "/", "k", "body", host("shop.test")), got)
			up.wantRuns(t, "k", 1)
		})
	}
}
