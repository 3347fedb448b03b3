package integration

import (
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
)

// sitesOfAPage are those of the page's Caddyfile that has these words, on the port of the test's
// process, and with other texts in place of some of the page's.
func sitesOfAPage(t *testing.T, words string, instead ...string) string {
	t.Helper()
	text := caddyfileWith(t, words)
	if strings.HasPrefix(text, "{\n") {
		_, text, _ = strings.Cut(text, "\n}\n") // the global options
	}
	for i := 0; i < len(instead); i += 2 {
		if !strings.Contains(text, instead[i]) {
			t.Fatalf("the Caddyfile with %q does not have %q", words, instead[i])
		}
	}
	return strings.NewReplacer(append(instead, ":8080 {", "http://:PORT {", "api.example.com {", "http://:PORT {")...).Replace(text)
}

// standInService answers as the stand-in of the recipes: a POST makes a new ID, which is its number,
// or what the field Id says; where the field Say has a body, that is all of the answer. Where the field Fail has a status, it is the answer's, and 0 is none.
// A GET gets an ID's state, but for the ID gone.
func standInService() answering {
	var posts atomic.Int64
	return func(w http.ResponseWriter, r *http.Request, n run) {
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodGet {
			id := path.Base(r.URL.Path)
			if id == "gone" {
				w.WriteHeader(http.StatusNotFound)
			}
			fmt.Fprintf(w, `{"id": %q, "state": "done"}`, id)
			return
		}
		if say := r.Header.Get("Say"); say != "" {
			fmt.Fprint(w, say)
			return
		}
		id, status := fmt.Sprint(posts.Add(1)), http.StatusCreated
		if own := r.Header.Get("Id"); own != "" {
			id = own
		}
		if fail := r.Header.Get("Fail"); fail != "" {
			if _, err := fmt.Sscan(fail, &status); err != nil {
				panic(err) // the tests write these fields
			}
		}
		if status == 0 {
			noAnswer(w, r, n)
			return
		}
		location, large := "/runs/"+id, ""
		switch r.Header.Get("Lacks") {
		case "members": // those of an answer over 64 KiB are not read
			large = strings.Repeat("x", 64<<10)
		case "location":
			location = ""
		}
		if location != "" {
			w.Header().Set("Location", location)
		}
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"id": %q, "key": %q, "parent": %q, "run_id": 9007199254740993, "name": %q, "digits": %d, "large": %q}`,
			id, n.Key, r.Header.Get("X-Parent-Run"), r.Header.Get("Name"), len(r.Header.Get("X-Run-Key")), large)
	}
}

// asked is a POST to a page's site, and what the page says that it gets.
type asked struct {
	path, body string
	fields     string // Name: value, in lines
	status     int
	says       string // in the body, or among the header fields
}

// ask sends one request after the other.
func ask(t *testing.T, p *caddy, requests []asked) {
	t.Helper()
	for n, r := range requests {
		var options []option
		for line := range strings.Lines(r.fields) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
			if name == "Host" {
				options = append(options, host(value))
			} else {
				options = append(options, header(name, value))
			}
		}
		got := p.post(t, r.path, "", r.body, options...)
		var fields strings.Builder
		_ = got.Header.Write(&fields) // a builder takes all
		if got.Status != r.status || !strings.Contains(got.Body+"\r\n"+fields.String(), r.says) {
			t.Errorf("request %d, %s %.60q %q: got %d %q\n%swant %d with %q", n+1, r.path, r.body, r.fields, got.Status, shorten(got.Body), fields.String(), r.status, r.says)
		}
	}
}

// What the tables and lines of the recipes say beyond the commands below them, and what examples of
// other pages are for.
func TestSitesDoWhatTheirPagesSay(t *testing.T) {
	t.Parallel()
	const replay = "Idempotent-Replayed: true"
	const another = "Host: b.test\nAuthorization: Bearer another" // another caller, at a replica with another name
	large := strings.Repeat("x", 9<<20)
	for name, c := range map[string]struct {
		words    string // in its Caddyfile
		instead  []string
		requests []asked
	}{
		"orchestration submit": {"path /v1/orchestration-runs\n", nil, []asked{
			{"/v1/orchestration-runs", `{"orchestrationRef": {"name": "deploy"}}`, "Idempotency-Key: d", 201, `"id": "1"`},
			{"/v1/orchestration-runs", `{"orchestrationRef": {"name": "deploy"}, "input": 1, "namespace": "default"}`, "Idempotency-Key: d\n" + another, 201, `{"id": "1", "state": "done"}`},
			{"/v1/orchestration-runs", `{"orchestrationRef": {"name": "deploy"}, "namespace": "shop"}`, "Idempotency-Key: d", 201, `"id": "2"`},
			{"/v1/orchestration-runs", `{"orchestrationRef": {"name": "build"}}`, "Idempotency-Key: d", 201, `"id": "3"`},
			{"/v1/orchestration-runs", `{"orchestrationRef": {"name": "deploy"}}`, "Idempotency-Key: d\nX-Gitlab-Event: Push Hook", 201, `"id": "4"`},
			{"/v1/orchestration-runs", `{"orchestrationRef": {"name": "deploy"}}`, "", 201, `"id": "5"`},
			{"/v1/orchestration-runs", `{"orchestrationRef": {"name": "deploy"}}`, "", 201, `"id": "6"`},
			{"/v1/orchestration-runs", `not JSON`, "Idempotency-Key: d", 201, `"id": "7"`},
			{"/v1/orchestration-runs", `not JSON`, "Idempotency-Key: d", 201, `"id": "8"`},
			{"/v1/orchestration-runs", `{"orchestrationRef": {"name": "deploy"}}`, "Idempotency-Key: e\nId: gone", 201, `"id": "gone"`},
			{"/v1/orchestration-runs", `{"orchestrationRef": {"name": "deploy"}}`, "Idempotency-Key: e", 409, ""},
			{"/v1/orchestration-runs", `{"orchestrationRef": {"name": "deploy"}}`, "Idempotency-Key: f\nLacks: members", 201, `"id": "10"`},
			{"/v1/orchestration-runs", `{"orchestrationRef": {"name": "deploy"}}`, "Idempotency-Key: f", 201, `{"id": "10", "state": "done"}`},
			{"/v1/orchestration-runs", `{"orchestrationRef": {"name": "deploy"}}`, "Idempotency-Key: g\nLacks: location", 201, `"id": "11"`},
			{"/v1/orchestration-runs", `{"orchestrationRef": {"name": "deploy"}}`, "Idempotency-Key: g", 409, "duplicate_request"},
		}},
		"run submit": {"key content runs\n", nil, []asked{
			{"/api/v1/runs", `{"image": "a", "args": [1, 2], "submitted_at": 1, "metadata": {"client_version": 1, "team": "x"}}`, "", 201, `"id": "1"`},
			{"/api/v1/runs", `{"metadata":{"client_version":2,"team":"x"},"submitted_by":"eve","args":[1,2],"image":"a"}`, another, 409, `"run_id": "1"`},
			{"/api/v1/runs", `{"image": "a", "args": [2, 1], "metadata": {"team": "x"}}`, "", 201, `"id": "2", "key": "", "parent": ""`},
			{"/api/v1/runs", `{"image": "a", "args": [1, 2], "metadata": {"team": "x"}}`, "X-Force-Override: true\nFail: 503", 503, `"parent": "1"`},
			{"/api/v1/runs", `{"image": "a", "args": [1, 2], "metadata": {"team": "x"}}`, "", 409, `"run_id": "1"`},
			{"/api/v1/runs", `{"image": "a", "args": [1, 2], "metadata": {"team": "x"}}`, "X-Force-Override: true", 201, `"id": "4", "key": "", "parent": "1"`},
			{"/api/v1/runs", `{"image": "a", "args": [1, 2], "metadata": {"team": "x"}}`, "", 409, `"run_id": "4"`},
			{"/other", `{}`, "", 201, `"id": "5"`},
			{"/other", `{}`, "", 201, `"id": "6"`},
			{"/api/v1/runs", `{"image": "large"}`, "Lacks: members", 201, `"id": "7"`},
			{"/api/v1/runs", `{"image": "large"}`, "", 409, "duplicate_request"},
			{"/api/v1/runs", `{"image": "large"}`, "X-Force-Override: true", 500, "the number of the first run is not known"},
			{"/other", `{}`, "", 201, `"id": "8"`},
		}},
		"run submit, with the client's key": {"key content runs\n", []string{
			"key content runs\n", "key header Idempotency-Key runs\non_missing reject\nfingerprint none\n",
			"exclude /submitted_at /submitted_by /metadata/client_version\n", "",
		}, []asked{
			{"/api/v1/runs", `{"image": "a"}`, "Idempotency-Key: k", 201, `"id": "1"`},
			{"/api/v1/runs", `{"image": " a\n"}`, "Idempotency-Key: k\n" + another, 409, `"run_id": "1"`},
			{"/api/v1/runs", `{"image": "a"}`, "", 400, "idempotency_key_missing"},
		}},
		"subscription window": {"path /api/execute\n", nil, []asked{
			{"/api/execute", `{"subscription": "s", "dedup": {"key": "1", "window_secs": 300}}`, "", 201, `"id": "1"`},
			{"/api/execute?again=1", `{"payload": 2, "subscription": "s", "dedup": {"key": "1"}}`, another, 200, `{"status": "duplicate", "execution_id": "1"}`},
			{"/api/execute", `{"subscription": "s"}`, "", 201, `"id": "2"`},
			{"/api/execute", `{"subscription": "s"}`, "", 201, `"id": "3"`},
			{"/api/execute", `{"dedup": {"key": "1"}}`, "", 201, `"id": "4"`},
			{"/api/execute", `{"dedup": {"key": "1"}}`, "", 201, `"id": "5"`},
			{"/api/execute", `{"subscription": "s", "dedup": {"key": "1"}, "payload": "` + large + `"}`, "", 201, `"id": "6"`},
			{"/api/other", `{"subscription": "s", "dedup": {"key": "1"}}`, "", 201, `"id": "7"`},
			{"/api/execute", `{"subscription": "s", "dedup": {"key": "large"}}`, "Lacks: members", 201, `"id": "8"`},
			{"/api/execute", `{"subscription": "s", "dedup": {"key": "large"}}`, "", 409, "duplicate_request"},
		}},
		"notification delivery": {"path /notifications\n", nil, []asked{
			{"/notifications", `{"uid": "n", "channel": "mail", "text": 1}`, "", 201, "X-Outcome: executed"},
			{"/notifications", `{"uid": "n", "channel": "mail", "text": 2}`, another, 201, "X-Outcome: replayed"},
			{"/notifications", `{"uid": "n", "channel": "phone"}`, "", 201, `"id": "2"`},
			{"/notifications", `{"uid": "n"}`, "", 400, "idempotency_key_missing"},
			{"/notifications", `{"uid": null, "channel": "mail"}`, "", 400, "idempotency_key_missing"},
			{"/notifications", `not JSON`, "", 400, "idempotency_key_missing"},
			{"/notifications", `{"uid": "lost", "channel": "mail"}`, "Fail: 0", 502, ""},
			{"/notifications", `{"uid": "lost", "channel": "mail"}`, "Fail: 0", 502, ""},
			{"/notifications", `{"uid": "lost", "channel": "mail"}`, "Fail: 0", 502, ""},
			{"/notifications", `{"uid": "lost", "channel": "mail"}`, "Fail: 0", 502, ""},
			{"/notifications", `{"uid": "lost", "channel": "mail"}`, "Fail: 0", 502, ""},
			{"/notifications", `{"uid": "lost", "channel": "mail"}`, "", 409, "attempts_exhausted"},
			{"/notifications", `{"uid": "lost", "channel": "mail"}`, "", 409, "X-Outcome: exhausted"},
		}},
		"trigger dispatch": {"handle /triggers/* {", []string{":8082 {", fmt.Sprintf("http://:%d {", freeport.Of(t))}, []asked{
			{"/triggers/build", `{}`, "X-Event-Id: e", 201, `"id": "1"`},
			{"/triggers/build", `other`, "X-Event-Id: e\n" + another, 201, replay},
			{"/triggers/build?subscription=2", `{}`, "X-Event-Id: e", 201, `"id": "2"`},
			{"/triggers/build", `{"b": 1, "a": "ü"}`, "", 201, `"id": "3"`},
			{"/triggers/build", `{"a":"\u00fc","b":1}`, another, 201, replay},
			{"/triggers/build", `{"a":"\u00fc","b":1}`, "X-Event-Id: café", 201, `"id": "4"`},
			{"/triggers/build", `{"a":"\u00fc","b":1}`, "X-Event-Id: café", 201, `"id": "5"`},
			{"/other", `{}`, "X-Event-Id: e", 201, `"id": "6"`},
		}},
		"completion stream": {"on_missing reject\n\t\ttimeout 30m\n", nil, []asked{{"/", "prompt", "", 400, "idempotency_key_missing"}}},
		"GraphQL": {"graphql.example.com", []string{"graphql.example.com {", "http://:PORT {"}, []asked{
			{"/graphql", `{"query": "mutation", "variables": {"input": {"clientMutationId": "a", "n": 1}}}`, `Say: {"data": {"pay": null}, "errors": [{"message": "later"}]}`, 200, `"errors"`},
			{"/graphql", `{"query": "mutation", "variables": {"input": {"clientMutationId": "a", "n": 1}}}`, `Say: {"data": {}, "errors": []}`, 200, `"errors": []`},
			{"/graphql", `{"variables": {"input": {"n": 1, "clientMutationId": "a"}}, "query": "mutation"}`, "", 200, replay},
			{"/graphql", `{"query": "mutation", "variables": {"input": {"clientMutationId": "a", "n": 2}}}`, "", 422, "idempotency_key_reused"},
			{"/graphql", `{"query": "mutation", "variables": {"input": {"clientMutationId": "a", "n": 1}}}`, "Authorization: Bearer another", 201, `"id": "1"`},
			{"/graphql", `{"query": "{ orders { id } }"}`, "", 201, `"id": "2"`},
			{"/graphql", `{"query": "{ orders { id } }"}`, "", 201, `"id": "3"`},
		}},
		"an API whose clients lose their keys": {"json /item", nil, []asked{
			{"/orders", `{"customer": 1, "item": "a"}`, "Idempotency-Key: first", 201, `"id": "1"`},
			{"/orders", `{"customer": 1, "item": "a"}`, "Idempotency-Key: second", 201, replay},
			{"/orders", `{"item": "a", "customer": 1}`, "", 201, replay},
			{"/orders", `{"customer": 1, "item": "a", "gift": true}`, "Idempotency-Key: third", 422, "idempotency_key_reused"},
			{"/orders", `{"customer": 1, "item": "b"}`, "Idempotency-Key: fourth", 201, `"id": "2"`},
			{"/orders", `{"customer": 1, "item": "b"}`, "Idempotency-Key: fourth", 201, replay},
			{"/orders", `{"customer": 1, "item": "b"}`, "Idempotency-Key: first", 422, "idempotency_key_reused"},
			{"/orders", `{"customer": 1, "item": "a"}`, "Authorization: Bearer another\nIdempotency-Key: first", 201, `"id": "3"`},
		}},
		"an answer of your own": {"\"http.dedup.first.json./run_id\"", nil, []asked{
			{"/", "", "Idempotency-Key: k\nName: \"{{env `HOME`}}\" {http.request.host}", 201, ""},
			{"/", "", "Idempotency-Key: k", 409, `"existing_run_id": 9007199254740993,`},
			{"/", "", "Idempotency-Key: l\nLacks: members", 201, ""},
			{"/", "", "Idempotency-Key: l", 409, "duplicate_request"},
			{"/", "", "Idempotency-Key: k", 409, `"name": "\"{{env ` + "`HOME`" + `}}\" {http.request.host}"`},
		}},
		"an error member": {`"code": "{http.dedup.outcome}"`, nil, []asked{
			{"/", "1", "Idempotency-Key: k", 201, ""},
			{"/", "2", "Idempotency-Key: k", 422, `{"error": {"type": "idempotency_error", "code": "reused", "message": "refused with status 422"}}`},
			{"/", "2", "Idempotency-Key: k", 422, "Content-Type: application/json\r\n"},
		}},
		"a key that the upstream does not see": {"header_up -Idempotency-Key", nil, []asked{
			{"/payments/1", "1", "Idempotency-Key: k", 201, `"id": "1", "key": ""`},
			{"/payments/1", "1", "Idempotency-Key: k", 201, replay},
			{"/payments/1", "", "Idempotency-Key: l", 201, `"id": "2", "key": ""`},
			{"/payments/1", "", "Idempotency-Key: l", 201, replay},
		}},
		"a key that is handed on": {"handle /payments/* {", nil, []asked{
			{"/payments/1", "1", "Idempotency-Key: k", 201, `"digits": 64`},
			{"/orders", "1", "Idempotency-Key: k", 201, `"digits": 0`},
		}},
		"a header of the outcome": {"header >X-Dedup", nil, []asked{
			{"/", "1", "Idempotency-Key: k", 201, "X-Dedup: executed"},
			{"/", "1", "Idempotency-Key: k", 201, "X-Dedup: replayed"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := startUpstream(t, standInService())
			sites := strings.ReplaceAll(sitesOfAPage(t, c.words, c.instead...), "localhost:3000", up.addr)
			ask(t, start(t, conf{store: "store memory", sites: sites}), c.requests)
		})
	}
}

// If one of the runs that an event starts fails, only that one is started again, at whichever
// replica the redelivery comes.
func TestRecipeTriggerDispatch(t *testing.T) {
	t.Parallel()
	runs := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		if strings.Contains(n.Body, "build") && n.N == 2 { // the second start of all
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	egress := fmt.Sprintf("127.0.0.1:%d", freeport.Of(t))
	trigger := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		for _, subscription := range []string{"deploy", "build"} {
			start, err := http.NewRequestWithContext(r.Context(), "POST", "http://"+egress+"/", strings.NewReader(fmt.Sprintf(`{"subscription": %q, "at": %d}`, subscription, n.N)))
			if err != nil {
				panic(err)
			}
			start.Header.Set("X-Run-Key", n.Header.Get("X-Run-Key"))
			if got, err := try(oneShot, start); err != nil || got.Status != http.StatusOK {
				w.WriteHeader(http.StatusBadGateway)
				return
			}
		}
	})
	store, dedup := redisStore(t), "namespace triggers"
	here := []string{"localhost:3000", trigger.addr, "localhost:3001", runs.addr}
	a := start(t, conf{store: store, dedup: dedup, sites: sitesOfAPage(t, "handle /triggers/* {", append(here, ":8082 {", "http://"+egress+" {")...)})
	b := start(t, conf{store: store, dedup: dedup, sites: sitesOfAPage(t, "handle /triggers/* {", append(here, ":8082 {", fmt.Sprintf("http://:%d {", freeport.Of(t)))...)})
	event := header("X-Event-Id", "e")
	if got := a.post(t, "/triggers/all", "", "{}", event); got.Status != http.StatusBadGateway {
		t.Errorf("the event whose run failed got %d", got.Status)
	}
	again := b.post(t, "/triggers/all", "", "{}", event, host("b.test"))
	wantFresh(t, again, 200, "")
	wantReplay(t, a.post(t, "/triggers/all", "", "{}", event), again)
	var started []string
	for _, r := range runs.all() {
		started = append(started, r.Body)
	}
	if want := []string{`{"subscription": "deploy", "at": 1}`, `{"subscription": "build", "at": 1}`, `{"subscription": "build", "at": 2}`}; !slices.Equal(started, want) {
		t.Errorf("the runs were started by %q, want %q", started, want)
	}
	for _, event := range trigger.all() {
		if key := event.Header.Get("X-Run-Key"); key != trigger.all()[0].Header.Get("X-Run-Key") || !hexKey.MatchString(key) {
			t.Errorf("an attempt has the key %q, want the same for each", key)
		}
	}
}
