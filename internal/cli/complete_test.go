package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
)

// completing is an admin API that completes keys, as [admin.API] does: key is held, and another one
// is complete.
type completing struct {
	url  string
	sent []string // what the requests said
}

const heldKey, completeKey = "aa000000000000000000000000000000000000000000000000000000000000aa", "bb000000000000000000000000000000000000000000000000000000000000bb"

func serveCompleting(t *testing.T) *completing {
	t.Helper()
	c := new(completing)
	answer := func(w http.ResponseWriter, kind string, status int, body any) {
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /dedup/keys/{key}", func(w http.ResponseWriter, r *http.Request) {
		state := "held"
		if r.PathValue("key") == completeKey {
			state = "complete"
		}
		answer(w, "application/json", 200, admin.Record{Key: r.PathValue("key"), Store: "a", State: state, ExecutionID: "run 1"})
	})
	mux.HandleFunc("POST /dedup/lookup", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, "application/json", 200, admin.LookupAnswer{Keys: []admin.Record{{Key: heldKey, Store: "a", State: "held", DeliveryID: "one"}}, Missing: []string{}})
	})
	mux.HandleFunc("POST /dedup/keys/{key}/complete", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		c.sent = append(c.sent, r.URL.RawQuery+" "+string(body))
		switch {
		case r.Header.Get("Content-Type") != "application/json":
			answer(w, "application/problem+json", 400, admin.Problem{Title: "The request is wrong", Status: 400, Detail: "it is no JSON"})
		case strings.Contains(string(body), `"status":99`):
			answer(w, "application/problem+json", 400, admin.Problem{Title: "The request is wrong", Status: 400, Detail: "the status 99 is not accepted"})
		case r.PathValue("key") == completeKey:
			answer(w, "application/problem+json", 409, admin.Problem{Title: "The key is complete", Status: 409, Detail: "release it first"})
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	c.url = strings.TrimPrefix(server.URL, "http://")
	return c
}

func TestComplete(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return "@" + path
	}
	largest := strings.Repeat("x", admin.MaxCompleteBody)
	for name, c := range map[string]struct {
		args   []string
		status int
		sent   string // the body of the request, "" for none
		says   string
	}{
		"a key":             {[]string{heldKey}, 0, `{"status":200}`, "completed " + heldKey + " - (was held)"},
		"an ID":             {[]string{"one"}, 0, `{"status":200}`, "completed " + heldKey + " one (was held)"},
		"a response":        {[]string{"one", "--status", "201", "--content-type", "text/html", "--body", "<b>"}, 0, `{"status":201,"content_type":"text/html","body":"\u003cb\u003e"}`, "completed"},
		"a file":            {[]string{"one", "--body", file("a", "{\"id\": 17}\n")}, 0, `{"status":200,"body":"{\"id\": 17}\n"}`, "completed"},
		"the largest file":  {[]string{"one", "--body", file("b", largest)}, 0, `{"status":200,"body":"` + largest + `"}`, "completed"},
		"JSON":              {[]string{"one", "--json"}, 0, `{"status":200}`, `{"result":"completed","key":"` + heldKey + `","delivery_id":"one","state_was":"held"}`},
		"a complete key":    {[]string{completeKey}, 1, `{"status":200}`, "release it first"},
		"a wrong status":    {[]string{"one", "--status", "99"}, 2, `{"status":99}`, "the status 99 is not accepted"},
		"a status of words": {[]string{"one", "--status", "ok"}, 2, "", "--status"},
		"no such file":      {[]string{"one", "--body", "@" + dir + "/none"}, 2, "", "none: no such file"},
		"a large file":      {[]string{"one", "--body", file("c", largest+"x")}, 2, "", "--body is larger than 1048576 bytes"},
		"a file of bytes":   {[]string{"one", "--body", file("d", "\xff")}, 2, "", "--body is not UTF-8"},
		"an empty body":     {[]string{"one", "--body", ""}, 2, "", "--body is empty"},
		"two, unconfirmed":  {[]string{"one", completeKey}, 2, "", "2 keys are named and nothing was changed"},
		"no key":            {nil, 2, "", "complete takes keys or delivery IDs"},
	} {
		t.Run(name, func(t *testing.T) {
			api := serveCompleting(t)
			var out bytes.Buffer
			status := execute(keysCommand, strings.NewReader(""), &out, &out, append([]string{"complete", "--address", api.url}, c.args...)...)
			if status != c.status || !strings.Contains(out.String(), c.says) {
				t.Errorf("it ends with %d, want %d, and says %.500s", status, c.status, out.String())
			}
			if sent := strings.Join(api.sent, ", "); c.sent == "" && sent != "" || c.sent != "" && (!strings.HasSuffix(sent, " "+c.sent) || !strings.Contains(sent, "state=")) {
				t.Errorf("it sends %.500s, want %.500s", sent, c.sent)
			}
		})
	}
	api := serveCompleting(t)
	var out bytes.Buffer
	if status := execute(keysCommand, strings.NewReader(""), &out, &out, "complete", "--address", api.url, "--yes", "one", completeKey); status != 1 || len(api.sent) != 2 {
		t.Errorf("with --yes it ends with %d and sends %q:\n%s", status, api.sent, out.String())
	}
}
