package admin

import (
	"net/http"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/admin/admintest"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Each state has one word, which operators see in records and in the log.
func TestShownStates(t *testing.T) {
	now, operated := time.Now(), new(admintest.Store)
	for _, state := range []idempotency.State{idempotency.InFlight, idempotency.Complete, idempotency.Released, idempotency.Held} {
		for _, left := range []time.Duration{time.Second, 0, -time.Hour} {
			for _, hold := range []bool{false, true} {
				want := map[idempotency.State]string{
					idempotency.InFlight: "in_flight", idempotency.Complete: "complete", idempotency.Released: "released", idempotency.Held: "held",
				}[state]
				switch {
				case state == idempotency.InFlight && left <= 0 && hold:
					want = "held"
				case state == idempotency.InFlight && left <= 0:
					want = "lapsed"
				}
				if got := foundIn(operated, "", idempotency.Listed{Record: &idempotency.Record{State: state, Hold: hold, LeaseUntil: now.Add(left)}, Now: now}).State; got != want {
					t.Errorf("%s with a lease of another %s, hold %v: shown as %q, want %q", state, left, hold, got, want)
				}
			}
		}
	}
}

// A field without a value is in a response so that no server adds one of its own. It is
// none that a client has seen.
func TestShownResponseHasFieldsWithValues(t *testing.T) {
	shown := showResponse(&idempotency.Response{Status: 200, Header: http.Header{"Server": nil, "Via": {"1.1 Caddy"}}, Body: []byte("\xff")})
	if want := map[string][]string{"Via": {"1.1 Caddy"}}; !reflect.DeepEqual(shown.Header, want) {
		t.Errorf("the header is shown as %v, want %v", shown.Header, want)
	}
	if shown.Body != "" || string(shown.Base64) != "\xff" {
		t.Errorf("a body that is no text is shown as %q and %q", shown.Body, shown.Base64)
	}
}

// The table of the states has each state.
func TestStatesOfThePage(t *testing.T) {
	page, err := os.ReadFile("../../docs/behaviour.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, state := range States {
		if !strings.Contains(string(page), "\n| `"+state+"` |") {
			t.Errorf("the table has no %s", state)
		}
	}
}
