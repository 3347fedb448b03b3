package integration

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// A held webhook is found by its delivery ID, released by a form, delivered again, and seen to
// succeed. Another site's form changes nothing, and without the password of the page's route nothing of it is seen. The chart outlives
// a reload.
func TestDashboard(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, inTurn(noAnswer, answers201))
	site := lines(
		"handle_path /ops/* {", "basic_auth {", "operator $2a$04$wvLKdxLAq0tWI6Zl3iiveerWdnoccirNJYypGt5frcQb0jvXZroe.", "}", "dedup_dashboard", "}",
		"handle {", "dedup github {", "on_unknown hold", "}", proxyTo(up), "}")
	p := start(t, conf{store: "store file", site: site})
	deliver := func(want int) {
		t.Helper()
		got := p.post(t, "/hook", "", "{}", header("X-GitHub-Delivery", "72d3162e-<i>"), header("X-GitHub-Hook-ID", "7"))
		if got.Status != want || got.replayed() {
			t.Fatalf("a delivery got %d, replayed: %t; want %d", got.Status, got.replayed(), want)
		}
	}
	operator := func(r *http.Request) { r.SetBasicAuth("operator", "at night") }
	see := func(query string, texts ...string) {
		t.Helper()
		mustSay(t, p.post(t, "/ops/?"+query, "", "", method("GET"), operator).Body, texts...)
	}
	deliver(502)
	deliver(503)
	if got := p.post(t, "/ops/?q=72d3162e-%3Ci%3E", "", "", method("GET")); got.Status != 401 || got.Body != "" {
		t.Errorf("a stranger sees %d %s", got.Status, got.Body)
	}
	see("", `class="state held"`, "72d3162e-&lt;i&gt;")
	see("q=72d3162e-%3Ci%3E", "It is unknown whether the service executed it")
	held := objects(t, p.keys(t, 0, "list", "--json"))[0]
	key := held["key"].(string)
	form := url.Values{"do": {"release"}, "key": {key}, "state": {"held"}, "execution": {held["execution_id"].(string)}}
	release := func(from string) reply {
		return p.post(t, "/ops/", "", form.Encode(), operator, header("Sec-Fetch-Site", from), header("Content-Type", "application/x-www-form-urlencoded"))
	}
	if got := release("cross-site"); got.Status != 403 {
		t.Errorf("another site's form got %d %s", got.Status, got.Body)
	}
	there, _, _ := strings.Cut(strings.TrimPrefix(release("same-origin").Header.Get("Location"), "?"), "#")
	see(there, "The key is released.", "By an operator, after attempt 1.")
	p.awaitLog(t, "who released the key", func(e entry) bool {
		return e.text("msg") == "an operator released a key" && e.text("key") == key &&
			e.text("user") == "operator" && strings.HasPrefix(e.text("remote"), "127.0.0.1:")
	})

	deliver(201)
	see("key="+key, "With 201. The response is kept")
	p.reload(t, lines("header X-Configuration 2", site))
	see("", "Executed <b>2</b>", "Refused <b>1</b>")
}
