package engine_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
)

const someCopies = 1 << 20

func TestCopies(t *testing.T) {
	play(t, []scene{
		{"of a run, or of a replay", "copies", `
			a runs run; run ends {201|omitted} kept; a replays run; a replays run; a asked claim 1; b replays run; b replays run; b asked claim 1`},
		{"of what a request has waited for", "copies", `
			a runs run; b asks w; run ends 201 kept; w shares run; b asked claim 1; b replays run; b asked claim 0`},
		{"of what is stored later", "copies", `
			a runs run; a store refused settle; run ends 201 trying; a store works; a drains; a replays run; a asked claim 1`},
		{"only of what is complete and stored", "copies hold", `
			a runs run; {run ends 500 released|run ends unsent unsent|run ends unknown held|
			a store refused settle; run ends 201 trying|a store fenced settle; run ends 201 fenced}; a copies none`},
		{"of what is no response, the store reports the error", "copies", `
			a runs run; run ends 1000 kept; a refuses unreadable -; a asked claim 2; a copies none`},
		{"are no answer to another request, or a forced one", "copies", `
			a runs run; run ends 201 kept; a refuses reused run reused; a asked claim 1; a runs next key=elsewhere; a asked claim 1
			a runs forced force; a asked claim 1; forced ends 201 kept; a replays forced; a asked claim 0`},
		{"are no answer beside a forced run", "copies", `
			a runs old; old ends 201 kept; a runs forced force; a asks w; w wait; forced ends 201 kept; w shares forced`},
		// Most keys have no duplicate, and the store is always available.
		{"of a store in this process: the first duplicate makes it", "memory copies", `
			a runs run; run ends 201 kept; a copies none; a replays run; a copies some; a replays run`},
		{"are no answer within a forced run of another replica", "copies", `
			a runs old; old ends 201 kept; b replays old; b deaf; a runs forced force; b refuses loop forced in=forced; forced ends 201 kept`},
		// A refusal because of another fingerprint evicts no copy.
		{"answer a reused key after they are old, too", "copies", `
			a runs run; run ends 201 kept; sleep 5s; a refuses reused run reused; a asked claim 2; a store refused; a replays run`},
	})
}

// A replica notices what happens to a key on another one: at once with a wake-up, and within
// CopyBound if the wake-up is lost. Until then its copy answers. Of its own acts it needs no wake-up.
func TestCopiesFollowOtherReplicas(t *testing.T) {
	for what, c := range map[string]struct{ act, then string }{
		"released":  {"releases", "a runs next"},
		"forgotten": {"forgets", "a runs next"},
		"completed": {"releases; b completes old new", "a replays new"},
		"forced":    {"runs new force; new ends 201 kept", "a replays new"},
	} {
		const kept = "a runs old; old ends 201 kept; "
		play(t, []scene{
			{what + " here", "copies", kept + "a deaf; " + strings.ReplaceAll("b "+c.act, "b ", "a ") + "; " + c.then},
			{what + ", notified", "copies", kept + "b " + c.act + "; " + c.then},
			{what + ", not notified", "copies", kept + "a deaf; b " + c.act + "; sleep 4999ms; a replays old; sleep 1ms; " + c.then},
		})
	}
}

// A reply from before a key was released must not become a copy after that.
func TestResponseReadBeforeInvalidationIsNotCopied(t *testing.T) {
	play(t, []scene{
		{"of a claim", "copies", `
			a runs old; old ends 201 kept; b pauses reply-to-claim; b asks w; {a|b} releases; b resumes reply-to-claim
			w replays old; b runs next`},
		{"of a poll", "copies", `
			a runs old; b asks w; b pauses reply-to-response; old ends 201 kept; a releases; b resumes reply-to-response
			w shares old; b runs next`},
		{"of a settlement", "copies", `
			a runs old; a pauses reply-to-settle; old ending 201; a releases; a resumes reply-to-settle; old ended kept; a runs next`},
		{"of a large body", "copies", `
			a runs old; old ends 201x100000 kept; b deaf; b pauses lookup; b asks w; a runs new force; new ends 201 kept
			b resumes lookup; w replays old; b replays new`},
		// After the first loss, the store has notified, and after the second one it has not.
		{"the store contradicts it", "copies", `
			a runs old; old ends 201 kept; forget; a runs run; a copies none; run ends 201 kept; a deaf; forget; sleep 5s; a runs next; a copies none`},
	})
}

func TestLifeOfCopies(t *testing.T) {
	play(t, []scene{
		{"they answer while the store cannot be asked, for as long as the retention, and nothing runs", "copies retention=1h", `
			a runs run; run ends 201 kept; a store {refused|hung}; sleep 30m; a asked claim 1; a asks w n=3; w replays run; a asked claim 1..
			a refuses reused run reused after=any; a replays run after=any; a refuses unavailable - force after=any
			a refuses unavailable - key=unknown after=any
			a limits in_flight=1; a store works; a drains; a runs second key=unknown; a store {refused|hung}; a replays run after=any
			until 1h; a refuses unavailable - after=any; a store works; second ends 201 kept`},
		{"an error about the key means that the store is available", "copies", `
			a runs run; run ends 201 kept; sleep 5s; a store {damaged|full} claim; a refuses {unreadable|full} -
			a store works; a store refused; a refuses unavailable -`},
		{"none outlives the record in the store", "copies retention=3s lease=1s", `
			a runs run; a store {works|works|lost|works} settle; run ends 201 {kept|kept|trying|kept}; a store works; a drains
			until {0s|1s|1s|2999ms}; {a|b|a|b} replays run; until 2999ms; {a|b|a|b} asked claim 1..; {a|b|a|b} replays run
			{a|b|a|b} asked claim 0; sleep 1ms; {a|b|a|b} runs next`},
		{"they end with their encryption key", "copies", `
			a keys a; a runs run; run ends 201 kept; a keys a; a replays run; a asked claim 1; a refuses reused run reused
			a keys ba; a replays run; a keys b; a refuses unreadable -; a store refused; a refuses unavailable -`},
		{"there is none of a run whose key is dropped, before its end or after", "copies fingerprint=", `
			a keys a; a runs run; {a keys b; run ends 201 kept|run ends 201 kept; a keys b}; a refuses unreadable -`},
	})
}

// Operators who release or forget a key rely on the published bound.
func TestCopiesRespectCopyBound(t *testing.T) {
	guarantees, err := os.ReadFile("../../docs/guarantees.md")
	must(t, err)
	if published := fmt.Sprintf("The published bound is **%v seconds**", engine.CopyBound.Seconds()); !strings.Contains(string(guarantees), published) {
		t.Errorf("docs/guarantees.md does not say %q", published)
	}
}
