package integration

import (
	"strings"
	"testing"
)

// A provider claims its own deliveries only, though others name theirs in a field of
// the same name.
func TestProvidersClaimTheirOwnRequestsOnly(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	shared := map[string]struct {
		field string
		own   string // a line that the provider always sends
		body  string
	}{
		"gitlab":            {"Idempotency-Key", "X-Gitlab-Event: Push Hook", "{}"},
		"standard_webhooks": {"webhook-id", "webhook-timestamp: 1", "{}"},
		"openai":            {"webhook-id", "webhook-signature: v1,a", "{}"},
		"replicate":         {"webhook-id", "webhook-timestamp: 1", "{}"},
		"pagerduty":         {"X-Webhook-Id", "User-Agent: PagerDuty-Webhook/V3.0", "{}"},
		"bitbucket":         {"X-Request-UUID", "X-Event-Key: repo:push", "{}"},
		"prolific":          {"X-Event-ID", "X-Prolific-Request-Timestamp: 1", "{}"},
	}
	blocks := make(map[string]string)
	for name, c := range shared {
		blocks["/alone/"+name] = "dedup " + name
		blocks["/beside/"+name] = lines("dedup "+name+" {", "key header "+c.field, "}")
	}
	blocks["/forges"] = "dedup github gitea"
	blocks["/bodies"] = lines("dedup sentry dropbox plaid {", "key header Idempotency-Key", "}")
	p := start(t, conf{store: "store memory", site: lines("header >X-Provider {http.dedup.provider}", onPaths(up, blocks))})
	for name, c := range shared {
		t.Run(name, func(t *testing.T) {
			other, own := lined(c.body, c.field+": 42"), lined(c.body, c.field+": 42", c.own)
			wantNoKey(t, p, up, "/alone/"+name, []sent{other})
			wantKeys(t, p, "/beside/"+name, []sent{other}, []sent{own})
			wantProvider(t, p, "/beside/"+name, other, noProvider)
			wantProvider(t, p, "/beside/"+name, own, name)
		})
	}
	t.Run("a forge that imitates another", func(t *testing.T) {
		gitea := lined("{}", "X-Gitea-Delivery: 42", "X-GitHub-Delivery: 42", "X-GitHub-Event: push")
		gitHub := lined("{}", "X-GitHub-Delivery: 42", "X-GitHub-Event: push")
		wantKeys(t, p, "/forges", []sent{gitea}, []sent{gitHub})
		wantProvider(t, p, "/forges", gitea, "gitea")
		wantProvider(t, p, "/forges", gitHub, "github")
	})
	t.Run("providers without an ID", func(t *testing.T) {
		var groups [][]sent
		for n, line := range []string{"Sentry-Hook-Resource: issue", "X-Dropbox-Signature: a", "Plaid-Verification: a", "Idempotency-Key: 1", "Idempotency-Key: 2"} {
			s := lined(`{"n":1}`, line)
			groups = append(groups, []sent{s})
			defer wantProvider(t, p, "/bodies", s, []string{"sentry", "dropbox", "plaid", noProvider, noProvider}[n])
		}
		wantKeys(t, p, "/bodies", groups...)
		wantNoKey(t, p, up, "/bodies", bodies(`{"n":1}`))
	})
	reason := "not from gitlab: the request has no X-Gitlab-Event"
	p.awaitLog(t, "why a request is not GitLab's", func(e entry) bool {
		return strings.HasPrefix(e.text("msg"), "missing: ") && strings.Contains(e.text("reason"), reason)
	})
}

// What the page of providers says of senders without a name holds.
func TestSendersWithoutAName(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: onPaths(up, map[string]string{
		"/hubspot/plain":   lines("dedup {", "mode webhook", "key content", "}"),
		"/hubspot/exclude": lines("dedup {", "mode webhook", "key content", "exclude /0/attemptNumber", "}"),
		"/graph":           lines("dedup {", "mode webhook", "key content", "}"),
	})})
	first, again, other := bodies(`[{"eventId":1,"attemptNumber":0,"objectId":5}]`), bodies(`[{"eventId":1,"attemptNumber":1,"objectId":5}]`), bodies(`[{"eventId":1,"attemptNumber":0,"objectId":6}]`)
	wantKeys(t, p, "/hubspot/plain", first, again, other)
	wantKeys(t, p, "/hubspot/exclude", append(first, again...), other)
	// The check of a subscription, each time it comes, and the notifications beside it.
	wantNoKey(t, p, up, "/graph?validationToken=a", bodies(""))
	wantKeys(t, p, "/graph", bodies(`{"value":[{"subscriptionId":"s","changeType":"updated"}]}`), bodies(`{"value":[{"subscriptionId":"s","changeType":"created"}]}`))
}

// noProvider is what the placeholder leaves of a request that is no provider's.
const noProvider = ""

// wantProvider fails unless a request that was here before is said to be of a provider.
func wantProvider(t *testing.T, p *caddy, path string, s sent, want string) {
	t.Helper()
	got := p.send(t, path, s)
	if provider := got.Header.Get("X-Provider"); !got.replayed() || provider != want {
		t.Errorf("%s: the provider is %q, replayed: %v; want a replay of %q", path, provider, got.replayed(), want)
	}
}
