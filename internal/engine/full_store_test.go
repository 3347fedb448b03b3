package engine_test

import (
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/store/memory"
)

// inMemory is a link to a store in this process.
type inMemory struct{ *link }

func (inMemory) InProcess() {}

// newInMemory returns the only replica of a memory store of 1 MiB.
func newInMemory(t *testing.T, copies *engine.Copies) *replica {
	store := memory.New(1 << 20)
	t.Cleanup(func() { _ = store.Close() })
	r := &replica{t: t, link: newLink(store), copies: copies}
	return r.open(inMemory{r.link}, func(*engine.Options) {})
}

func TestFullStore(t *testing.T) {
	play(t, []scene{
		// It does not wait: it is kept like one that is larger than the limit of a response.
		{"a response that can never be kept is kept without its body, and a header that cannot either without both", "memory", `
			a runs run; a asks w; run ends {201x2000000|headed} kept; run stored 1; run loses {body|all}; w shares run; a replays run
			a idle; a runs next key=next; next ends 201 kept; a counts kept=2; a logs 1.. too large`},
		{"a local copy has of it what the store has", "memory copies", `
			a runs run; run ends 201x2000000 kept; run loses body; a replays run; a store refused; a replays run`},
		{"a response of a forced run that can never be kept replaces nothing", "memory", `
			a runs first; first ends 201 kept; a runs run force; a asks w; run ends 201x2000000 released; run loses body; w shares run; a replays first`},
		// It is tried whole, without the body, and without the header. The memory of the body is released at once.
		{"the rest of a large response is stored later, if the store has no room for that either", "memory", `
			a runs run; a store large settle; run ends 201x3 trying; a asked settle 3; run stored 1; sleep 1m; a store works; sleep 4s
			a has complete 1; a reason the store has no room for it; run stored 1`},
		{"a process that exits waits for its runs, but not for room in a store that it loses", "memory", `
			a runs one key=1; a runs two key=2; a store full settle; one ends 201 trying; a replays one key=1; a draining; sleep 1m; a undone
			two ends 201 trying; a done; a logs 2 the run's end was never stored: the process stops; a counts lost=2`},
	})
}
