package caddymodule

import (
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The start warns of what a handler gives up. In mode api a captured request runs again for another caller, unless the
// sender signs the caller, with each field of `caller`: the line shows what to write.
func TestStartWarnings(t *testing.T) {
	t.Setenv("TEST_SECRET", "secret")
	t.Setenv("TEST_OTHER", "other")
	hmac := func(lines, signed string) string {
		return "dedup {\nkey json /id\n" + lines + "\nverify hmac {\nsecret {env.TEST_SECRET}\nheader X-S\n" + signed + "\n}\n}"
	}
	const equal, counted, unverified, passed = "verify: two senders have one secret", "observe: requests are only counted", "observe: verify refuses nothing", "on_store_error pass: "
	const captured, caller = "verify: a captured request runs again for another caller", "signed {http.request.header.Authorization}."
	for lines, want := range map[string][]string{ // the beginnings of the warnings, each with the line that it shows
		"dedup":                                                nil,
		"dedup {\non_store_error pass\n}":                      {passed, ""},
		"dedup {\nobserve\n}":                                  {counted, ""},
		"dedup {\nobserve\non_store_error pass\n}":             {counted, ""}, // it claims nothing that could fail
		"dedup github {\nverify {env.TEST_SECRET}\n}":          nil,
		"dedup github {\nobserve\nverify {env.TEST_SECRET}\n}": {counted, "", unverified, ""},
		"dedup github shopify {\nverify github {env.TEST_SECRET}\nverify shopify {env.TEST_SECRET}\n}": {equal, ""},
		"dedup github shopify {\nverify github {env.TEST_SECRET}\nverify shopify {env.TEST_OTHER}\n}":  nil,
		hmac("mode api", ""): {captured, caller + "{body}"},
		hmac("mode api", "signed {http.request.header.X-Id}.{body}"):          {captured, caller + "{http.request.header.X-Id}.{body}"},
		hmac("mode api", "signed {http.request.header.authorization}.{body}"): nil,
		hmac("mode api\nscope {http.request.header.X-Tenant}", ""):            nil,
		hmac("mode webhook", ""): nil,
	} {
		s := serveLogged(t, "WARN", "", lines, "respond done 201")
		s.stop()
		var got []string
		for _, line := range book.about("") {
			if line.text("level") == "warn" && strings.Contains(line.text("logger"), "dedup") {
				got = append(got, line.text("msg"), line.text("verify_hmac"))
			}
		}
		// A warning begins with what is wanted.
		if !slices.EqualFunc(got, want, strings.HasPrefix) {
			t.Errorf("%q: the start has logged %q, want %q", lines, got, want)
		}
	}
}

// A server may answer before its configuration has opened the store, and goes on for a moment
// where that fails. A run by then would be one of a configuration that was never loaded.
func TestNothingRunsBeforeTheStoreIsOpen(t *testing.T) {
	address, runs := startUpstream(t, answers(201, "done"))
	app, web := provision(t, "", "dedup {", "on_store_error pass", "}", "reverse_proxy "+address)
	s := &site{t: t, app: app}
	for _, server := range web.Servers {
		s.Server = httptest.NewServer(server)
	}
	defer s.Close()
	got := s.mustPost("k", "body")
	if got.status != 503 || got.header.Get("Retry-After") == "" || !strings.Contains(got.body, "store_unavailable") || runs.Load() != 0 {
		t.Errorf("got %d %v %s, after %d runs", got.status, got.header, got.body, runs.Load())
	}
	if err := app.Start(); err != nil {
		t.Fatal(err)
	}
	if got := s.mustPost("k", "body"); got.status != 201 {
		t.Errorf("the store is open, and a request got %d %s", got.status, got.body)
	}
	store := app.started[0].Store()
	if err := app.Cleanup(); err != nil {
		t.Error(err)
	}
	<-store.Closed()
}

// The servers and the runs that they leave behind have one grace period together: whatever
// kills the process was set for one.
func TestStopTakesOneGracePeriod(t *testing.T) {
	app, _ := provision(t, "}\ngrace_period 3s\nservers {", "dedup {", "timeout 2m", "}")
	forever, _ := provision(t, "", "dedup {", "timeout 2m", "}")
	short, _ := provision(t, "}\ngrace_period 1s\nservers {", "dedup {", "}")
	for _, c := range []struct {
		app  *App
		want time.Duration
	}{{app, 2 * time.Second}, {forever, 5 * time.Second}, {short, 500 * time.Millisecond}} {
		if got := c.app.bodyLimit(); got != c.want {
			t.Errorf("bodies may be stored for %s, want %s", got, c.want)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		app.noteServerStop()
		forever.noteServerStop()
		for _, c := range []struct{ after, want time.Duration }{{0, 3 * time.Second}, {2 * time.Second, time.Second}, {5 * time.Second, 0}} {
			time.Sleep(c.after)
			if got := app.drainLimit(); got != c.want {
				t.Errorf("runs have %s more, want %s", got, c.want)
			}
		}
		if got := forever.drainLimit(); got != 2*time.Minute {
			t.Errorf("without a grace period runs have %s, want their timeout", got)
		}
	})
}
