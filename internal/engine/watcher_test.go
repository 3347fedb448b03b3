package engine_test

import "testing"

func TestRunsOfOtherReplicas(t *testing.T) {
	play(t, []scene{
		// One poll for each request that joins, and one for the end.
		{"a wake-up answers all who wait, at once", "", `
			a runs run; b asks all n=10; sleep 100ms; run ends 201 kept; all shares run after=100ms
			b asked claim 1; b asked response 1; b asked lookup 1..11`},
		{"a wake-up comes before the reply to the claim", "", `
			a runs run; b pauses reply-to-claim; b asks w; run ends 201 kept; b resumes reply-to-claim; w shares run after=0s`},
		{"a wake-up is lost: the next poll finds the end", "", `
			b deaf; a runs run; b asks w; sleep 2300ms; run ends 201 kept; w shares run after=..3300ms`},
		{"it is polled in the meantime, every 500 ms to 1 s", "lease={3ms|600ms|2s|30s}", `
			a runs run; b refuses in_flight run after=5s; b paused lookup 1s 1s 1s 1s; run ends 201 kept`},
		{"no request waits any more: no poll", "", `
			a runs run; b asks all n=2; sleep 2500ms; all leave; b asked lookup 2..; sleep 10s; b asked lookup 0
			b asks later; sleep 1s; run ends 201 kept; later shares run`},
		{"a waiter gets the answer of its run, though a third one runs already", "", `
			b deaf; a runs first; b asks w; first ends 500 released; c runs second attempt=2; w shares first
			second ends 201 kept; b replays second`},
		{"a run without an answer: the waiter waits for the next", "", `
			b deaf; a runs first; b asks w; first ends silent unsent; c runs second; sleep 1500ms; second ends 201 kept; w shares second`},
		{"errors of the store do not end the wait", "", `
			a runs run; b store hung {lookup|response}; b asks leaves wait=2s; b asks stays; run ends 201 kept
			leaves refused in_flight run after=2s; b store works; stays shares run`},
		{"an unreadable response ends it", "", `
			a runs run; b store damaged response; b asks all n=3; run ends 201 kept; all refused unreadable -`},
	})
}

func TestTakeovers(t *testing.T) {
	play(t, []scene{
		{"one waiter takes over from a crashed owner, with wake-ups or without", "wait=10m", `
			{|b deaf; c deaf;} a runs crashed; a store refused; b asks all n=5; c asks all n=5; sleep 29999ms; all wait; sleep 1s
			all run-once run attempt=2 lapsed=crashed after=..30501ms; sleep 1m; run ends 201 kept; all shares run
			a store works; crashed ends 201 fenced; a replays run`},
		// The setting of the run decides, not that of the duplicate.
		{"a crash under hold holds the key", "wait=10m", `
			a runs crashed hold; a store refused; b asks all n=3 hold; c asks all n=3; all refused held crashed; b refuses held crashed hold`},
		{"a late owner is fenced", "wait=10m", `
			a runs late; a store refused; sleep 30s; b runs run; a asks waiting n=3; a store works claim settle lookup response
			late ends 201 fenced; a has in_flight 2; run ends 201 kept; waiting shares run; a replays run; b replays run`},
		// A run that has lost its claim may go on for minutes.
		{"duplicates of a late owner follow the new one", "wait=10m", `
			a runs late; a asks waiting n=3; a store refused; sleep 30s; b runs run; a store works; sleep 10s; run ends 201 kept
			waiting shares run; a replays run; late ends 201 fenced; a replays run`},
		// It may never end, for example because its client does not read a stream to the end.
		{"the lease of a run is not renewed after its time limit", "wait=10m timeout=1m", `
			a runs stuck; other asks all n=5; sleep 89999ms; all wait; sleep 31s; all run-once run lapsed=stuck after=any
			stuck ends 201 fenced; run ends 201 kept; all shares run`},
		{"a run that ends after its time limit is kept if no other has begun", "wait=10m timeout=1m", `
			a runs run; other asks w; sleep 90001ms; run ends 201 kept; w shares run; a replays run`},
		{"the lease is renewed again while the end of such a run is stored", "wait=1h timeout=1m", `
			a runs run; sleep 90001ms; a store full settle; run ends 201 trying; sleep 5m; b refuses in_flight run now
			a store works; a drains; b replays run`},
	})
}
