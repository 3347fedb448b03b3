package integration

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// startExample runs the Caddyfile of a page that has these words in it, before an
// upstream of the test's own.
func startExample(t *testing.T, page, words string, up *upstream) *caddy {
	t.Helper()
	for _, b := range docBlocks(t) {
		if b.page == page && b.language == "caddyfile" && strings.Contains(b.text, words) {
			return start(t, conf{store: "store memory", sites: strings.NewReplacer(
				"api.example.com {", "http://:PORT {", ":8080 {", "http://:PORT {", "localhost:3000", up.addr).Replace(b.text)})
		}
	}
	t.Fatalf("%s has no Caddyfile with %q", page, words)
	return nil
}

// A client that looks for an error in the body, and not at the status, finds one.
func TestExampleOfAnErrorMember(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := startExample(t, "behaviour.md", "idempotency_error", up)
	wantFresh(t, p.post(t, "/", "k", `a "quoted" body`), 201, "run 1 of k")
	got := p.post(t, "/", "k", "another")
	var said struct {
		Error struct{ Type, Code, Message string }
	}
	if err := json.Unmarshal([]byte(got.Body), &said); err != nil || got.Status != 422 {
		t.Fatalf("got %d %q: %v", got.Status, got.Body, err)
	}
	if said.Error.Code != "reused" || said.Error.Type == "" || said.Error.Message == "" {
		t.Errorf("the error is %+v", said.Error)
	}
	if kind := got.Header.Get("Content-Type"); kind != "application/json" {
		t.Errorf("the content type is %q", kind)
	}
}

// A duplicate gets a 409 with members of the first response, whatever is in them.
func TestExampleOfAnAnswerOfYourOwn(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ run) {
		w.WriteHeader(201)
		_, _ = io.WriteString(w, `{"run_id": 9007199254740993, "name": "a \"quoted\" {{env \"HOME\"}} {http.request.host}"}`)
	})
	p := startExample(t, "behaviour.md", "http.dedup.first.json", up)
	p.post(t, "/", "k", "body")
	got := p.post(t, "/", "k", "body")
	want := `{ "existing_run_id": 9007199254740993, "name": "a \"quoted\" {{env \"HOME\"}} {http.request.host}" }`
	if text := strings.Join(strings.Fields(got.Body), " "); text != want || got.Status != 409 || got.Header.Get("Content-Type") != "application/json" {
		t.Errorf("got %d %s %q, want %q", got.Status, got.Header.Get("Content-Type"), text, want)
	}
}

// What the upstream is not to see is removed where dedup has seen it, with a body and
// without one.
func TestExampleOfRemovedFields(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := startExample(t, "behaviour.md", "-Idempotency-Key", up)
	for key, body := range map[string]string{"k1": "body", "k2": ""} {
		runs := len(up.all())
		first := p.post(t, "/", key, body)
		wantReplay(t, p.post(t, "/", key, body), first)
		all := up.all()
		if len(all) != runs+1 {
			t.Fatalf("key %s ran %d times", key, len(all)-runs)
		}
		for name := range all[runs].Header {
			if name == "Idempotency-Key" {
				t.Errorf("the upstream got %s with the body %q", name, body)
			}
		}
	}
}

// Caddy takes the first directive of a named route only, which has to be a route then.
func TestExampleOfANamedRoute(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := startExample(t, "directive.md", "invoke shop", up)
	first := p.post(t, "/", "k", "body")
	wantFresh(t, first, 201, "run 1 of k")
	wantReplay(t, p.post(t, "/", "k", "body"), first)
}

// The outcome is known only when the response is written, and a header of a handler
// in front is every client's own.
func TestExampleOfHeaders(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := startExample(t, "directive.md", "header >X-Dedup", up)
	first := p.post(t, "/", "k", "body")
	again := p.post(t, "/", "k", "body")
	for outcome, got := range map[string]reply{"executed": first, "replayed": again} {
		if got.Header.Get("X-Dedup") != outcome {
			t.Errorf("X-Dedup is %q, want %q", got.Header.Get("X-Dedup"), outcome)
		}
	}
	if a, b := first.Header.Get("X-Request-Id"), again.Header.Get("X-Request-Id"); a == "" || b == "" || a == b {
		t.Errorf("two requests have the IDs %q and %q", a, b)
	}
}

// The service behind gets one key for all attempts of an event, also of one without an
// ID, and another for each other event.
func TestExampleOfHandingTheKeyOn(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answersStatus(503))
	p := startExample(t, "behaviour.md", "header_up Idempotency-Key", up)
	for _, event := range []sent{{body: "a"}, {body: "b"}, {body: "a", options: []option{header("X-Event-Id", "1")}}} {
		for _, name := range []string{"a.test", "b.test"} {
			event.options = append(event.options, host(name))
			p.send(t, "/events", event)
		}
	}
	keys := map[string]int{}
	for _, ran := range up.all() {
		keys[ran.Header.Get("Idempotency-Key")]++
	}
	for key, n := range keys {
		if !hexKey.MatchString(key) || n != 2 {
			t.Errorf("the service got the key %q %d times, want each twice", key, n)
		}
	}
	if len(keys) != 3 {
		t.Errorf("the service got the keys %v, want 3", keys)
	}
}

// To requests that do not come to dedup its placeholders are unknown, and their text would be
// one key for all of them.
func TestExampleOfHandingTheKeyOnBesideAMatcher(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := startExample(t, "behaviour.md", "header_up X-Run-Key", up)
	for _, path := range []string{"/payments/1", "/orders"} {
		p.post(t, path, "k", "body", host("api.example.com"))
	}
	if got := up.nth(t, "k", 1).Header.Get("X-Run-Key"); !hexKey.MatchString(got) {
		t.Errorf("the service got the key %q", got)
	}
	if got, sent := up.nth(t, "k", 2).Header["X-Run-Key"]; sent {
		t.Errorf("of a request that is not deduplicated it got the key %q", got)
	}
}

// The commands of the page, in their order, about a delivery whose run was cut off.
func TestKeysCommandsOfThePage(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, noAnswer)
	p := start(t, conf{store: "store memory", site: lines("dedup github {\non_unknown hold\n}", proxyTo(up))})
	p.post(t, "/", "", "{}", header("X-GitHub-Delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958"), header("X-GitHub-Hook-ID", "7"))
	said := map[string]string{"keys show": "held", "keys release": "was held", "keys forget": "was released"}
	ran := 0
	for _, b := range docBlocks(t) {
		for line := range strings.Lines(b.text) {
			line, _, _ = strings.Cut(strings.TrimSpace(line), " #")
			args, ours := strings.CutPrefix(line, "caddy-dedup keys ")
			if b.page != "operations.md" || b.language != "sh" || !ours {
				continue
			}
			ran++
			output := p.keys(t, 0, strings.Fields(args)...)
			for what, word := range said {
				if strings.HasPrefix(line, "caddy-dedup "+what) && !strings.Contains(output, word) {
					t.Errorf("%s does not say %q:\n%s", line, word, output)
				}
			}
		}
	}
	if ran != 4 {
		t.Errorf("the page has %d commands, want 4", ran)
	}
	p.keys(t, 1, "show", "72d3162e-cc78-11e3-81ab-4c9367dc0958")
}
