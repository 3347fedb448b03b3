package integration

import (
	"net/http"
	"testing"
)

func TestCallerAndRouteArePartOfTheKey(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines("dedup", proxyTo(up))})
	type variant struct {
		path    string
		options []option
	}
	all := map[string]variant{
		"plain":         {"/pay", nil},
		"authorization": {"/pay", []option{header("Authorization", "Bearer a")}},
		"another":       {"/pay", []option{header("Authorization", "Bearer b")}},
		"API key":       {"/pay", []option{header("X-Api-Key", "a")}},
		"both":          {"/pay", []option{header("Authorization", "Bearer a"), header("X-Api-Key", "a")}},
		"remote user":   {"/pay", []option{header("Remote-User", "a")}},
		"host":          {"/pay", []option{host("a.test")}},
		"path":          {"/pay/", nil},
		"escaped path":  {"/p%61y", nil},
		"method":        {"/pay", []option{method("PATCH")}},
	}
	firsts := make(map[string]reply)
	for name, v := range all {
		firsts[name] = p.post(t, v.path, "k", "", v.options...)
		if firsts[name].replayed() || firsts[name].Status != 201 {
			t.Errorf("%s: got %d, replayed: %v; want a run of its own", name, firsts[name].Status, firsts[name].replayed())
		}
	}
	up.wantRuns(t, "k", len(all))
	for name, v := range all {
		wantReplay(t, p.post(t, v.path, "k", "", v.options...), firsts[name])
	}
	// The host's case and the scheme's own port are not part of the key, nor are cookies.
	wantReplay(t, p.post(t, "/pay", "k", "", host("A.TEST.:80")), firsts["host"])
	wantReplay(t, p.post(t, "/pay", "k", "", header("X-Api-Key", "")), firsts["plain"])
	wantReplay(t, p.post(t, "/pay", "k", "", header("Cookie", "a=1")), firsts["plain"])
}

func TestScopeCanBeReplaced(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines(
		"handle /tenant/* {", dedupBlock("scope tenant {http.request.header.X-Tenant}"), proxyTo(up), "}",
		"handle {", dedupBlock("scope everything", "fingerprint none"), proxyTo(up), "}")})

	first := p.post(t, "/a", "k", "")
	wantReplay(t, p.post(t, "/b", "k", "", header("Authorization", "Bearer a"), host("b.test"), method("PATCH")), first)
	up.wantRuns(t, "k", 1)

	one := p.post(t, "/tenant/x", "t", "", header("X-Tenant", "1"))
	wantReplay(t, p.post(t, "/tenant/x", "t", "", header("X-Tenant", "1"), header("Authorization", "rotated")), one)
	wantFresh(t, p.post(t, "/tenant/x", "t", "", header("X-Tenant", "2")), 201, "run 2 of t")
	wantFresh(t, p.post(t, "/tenant/x", "t", ""), 201, "run 3 of t")
}

func TestAuthenticatedUserIsPartOfTheKey(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	// The credentials are taken off before, so that only the user's name tells.
	p := start(t, conf{store: "store memory", site: lines("route {",
		"basic_auth {", "ali "+passwordHash, "eve "+passwordHash, "}",
		"request_header -Authorization", "dedup", proxyTo(up), "}")})
	as := func(user string) option { return func(r *http.Request) { r.SetBasicAuth(user, "open sesame") } }
	first := p.post(t, "/", "k", "", as("ali"))
	wantReplay(t, p.post(t, "/", "k", "", as("ali")), first)
	wantFresh(t, p.post(t, "/", "k", "", as("eve")), 201, "run 2 of k")
}

func TestNamespaceSeparatesInstallations(t *testing.T) {
	t.Parallel()
	store := redisStore(t)
	up := startUpstream(t, answers201)
	site := lines("dedup", proxyTo(up))
	a := start(t, conf{store: store, dedup: "namespace a", site: site})
	b := start(t, conf{store: store, dedup: "namespace b", site: site})
	again := start(t, conf{store: store, dedup: "namespace a", site: site})
	first := a.post(t, "/", "k", "", host("x.test"))
	wantFresh(t, b.post(t, "/", "k", "", host("x.test")), 201, "run 2 of k")
	wantReplay(t, again.post(t, "/", "k", "", host("x.test")), first)
}

func TestGitHubDeliveries(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store string) {
		up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
			status := 202
			if n.Key == "refused" && n.N == 1 {
				status = 404
			}
			answersStatus(status)(w, r, n)
		})
		p := start(t, conf{store: store, site: lines("dedup github", proxyTo(up))})
		deliver := func(id, hook string, more ...option) reply {
			t.Helper()
			return p.post(t, "/hooks", "", `{"zen":"Keep it logically awesome."}`,
				append([]option{header("X-GitHub-Delivery", id), header("X-GitHub-Hook-ID", hook), header("X-GitHub-Event", "ping")}, more...)...)
		}
		first := deliver("72d3162e-cc78-11e3-81ab-4c9367dc0958", "1")
		wantFresh(t, first, 202, "run 1 of 72d3162e-cc78-11e3-81ab-4c9367dc0958")
		wantReplay(t, deliver("72d3162e-cc78-11e3-81ab-4c9367dc0958", "1"), first)
		// A redelivery is signed anew, and may come with other credentials.
		wantReplay(t, deliver("72d3162e-cc78-11e3-81ab-4c9367dc0958", "1",
			header("Authorization", "another"), header("X-Hub-Signature-256", "sha256=00")), first)
		// Two hooks get the same event under the same ID.
		wantFresh(t, deliver("72d3162e-cc78-11e3-81ab-4c9367dc0958", "2"), 202, "run 2 of 72d3162e-cc78-11e3-81ab-4c9367dc0958")

		wantFresh(t, deliver("refused", "1"), 404, "run 1 of refused")
		wantFresh(t, deliver("refused", "1"), 202, "run 2 of refused")

		// An Idempotency-Key is none of GitHub's.
		p.post(t, "/hooks", "k", "")
		p.post(t, "/hooks", "k", "")
		up.wantRuns(t, "k", 2)
	})
}

func TestRewritesBeforeDoNotMergeRoutes(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines(
		"handle_path /api/* {", "dedup", proxyTo(up), "}",
		"handle_path /v2/* {", "dedup", proxyTo(up), "}",
		"route /strip/* {", "uri strip_prefix /strip", "dedup", proxyTo(up), "}")})
	for n, path := range []string{"/api/pay", "/v2/pay", "/strip/pay"} {
		first := p.post(t, path, "k", "")
		if first.replayed() {
			t.Errorf("%s: got the replay of another route", path)
		}
		wantReplay(t, p.post(t, path, "k", ""), first)
		up.wantRuns(t, "k", n+1)
		if got := up.nth(t, "k", n+1).URI; got != "/pay" {
			t.Errorf("%s: the upstream got %s, want /pay", path, got)
		}
	}
}

func TestRewritesAfterReachTheUpstream(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines(
		"route {", "dedup", "uri strip_prefix /api", "rewrite /old /new?{query}", proxyTo(up), "}")})
	first := p.post(t, "/api/old?a=1", "k", "")
	wantReplay(t, p.post(t, "/api/old?a=1", "k", ""), first)
	if got := up.nth(t, "k", 1).URI; got != "/new?a=1" {
		t.Errorf("the upstream got %s, want /new?a=1", got)
	}
	wantProblem(t, p.post(t, "/api/old?a=2", "k", ""), 422, "idempotency_key_reused")
}
