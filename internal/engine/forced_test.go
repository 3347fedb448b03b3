package engine_test

import "testing"

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
func TestForcedRunsOverALoss(t *testing.T) {
	const forced = "a runs first; first ends 201 kept; a runs forced force; lose; "
	play(t, []scene{
		{"the key is free after it", "", forced + `
			sleep 15s; b refuses in_flight forced now; forced ends {500|unknown|unsent} {released|released|unsent}; a drains
			b runs next; next ends 201 kept`},
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
