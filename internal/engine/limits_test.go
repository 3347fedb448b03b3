package engine_test

import (
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
)

func TestLimits(t *testing.T) {
	play(t, []scene{
		// On another replica, the first duplicate of a key watches the run. It waits as all others do, and
		// counts. A refusal names the run, which may be executing now.
		{"of waiters", "", `
			other limits waiters=5 per_key=3; a runs first key=one; a runs second key=two
			other asks ones n=3 key=one; other refuses overloaded first key=one
			other asks twos n=2 key=two; other refuses overloaded second key=two
			first ends 201 kept; second ends 201 kept; ones shares first; twos shares second; other overloads waiters=1 waiters_per_key=1
			a runs third key=three; other asks gone key=three; other asks threes n=2 key=three; gone leave
			other asks threes key=three; other refuses overloaded third key=three
			third ends 201 kept; threes shares third`},
		{"of waiters that have joined together", "", `
			a runs run; b limits {waiters=4|per_key=4}; b pauses claim; b asks all n=10; b resumes claim; all refused-some 6 overloaded run
			run ends 201 kept; all shares run; a runs again key=two; b asks more n=4 key=two; again ends 201 kept; more shares again`},
		{"of waiters: who does not wait is not refused", "", `
			a runs first key=kept; first ends 201 kept; a runs run key=busy; other limits waiters=1 per_key=1
			other asks w key=busy; other refuses overloaded run key=busy; other refuses reused run key=busy reused
			other refuses loop run key=busy in=run; other refuses in_flight run key=busy now
			other pauses claim; other asks all n=5 key=kept; other resumes claim; all replays first
			run ends 201 kept; w shares run`},
		// A response that is not stored yet counts too, because it takes memory.
		{"of runs", "", `
			a limits in_flight=2; a runs one key=1; a runs two key=2; a refuses overloaded - key=3; one ends 201 kept
			a store refused settle; two ends 201 trying; a runs three key=3; a refuses overloaded - key=4
			a store works; three ends 201 kept; a drains; a overloads in_flight=2; a runs four key=4; four ends 201 kept`},
		{"of runs: what does not run is not refused", "", `
			a runs first key=kept; first ends 201 kept; a runs lost key=held hold; lost ends unknown held; a runs run key=busy
			b runs filling key=filling; other limits in_flight=1
			other refuses overloaded - key=new; other replays first key=kept; other refuses reused first key=kept reused
			other refuses held lost key=held; other refuses reused run key=busy reused; other refuses loop run key=busy in=run
			other refuses overloaded - key=kept force; other asks w n=3 key=busy; run ends 201 kept; w shares run
			other overloads in_flight=2`},
		{"of runs: the first of a flight is refused, and others are replays", "", `
			a runs kept key=kept; kept ends 201 kept; a runs run key=busy; a limits in_flight=1
			a pauses lookup; a asks first key=kept force; a asks others n=3 key=kept; a resumes lookup
			first refused overloaded -; others replays kept; a asked lookup 1..
			a pauses lookup; a asks all n=5 key=new; a resumes lookup; all refused overloaded -; a asked lookup 1`},
		{"of runs, and a store that hangs", "", `
			a runs run; a limits in_flight=1; a store hung; a refuses unavailable - key=new after=500ms
			a store works; a refuses overloaded - key=new`},
		{"no room for runs, while all else works", "", `
			a runs done key=kept; a runs run key=busy; done ends 201 kept; other room full; other replays done key=kept
			other asks w n=2 key=busy; other refuses overloaded - key=new; other refuses no_room - key=new; other overloads buffered=2
			run ends 201 kept; w shares run; other room free; other runs new key=new`},
		{"each counts", "", `
			a limits waiters=3 per_key=2 in_flight=2; a runs first key=1; a runs second key=2; a asks one n=2 key=1; a asks two key=2
			a progress 2 3; a refuses overloaded first key=1; a refuses overloaded second key=2; a refuses overloaded - key=3
			first ends 201 kept; second ends 201 kept; one shares first; two shares second; a room full; a refuses no_room - key=3
			a room free; a store full claim; a refuses full - key=3; a progress 0 0
			a overloads waiters=1 waiters_per_key=1 in_flight=1 buffered=1 memory_store=1`},
	})
	if len(engine.AllLimits) != 5 {
		t.Errorf("the last scene counts five limits of %v", engine.AllLimits)
	}
}
