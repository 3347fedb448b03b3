package cli

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// keys list warns of a store that can be read and is not ready, such as one whose disk is full.
func TestListWarnsOfUnreadyStores(t *testing.T) {
	r := newRig(t)
	r.a.put(t, "", "one", "run 1", idempotency.Held)
	r.a.Unready.Store(true)
	var out, errs bytes.Buffer
	if status := execute(keysCommand, r.input, &out, &errs, "list", "--address", r.url); status != 0 || !strings.Contains(out.String(), "one") {
		t.Errorf("it ends with %d and prints %q", status, out.String())
	}
	if want := "Warning: store a is not ready: "; !strings.Contains(errs.String(), want) {
		t.Errorf("it says %q, want %q", errs.String(), want)
	}
}

// health and keys list say of a store that can be read, and refuses writes, that it does, and why. What
// they print and how they end does not change.
func TestRefusedWritesAreReported(t *testing.T) {
	for _, c := range []struct {
		command []string
		prints  string
	}{
		{[]string{"health"}, "ready: store a\nready: store b\n"},
		{[]string{"health", "--live"}, "live\n"},
		{[]string{"keys", "list"}, ""},
		{[]string{"keys", "list", "--all"}, ""},
		{[]string{"keys", "list", "--json"}, ""},
		{[]string{"keys", "list", "--json", "--delivery-id", "other"}, ""},
	} {
		r := newRig(t)
		key := r.a.put(t, "", "one", "run 1", idempotency.Held)
		run := func() (printed, said string) {
			var out, errs bytes.Buffer
			command := keysCommand
			if c.command[0] == "health" {
				command = healthCommand
			}
			if status := execute(command, r.input, &out, &errs, append(c.command[1:], "--address", r.url)...); status != 0 {
				t.Errorf("%q ends with %d: %s", c.command, status, errs.String())
			}
			return out.String(), errs.String()
		}
		before, silent := run()
		r.a.Full.Store(true)
		if err := r.a.Release(t.Context(), key, idempotency.Precondition{}); err == nil {
			t.Fatal("a full store releases a key")
		}
		printed, said := run()
		isLive := strings.HasSuffix(before, "live\n")
		const want = "Warning: store a refuses writes: the store is full (since 20"
		if printed != before || c.prints != "" && printed != c.prints || silent != "" || isLive != (said == "") || !isLive && (!strings.HasPrefix(said, want) || strings.Count(said, "\n") != 1) {
			t.Errorf("%q prints %q and says %q; before: %q and %q", c.command, printed, said, before, silent)
		}
	}
}

// A server that is no caddy-dedup is not taken for one, and one that says nothing does not hold a
// command up.
func TestAnotherServer(t *testing.T) {
	gone := make(chan struct{})
	for name, c := range map[string]struct {
		serve http.HandlerFunc
		says  string
	}{
		"cut JSON":     {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `"hello`) }, "does not answer as the admin API of a caddy-dedup"},
		"another JSON": {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"id": 17}`) }, "does not answer as the admin API of a caddy-dedup"},
		"silence":      {func(http.ResponseWriter, *http.Request) { <-gone }, "not answered within 200ms"},
	} {
		server := httptest.NewServer(c.serve)
		t.Cleanup(server.Close)
		commands := [][]string{{"health", "--timeout", "200ms"}, {"health", "--timeout", "200ms", "--live"}, {"keys", "list"}, {"keys", "release", "k"}}
		if name == "silence" { // for which keys waits longer
			commands = commands[:2]
		}
		for _, args := range commands {
			command, want := healthCommand, 1
			if args[0] == "keys" {
				command, want = keysCommand, 3
			}
			var out bytes.Buffer
			status := execute(command, strings.NewReader(""), &out, &out, append(args[1:], "--address", strings.TrimPrefix(server.URL, "http://"))...)
			if status != want || !strings.Contains(out.String(), c.says) {
				t.Errorf("%s: %q ended with %d: %s", name, args, status, out.String())
			}
		}
	}
	close(gone)
}

func TestMistakesOfTheHealthCommand(t *testing.T) {
	for args, says := range map[string]string{
		"now":                           `no argument such as "now"`,
		"--dead":                        "unknown flag: --dead",
		"--timeout 0":                   "--timeout 0s is not accepted",
		"--timeout soon":                `invalid argument "soon"`,
		"--address localhost:2019-2020": `"localhost:2019-2020" is not an address`,
		"--address a:b:c":               "a:b:c is not an address that can be asked",
	} {
		var out bytes.Buffer
		if status := execute(healthCommand, strings.NewReader(""), &out, &out, strings.Fields(args)...); status != 2 || !strings.Contains(out.String(), says) {
			t.Errorf("health %s ended with %d: %s", args, status, out.String())
		}
	}
}
