package integration

import (
	"cmp"
	"fmt"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
)

// wantAttempt fails unless the n-th run of a key had this Dedup-Attempt. The first one has none.
func wantAttempt(t *testing.T, up *upstream, key string, n int, attempt string) {
	t.Helper()
	if got := up.nth(t, key, n).Header.Get("Dedup-Attempt"); cmp.Or(got, "1") != attempt || got == "1" {
		t.Errorf("run %d of %q has Dedup-Attempt %q, want %s", n, key, got, attempt)
	}
}

func TestUpstreamNeverReachedReleases(t *testing.T) {
	t.Parallel()
	for _, unknown := range []string{"release", "hold"} {
		t.Run(unknown, func(t *testing.T) {
			t.Parallel()
			eachStore(t, func(t *testing.T, store string) {
				addr := fmt.Sprintf("127.0.0.1:%d", freeport.Of(t))
				p := start(t, conf{store: store, site: lines(dedupBlock("on_unknown "+unknown), "reverse_proxy "+addr)})
				for range 2 {
					if got := p.post(t, "/", "k", ""); got.Status != 502 || got.replayed() {
						t.Fatalf("got %d %v, want a plain 502", got.Status, got.Header)
					}
				}
				up := startUpstreamOn(t, addr, answers201)
				wantFresh(t, p.post(t, "/", "k", ""), 201, "run 1 of k")
				wantAttempt(t, up, "k", 1, "1")
			})
		})
	}
}

// A run that may have been executed has no whole response: its client sees the failure, nothing is
// stored, and `on_unknown` decides.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]struct {
		answer  answering
		status  int    // what the client gets, 0 for a failure
		timeout string // that none of the other runs reaches
	}{
		"cut body":   {cutBody, 0, "timeout 1m"},
		"cut stream": {cutStream, 0, "timeout 1m"},
		"no answer":  {noAnswer, 502, "timeout 1m"},
		"timed out":  {untilGone, 504, "timeout 2s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := startUpstream(t, inTurn(lost.answer, answers201))
			p := start(t, conf{store: redisStore(t), site: lines(
				"handle /hold {", dedupBlock("on_unknown hold", lost.timeout), proxyTo(up), "}",
				"handle {", dedupBlock(lost.timeout), proxyTo(up), "}")})
			for _, path := range []string{"/", "/hold"} {
				if got, err := try(oneShot, p.newPost(path, path, "body")); (err != nil) != (lost.status == 0) || err == nil && got.Status != lost.status {
					t.Errorf("%s: the client got %d, %v; want %d", path, got.Status, err, lost.status)
				}
			}
			second := p.post(t, "/", "/", "body")
			wantFresh(t, second, 201, "run 2 of /")
			wantAttempt(t, up, "/", 2, "2")
			wantReplay(t, p.post(t, "/", "/", "body"), second)
			held := wantProblem(t, p.post(t, "/hold", "/hold", "body"), 409, "outcome_unknown")
			if want := up.nth(t, "/hold", 1).Header.Get("Dedup-Execution-Id"); held.ExecutionID != want {
				t.Errorf("the refusal names execution %q, want %q", held.ExecutionID, want)
			}
			up.wantRuns(t, "/hold", 1)
		})
	}
}
