package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

func TestComplete(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return "@" + path
	}
	heldKey := idempotency.Identity{Namespace: "default", Scope: []string{""}, ID: "one"}.Key().String()
	completeKey := idempotency.Identity{Namespace: "default", Scope: []string{""}, ID: "two"}.Key().String()
	largest := strings.Repeat("x", admin.MaxCompleteBody)
	for name, c := range map[string]struct {
		args   []string
		status int
		kept   string // the kind and the body of the response; "" where the key is still held
		says   string
	}{
		"a key":             {[]string{heldKey}, 0, " ", "completed " + heldKey + " one (was held)"},
		"a response":        {[]string{"one", "--status", "201", "--content-type", "text/html", "--body", "<b>"}, 0, "text/html <b>", "completed"},
		"a file":            {[]string{"one", "--body", file("a", "{\"id\": 17}\n")}, 0, "application/json {\"id\": 17}\n", "completed"},
		"the largest file":  {[]string{"one", "--body", file("b", largest)}, 0, "text/plain " + largest, "completed"},
		"JSON":              {[]string{"one", "--json"}, 0, " ", `{"result":"completed","key":"` + heldKey + `","delivery_id":"one","state_was":"held"`},
		"a complete key":    {[]string{completeKey}, 1, "", "release it first"},
		"both, confirmed":   {[]string{"--yes", "one", completeKey}, 1, " ", "completed " + heldKey},
		"a wrong status":    {[]string{"one", "--status", "99"}, 2, "", "the status 99 is not accepted"},
		"a status of words": {[]string{"one", "--status", "ok"}, 2, "", "--status"},
		"no such file":      {[]string{"one", "--body", "@" + dir + "/none"}, 2, "", "none: no such file"},
		"a large file":      {[]string{"one", "--body", file("c", largest+"x")}, 2, "", "--body is larger than 1048576 bytes"},
		"a file of bytes":   {[]string{"one", "--body", file("d", "\xff")}, 2, "", "--body is not UTF-8"},
		"an empty body":     {[]string{"one", "--body", ""}, 2, "", "--body is empty"},
		"two, unconfirmed":  {[]string{"one", completeKey}, 2, "", "nothing was changed; --yes changes all 2 keys"},
		"no key":            {nil, 2, "", "complete takes keys or delivery IDs"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			held := r.a.put(t, "", "one", "run 1", idempotency.Held)
			r.a.put(t, "", "two", "run 2", idempotency.Complete)
			r.want(t, c.status, append([]string{"complete"}, c.args...), c.says)
			record, _, err := r.a.Records.Lookup(t.Context(), held)
			if err != nil || (record.State == idempotency.Complete) != (c.kept != "") {
				t.Fatalf("it is %+v, %v", record, err)
			}
			if c.kept == "" {
				return
			}
			response, err := r.a.Records.Response(t.Context(), held, record.Token)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(response.Header["Content-Type"], ", ") + " " + string(response.Body); got != c.kept {
				t.Errorf("it is completed with %.500q, want %.500q", got, c.kept)
			}
		})
	}
}
