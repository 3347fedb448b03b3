package report

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

type noopObserver struct{}

func (noopObserver) Request(string, Outcome, bool) {}
func (noopObserver) Differing(string, bool)        {}
func (noopObserver) Overloaded(engine.Limit)       {}

type countingObserver struct {
	noopObserver
	counted []string
}

func (c *countingObserver) Request(provider string, o Outcome, _ bool) {
	c.counted = append(c.counted, provider+" "+string(o))
}

// reportTo returns the report on a request, which an observer counts.
func reportTo(observer Observer) *Report {
	p := new(Report)
	p.Init(&Reporter{Observer: observer}, httptest.NewRequest(http.MethodPost, "/", nil), new(Info))
	return p
}

// A request counts once: by the first outcome that no handler behind can change, or at its end.
func TestRequestCountsOnce(t *testing.T) {
	for want, outcomes := range map[string][]Outcome{
		" replayed":          {Replayed, Held},
		" no_handler":        {Missing, NoHandler},
		" executed":          {Executed},
		" store_unavailable": nil,
	} {
		var observer countingObserver
		p := reportTo(&observer)
		for _, o := range outcomes {
			p.Set(o, "", 0)
		}
		p.Count()
		if got := strings.Join(observer.counted, ","); got != want {
			t.Errorf("%v counts as %q, want %q", outcomes, got, want)
		}
	}
}

// Counting allocates nothing.
func TestCountingAllocatesNothing(t *testing.T) {
	p := reportTo(noopObserver{})
	p.key = idempotency.Key{1}
	if n := testing.AllocsPerRun(10_000, func() { p.Set(Executed, "execution", 1) }); n != 0 {
		t.Errorf("it allocates %v times", n)
	}
}

// Where nothing is recorded, nothing is made for it.
func TestTracesAllocateNothingWithoutASpan(t *testing.T) {
	p := reportTo(noopObserver{})
	if n := testing.AllocsPerRun(100, func() {
		p.trace()
		p.Event(Replaying)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
