package delivery_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

func TestSigns(t *testing.T) {
	const key = "Idempotency-Key: 42\nwebhook-id: 42\nX-Webhook-Id: 42\nX-GitHub-Delivery: 42\nX-Event-ID: 42\nX-Request-UUID: 42\n"
	for name, c := range map[string]struct {
		provider, header string
		claimed          bool
		reason           string // in the error, where it is not claimed
	}{
		"gitlab, by its event":             {"gitlab", "X-Gitlab-Event: Push Hook", true, ""},
		"gitlab, nothing":                  {"gitlab", "X-Other: 1", false, "not from gitlab: the request has no X-Gitlab-Event"},
		"gitlab, another field of its own": {"gitlab", "X-Gitlab-Token: t", false, "no X-Gitlab-Event"},
		"pagerduty, by signature":          {"pagerduty", "X-PagerDuty-Signature: v1=a", true, ""},
		"pagerduty, by subscription":       {"pagerduty", "X-Webhook-Subscription: P1", true, ""},
		"pagerduty, by its agent":          {"pagerduty", "User-Agent: PagerDuty-Webhook/V3.0", true, ""},
		"pagerduty, by an agent in small":  {"pagerduty", "User-Agent: pagerduty-webhook/v2.0", true, ""},
		"pagerduty, another agent":         {"pagerduty", "User-Agent: curl/8.0 PagerDuty-Webhook/V3.0", false, "X-PagerDuty-Signature or X-Webhook-Subscription or User-Agent that starts with PagerDuty-Webhook/"},
		"standard webhooks, by signature":  {"standard_webhooks", "webhook-signature: v1,a", true, ""},
		"standard webhooks, nothing":       {"standard_webhooks", "X-Other: 1", false, "webhook-signature or webhook-timestamp"},
		"replicate, by time":               {"replicate", "webhook-timestamp: 1", true, ""},
		"bitbucket, by its hook":           {"bitbucket", "X-Hook-UUID: 1", true, ""},
		"github":                           {"github", "X-Other: 1", true, ""},
		"github, of gitea":                 {"github", "X-Gitea-Delivery: 42", false, "not from github: the request has X-Gitea-Delivery"},
		"stripe":                           {"stripe", "Stripe-Signature: t=1,v1=a", true, ""},
		"stripe, nothing":                  {"stripe", "X-Other: 1", false, "not from stripe: the request has no Stripe-Signature"},
		"intercom, of github":              {"intercom", "X-Hub-Signature: sha1=a", false, "not from intercom: the request has X-GitHub-Delivery"},
		"lemon squeezy, half":              {"lemon_squeezy", "X-Signature: a", false, "not from lemon_squeezy: the request has no X-Event-Name"},
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := delivery.ProviderNamed(c.provider)
			found, err := delivery.Find(p.Sources, sample{key + c.header, `{"id":"42"}`}.request(), maxLength)
			switch {
			case c.claimed && (err != nil || found.ID != "42"):
				t.Errorf("found %+v, %v; want the ID 42", found, err)
			case !c.claimed && (!errors.Is(err, delivery.ErrMissing) || strings.Count(err.Error(), c.reason) != 1):
				t.Errorf("found %+v, %v; want %q in the error, once", found, err, c.reason)
			}
		})
	}
}

// Who looks for a webhook without an ID reads which field it lacks. The request of an API
// without a key is nothing to explain.
func TestMissingFieldIsNamed(t *testing.T) {
	github, _ := delivery.ProviderNamed("github")
	for want, sources := range map[string][]delivery.Source{
		"header X-GitHub-Delivery: it is absent": github.Sources,
		"":                                       {{Kind: delivery.KindHeader, Header: delivery.IdempotencyKeyHeader}},
	} {
		_, err := delivery.Find(sources, sample{"X-Other: 1\n", `{}`}.request(), maxLength)
		if !errors.Is(err, delivery.ErrMissing) || !strings.HasSuffix(err.Error(), want) || want == "" && err.Error() != delivery.ErrMissing.Error() {
			t.Errorf("found %v; want %q", err, want)
		}
	}
}

// A request of another sender falls through to what comes after the provider, and an
// ID of theirs that would be invalid is none of the provider's business.
func TestProvidersIgnoreForeignKeys(t *testing.T) {
	gitlab, _ := delivery.ProviderNamed("gitlab")
	if found, err := delivery.Find(gitlab.Sources, sample{"Idempotency-Key: \xff", "{}"}.request(), maxLength); !errors.Is(err, delivery.ErrMissing) {
		t.Errorf("an invalid key of a scheduler: found %+v, %v; want ErrMissing", found, err)
	}
}

// Each of several providers finds its own requests, even if one imitates another sender's or if the
// whole body is the key.
func TestProvidersBesideOtherSources(t *testing.T) {
	for names, lines := range map[string]map[string]string{
		"github gitea": {
			"X-Gitea-Delivery: 42\nX-GitHub-Delivery: 42\nX-GitHub-Event: push": "gitea", "X-GitHub-Delivery: 42\nX-GitHub-Event: push": "github",
		},
		"gitlab": {"Idempotency-Key: 42\nX-Gitlab-Event: Push Hook": "gitlab", "Idempotency-Key: 42": "", "X-Other: 1": "none"},
		"sentry dropbox plaid": {
			"Sentry-Hook-Resource: issue": "sentry", "X-Dropbox-Signature: a": "dropbox", "Plaid-Verification: a": "plaid", "Idempotency-Key: 1": "", "X-Other: 1": "none",
		},
	} {
		var sources []delivery.Source
		for name := range strings.FieldsSeq(names) {
			p, _ := delivery.ProviderNamed(name)
			sources = append(sources, p.Sources...)
		}
		seen := map[idempotency.Key]string{}
		for header, want := range lines {
			found, err := delivery.Find(append(sources, keyHeader), sample{header, `{"n":1}`}.request(), maxLength)
			if found.Provider != want && want != "none" || (err != nil) != (want == "none") {
				t.Errorf("%s: %q: found %+v, %v; want %q", names, header, found, err, want)
			}
			if other, ok := seen[keyOf(found)]; ok {
				t.Errorf("%s: %q has the key of %q", names, header, other)
			}
			seen[keyOf(found)] = header
		}
	}
}
