package cli

import (
	"bytes"
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
