package engine_test

import "testing"

// A request that only waits gets what a duplicate gets, in the process of the run and in another one, however
// long that lasts, and never runs.
func TestAwait(t *testing.T) {
	play(t, []scene{
		{"until the end, and after it", "", `
			other misses; a runs run; other awaits w; other awaits gone; sleep 50s; gone leave; run ends {201 kept|500 released}; w shares run
			other awaits then; then shares run; sleep 1m; run {keeps|fails}; other awaits later; later shares run
			a {replays run|runs next}; {|next ends 201 kept}`},
		{"of a held key", "hold", `
			a runs run; other awaits w; run ends unknown held; w refused held run; other awaits later; later refused held run`},
		{"of a run whose process has crashed", "", `
			b runs run; b store refused; run ends unknown trying; b closes; sleep 30s; a awaits w; w shares run`},
		{"its client leaves while the store is asked", "", "a store hung lookup; a awaits w; w leave"},
	})
}
