package exchange

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
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

// A request counts once: by the first outcome that no handler behind can change, or at its end.
func TestRequestCountsOnce(t *testing.T) {
	for want, reported := range map[string][]Outcome{
		" replayed":          {OutcomeReplayed, OutcomeHeld},
		" no_handler":        {OutcomeMissing, OutcomeNoHandler},
		" executed":          {OutcomeExecuted},
		" store_unavailable": nil,
	} {
		var observer countingObserver
		x := &exchange{Handler: New(Config{Observer: &observer}), r: httptest.NewRequest(http.MethodPost, "/", nil), info: &requestInfo{logged: true}}
		for _, o := range reported {
			x.report(o, "", 0)
		}
		x.count()
		if got := strings.Join(observer.counted, ","); got != want {
			t.Errorf("%v counts as %q, want %q", reported, got, want)
		}
	}
}

// Counting allocates nothing.
func TestCountingAllocatesNothing(t *testing.T) {
	x := &exchange{Handler: New(Config{Observer: noopObserver{}}), r: httptest.NewRequest(http.MethodPost, "/", nil), info: &requestInfo{logged: true}}
	x.key[0] = 1
	if n := testing.AllocsPerRun(10_000, func() { x.report(OutcomeExecuted, "execution", 1) }); n != 0 {
		t.Errorf("it allocates %v times", n)
	}
}
