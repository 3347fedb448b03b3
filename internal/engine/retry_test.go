package engine_test

import "testing"

// The store fails after the upstream has answered: the end of the run is stored later.
func TestSettlementIsRetried(t *testing.T) {
	const outage = "{a store refused|a store hung|a store refused; a store lost settle|a store full settle}; "
	play(t, []scene{
		{"a response: until then, the process answers for the store", "", `
			a runs run; a asks waiting n=3; a asked claim 1; ` + outage + `run ends 201 trying; waiting shares run; sleep 10s
			a replays run; a refuses reused run reused; a asked claim 0; a draining; sleep 1s; a undone
			a store works; sleep 4s; a done; a has complete 1; b replays run; a replays run; a asked claim 1`},
		{"held", "hold", `
			a runs run; a store refused; run ends unknown trying; a refuses held run; a store works; a drains; a has held 1`},
		// The store cannot say that the key is free. When it is back, it says that the run is in flight.
		{"a release", "", `
			a runs run; a asks here n=3; b asks there n=3; a store refused; run ends 500 trying; here shares run; a refuses unavailable -
			a store works; a asks late; there shares run; late shares run; a drains; a runs next attempt=2`},
		{"a response with a short retention, such as a refusal of the caller, after an outage that is longer", "hold release=5xx,401", `
			a runs run; a store refused; run ends {401|201/10s} trying; sleep 35s; a store works; a drains; {b runs next|b replays run}`},
		{"another request has claimed the key during the outage", "", `
			a runs late; a store refused; late ends 201 trying; sleep 30s; b runs next; a store works; a drains; a asks w
			next ends 201 kept; w shares next; b has complete 2`},
		// While a store has no room for a response but still renews leases, the claim must not lapse.
		{"the claim is renewed until then", "lease={2s|30s}", `
			a runs run; a store full settle; run ends 201 trying; b refuses in_flight run wait=100s after=100s
			a store works; a drains; b replays run`},
		{"tried more and more seldom", "", `
			a runs run; a store refused; run ends 201 trying; sleep 1m
			a paused settle 100ms 200ms 400ms 800ms 1600ms 3s 3s 3s; a logs 0 could not be renewed`},
		{"given up when the retention is over", "retention=1m", `
			a runs run; a store refused; run ends 201 trying; a drains; elapsed 1m 1m4s; a refuses unavailable -`},
		{"given up when the engine is closed, and left to its lease", "", `
			a runs run; a store refused; run ends 201 trying; a closes; a idle; sleep 30s; b runs next attempt=2`},
		{"onStored is called when it is stored, and not before", "", `
			a runs first; first ends 201 kept; first stored 1; a runs second key=2; a store refused settle; second ends 201 trying
			sleep 1m; second stored 0; a store works; a drains; second stored 1`},
	})
}

// The retention of a response that is stored late counts from the end of its run. Its attempts take up to 500 ms.
func TestLateResponseRetentionCountsFromTheEnd(t *testing.T) {
	play(t, []scene{{"after an outage", "retention=30s", `
		a runs run; {a store refused|a store hung|a store refused; a store lost settle|a store full settle}; run ends 201 trying; sleep 10s
		a store works; a drains; until 29900ms; b replays run; until 31500ms; b runs next`}})
}
