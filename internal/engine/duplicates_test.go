package engine_test

import "testing"

func TestDuplicates(t *testing.T) {
	play(t, []scene{
		{"those that come together ask the store once", "", `
			a pauses claim; a asks all n=100; a resumes claim; all run-once run attempt=1; run ends 201 kept; all shares run
			a asked claim 1; a asked settle 1; a asked lookup 0; a asked response 0; a replays run; a has complete 1`},
		{"keys do not wait for each other", "", `
			a runs one key=one; a runs two key=two; two ends 201 kept; one ends 201 kept; a replays one key=one; a replays two key=two`},
		{"another fingerprint is refused at once", "", `
			a runs run; {|run streams}; other refuses reused run reused; run ends 201 kept; other refuses reused run reused; other replays run`},
		{"the first of a flight is refused for a reason that does not hold for the others", "", `
			a runs run; run ends 201 kept; a pauses claim; a asks first reused; a asks second; a resumes claim
			first refused reused run; second replays run; a asked response 0`},
		{"without waiting, a run in flight refuses at once", "now", `
			a runs run; other refuses in_flight run; run ends 201 kept; other replays run`},
		{"one that waits beside one that does not, as two handlers with one store may differ", "", `
			a runs run; b pauses claim; b asks first now; b asks second; b resumes claim; first refused in_flight run
			b refuses in_flight run now; run ends 201 kept; second shares run`},
		{"the wait ends at its limit", "", `
			a runs run; other refuses in_flight run after=5s; other asks later; sleep 2500ms; run ends 201 kept; later shares run`},
		{"a client that waits leaves", "", `
			a runs run; other asks gone; other asks stays; sleep 1s; gone leave; run ends 201 kept; stays shares run`},
		{"clients leave while the store is asked: the claim goes on, because it may be in doubt", "", `
			a pauses claim; a asks first; a asks second; a asks third; first disconnect; second leave; first wait; a resumes claim
			first runs run; run ends 201 kept; third shares run`},
		// With any settings, and even if another request already waits for the run.
		{"a request within a run does not wait for that run", "", `
			a runs run
			other refuses loop run in=run; other refuses loop run in=run fingerprint=json:one; other refuses loop run in=run reused
			other asks beside
			other refuses loop run in=run; other refuses loop run in=run fingerprint=json:one; other refuses loop run in=run reused
			other refuses in_flight run in=elsewhere now; run ends 201 kept; a replays run in=elsewhere`},
		{"a store that fails refuses all that have joined, and is asked once", "", `
			a store {refused|full|damaged} claim; a pauses claim; a asks all n=10; a resumes claim
			all refused {unavailable|full|unreadable} -; a asked claim 1; a store works; a runs run; run ends 201 kept`},
		{"a store that hangs refuses within its timeout", "", `
			a store hung; a asks all n=3; all refused unavailable - after=500ms; a store works; a runs run; run ends 201 kept`},
	})
}

// A response about the caller is for that caller only. The requests that waited claim again, one
// after the other, on all replicas. The record of a forged request expires soon, unless attempts
// are counted.
func TestResponseAboutTheCallerIsNotShared(t *testing.T) {
	play(t, []scene{
		{"others run", "release=5xx,401,403,407 wait=1m", `
			a runs forged; other asks genuine n=3; forged ends {401|403|407} released; sleep 2s
			genuine run-once run after=any; run ends 201 kept; genuine shares run`},
		{"the record expires", "release=401", "a runs run; run ends 401 released; sleep 30s; a has nothing"},
		{"a forgery counts as any other attempt", "release=401 attempts=5", "a runs run; run ends 401 released; sleep 5m; a has released 1"},
	})
}

// What releases a key is for those that waited for it; a retry after it runs.
func TestRetries(t *testing.T) {
	play(t, []scene{
		{"all that waited get the answer that releases", "", `
			a runs run; a asks here n=3; b asks there n=3; run ends {500|unknown|unsent|201/0s} {released|released|unsent|released}
			here shares run; there shares run; a has released {1|1|0|1}
			b runs again attempt={2|2|1|2}; again ends unsent unsent; a runs third attempt={2|2|1|2}`},
		{"under hold, an unknown end holds the key", "hold", `
			a runs run; a asks here n=3; b asks there n=3; run ends {unknown|504} held; here refused held run; there refused held run
			a refuses held run; b refuses held run; a has held 1`},
		{"a setting of the run decides, not that of its duplicates", "", `
			a runs run hold; run ends unknown held; a refuses held run; b refuses held run`},
		{"the retention counts from the end", "", `
			a runs run; sleep 3m; run ends {201|201/1m} kept; sleep {23h59m59.999s|59.999s}; a replays run; sleep 1ms; a runs next attempt=1`},

		// While the end of a run is stored, waiters on other replicas may have the response already: who comes now
		// may be a retry, and must not get a response that releases the key.
		{"a retry comes while a release is stored", "", `
			a runs run; a asks here; b asks there; a pauses {settle|reply-to-settle}; run ending 500; there {wait|shares run}
			a asks retry; a resumes {settle|reply-to-settle}; run ended released; retry runs again
			here shares run; there shares run; again ends 201 kept`},
		{"one that comes while a kept response is stored gets it, and follows no stream", "", `
			a runs run; run streams; a pauses settle; run ending 201; a asks w; a refuses reused run reused; w wait
			a refuses in_flight run wait=400ms after=400ms
			a resumes settle; w shares run; run ended kept`},
		{"one that comes while a forced run leaves the previous response gets that", "hold", `
			a runs kept; kept ends 201 kept; a runs run force; sleep 90s; a pauses settle; run ending 500; a asks w
			a resumes settle; run ended released; w replays kept`},
		{"one that comes during a poll and after the next claim waits for that run: nothing is held", "hold wait=1h", `
			a runs run; b asks early; sleep 90s; b pauses lookup; sleep 2s; run ends 500 released; a runs second; b asks late
			b resumes lookup; early shares run; late wait; second ends 201 kept; late shares second`},

		// A run on a releases its key, and b, where a request waits, does not know yet.
		{"without a wake-up, a retry on another replica runs", "", `
			b deaf; a runs run; b asks early; sleep 2300ms; b asks late n=3; run ends 500 released; sleep {0s|1ms|400ms}
			b runs retry attempt=2; late shares run; early shares run; retry ends 201 kept`},
		{"a retry comes during the poll that finds the end", "", `
			a runs run; b asks early; b pauses {lookup|reply-to-lookup|response}; run ends 500 released; b asks retry
			b resumes {lookup|reply-to-lookup|response}; retry runs again; early shares run; again ends 201 kept`},
		{"a retry comes during a claim that still finds the run", "", `
			b deaf; a runs run; b pauses reply-to-claim; b asks early; run ends 500 released; b asks retry; b resumes reply-to-claim
			retry runs again; early shares run; again ends 201 kept`},
		{"a kept response is for all, whenever they came", "", `
			b deaf; {|a runs zero; zero ends 201 kept;} a runs run {|force}; b asks early; sleep 2300ms; run ends 201 kept
			b shares run; early shares run`},
		{"requests that come during a poll cost one more, and refused ones none", "", `
			a runs run; b asks one; b pauses lookup; b asks some n=50; b asks more n=50; b resumes lookup; b asked lookup 2
			b refuses reused run reused; b asked lookup 0; run ends unknown released; one shares run; some shares run; more shares run`},
		{"the answer outlives a lease that is shorter than an outage", "lease=300ms", `
			b deaf; a runs run; b asks w; run ends 500 released; b store refused lookup; sleep 3s; b store works; w shares run`},
	})
}

// Not more runs reach the upstream than MaxAttempts allows. The answer of the last one is kept,
// whatever its status is. If it is unknown how the last one ended, no more requests run.
func TestMaxAttempts(t *testing.T) {
	play(t, []scene{
		{"the last answer is kept", "attempts=3", `
			a runs one; one ends unsent unsent; other runs one attempt=1; one ends 500 released
			a runs two; two ends unsent unsent; other runs two attempt=2; two ends 500 released
			a runs last; last ends unsent unsent; other runs last attempt=3; last ends 500 kept; a replays last; other replays last`},
		{"the last end is unknown", "attempts=3", `
			a runs one; one ends 500 released; a runs two; two ends 500 released; a runs last; other asks w; last ends unknown released
			w shares last; other refuses exhausted last`},
	})
}

func TestForcedRuns(t *testing.T) {
	play(t, []scene{
		{"those that wait get its answer, and later ones what is kept", "hold", `
			a runs first; first ends 201 kept; a runs run force attempt=2 parent=first; other asks plain n=3; other asks forced n=3 force
			run ends {201 kept|500 released|unsent unsent|unknown released}; plain shares run; forced shares run
			other replays {run|first|first|first}`},
		{"its process crashes: the previous response counts again, and the run as an attempt", "{hold|}", `
			a runs first; first ends 201 kept; a runs lost force attempt=2; a closes; sleep 30s; b replays first
			b runs again force attempt=3; again ends 201 kept; b replays again`},
		{"it may differ from the kept request, but is a duplicate of a run in flight, and refused where the key is held", "hold", `
			a runs run; a refuses reused run force reused; run ends 201 kept; a runs second force reused; second ends 201 kept
			a refuses reused second; a runs lost key=held; lost ends unknown held; a refuses held lost force key=held`},
		{"it waits until the previous response is stored", "", `
			a runs first; a store refused settle renew claim; first ends 201 trying; a replays first
			a refuses in_flight first force after=5s; a refuses in_flight first force now; a asks left force; left leave
			a asks patient force; a store works; patient runs run parent=first; run ends 201 kept`},
		{"a response without its body replaces nothing", "", `
			a runs first; first ends 201 kept; a runs run force; run ends omitted released; a replays first`},
		{"a claim that the store executes again after its run changes nothing", "", `
			a runs first; first ends 201 kept; a runs run force; run ends 201 kept; run again; a has complete 2; a replays run`},
	})
}

// The store loses the claim of a forced run, and with it the response that the run is meant to replace.
// The claim is written again, but the record with that response must not be.
func TestForcedRunAfterStoreLoss(t *testing.T) {
	const forced = "a runs first; first ends 201 kept; a runs forced force; lose; "
	play(t, []scene{
		{"the key is free after it", "", forced + `
			sleep 15s; b refuses in_flight forced now; a asks w; forced ends {500|unknown|unsent} {released|released|unsent}
			w shares forced; a drains; b runs next; next ends 201 kept`},
		{"an unknown end holds the key, noticed by a renewal or not", "hold", forced + `
			sleep {15s|0s|0s}; a store {works|works|refused} settle; forced ends unknown {held|held|trying}; a store works; a drains
			b refuses held forced`},
		{"a renewal writes the claim again while the run ends, and replaces nothing", "", forced + `
			a pauses claim; sleep 10s; forced ending 201; a resumes claim; forced ended kept; a has complete 2; b replays forced now`},
		{"another request has run by then: the claim does not replace its response", "", forced + `
			a pauses claim; sleep 10s; b runs next; next ends 201 kept; a resumes claim; b has complete 1
			forced ends 201 fenced; a replays next`},
	})
}
