package exchange

import (
	"net/http"
	"testing"
)

// A request counts once, also one whose body cannot be read.
func TestUnreadBodiesHaveAnOutcome(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want Outcome
	}{
		"larger than the server takes": {bodyError(t.Context(), &http.MaxBytesError{Limit: 1}), OutcomeTooLarge},
		"cut off":                      {bodyError(t.Context(), http.ErrBodyReadAfterClose), OutcomeInvalid},
	} {
		if got := unreadOutcome(c.err); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
