package signature_test

import (
	"net/http"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/signature"
)

// The catalogue signs nothing of these requests; each passes for its own provider alone.
func TestChallenges(t *testing.T) {
	none := http.Header{}
	okta := http.Header{"X-Okta-Verification-Challenge": {"x"}}
	for _, test := range []struct {
		provider, method, target string
		header                   http.Header
		body, ok                 bool
	}{
		{"dropbox", "GET", "/hook?challenge=x", none, false, true},
		{"nylas", "GET", "/hook?a=1&challenge=x", none, false, true},
		{"meta", "GET", "/hook?hub.mode=subscribe&hub.challenge=1", none, false, true},
		{"whatsapp", "GET", "/hook?hub%2Echallenge=1", none, false, true},
		{"okta", "GET", "/hook", okta, false, true},
		{"intercom", "HEAD", "/hook", none, false, true},
		{"dropbox", "POST", "/hook?challenge=x", none, false, false},
		{"dropbox", "HEAD", "/hook?challenge=x", none, false, false},
		{"dropbox", "GET", "/hook?challenge=x", none, true, false},
		{"dropbox", "GET", "/hook?Challenge=x", none, false, false},
		{"dropbox", "GET", "/hook?x=challenge=", none, false, false},
		{"dropbox", "GET", "/challenge=x", none, false, false},
		{"meta", "GET", "/hook?challenge=x", none, false, false},
		{"okta", "GET", "/hook", none, false, false},
		{"okta", "POST", "/hook", okta, false, false},
		{"intercom", "HEAD", "/hook", none, true, false},
		{"intercom", "GET", "/hook", none, false, false},
		{"github", "GET", "/hook?challenge=x", okta, false, false},
		{"notion", "GET", "/hook?challenge=x", none, false, false},
	} {
		v := signature.Verifiers{senders["stripe"].verifier(t, "stripe"), senders[test.provider].verifier(t, test.provider)}
		pending, err := v.Begin(signature.Request{Method: test.method, Target: test.target, Header: test.header, HasBody: test.body}, start)
		if got := pending.Challenge; (got == test.provider) != test.ok || (err == nil) != test.ok {
			t.Errorf("%+v: challenge of %q, %v", test, got, err)
		}
	}
}

// Where a handler has several, the signature that verifies says which provider it is.
func TestSeveralProviders(t *testing.T) {
	var all []*signature.Verifier
	names := []string{"stripe", "github", "gitea", "openai", "gitlab", "telegram", "adyen", "twilio"}
	for _, name := range names {
		s := senders[name]
		all = append(all, s.verifier(t, name, func(c *signature.Config) {
			if s.secret == "" {
				c.Secrets = []string{textSecret + name}
			} else if name == "gitlab" {
				c.Secrets = []string{"whsec_" + inBase64("gitlab")}
			}
		}))
	}
	for _, name := range names {
		s := senders[name]
		r := s.request(func(r *sent) {
			if s.secret == "" {
				r.secret = textSecret + name
			} else if name == "gitlab" {
				r.secret = "whsec_" + inBase64("gitlab")
			}
		})
		if found, _, err := r.verify(t, start, all...); err != nil || found.Provider != name {
			t.Errorf("%s: %+v, %v", name, found, err)
		}
	}
	// Those named first are tried first.
	r := senders["openai"].request()
	openai, standard := senders["openai"].verifier(t, "openai"), senders["standard_webhooks"].verifier(t, "standard_webhooks")
	for _, order := range [][]*signature.Verifier{{openai, standard}, {standard, openai}} {
		if found, _, err := r.verify(t, start, order...); err != nil || found.Provider != order[0].Provider() {
			t.Errorf("%s is first: %+v, %v", order[0].Provider(), found, err)
		}
	}
	// Gitea and Forgejo sign in GitHub's field too.
	r = senders["github"].request()
	r.header.Set("X-Gitea-Delivery", "1")
	if _, early, err := r.verify(t, start, senders["github"].verifier(t, "github")); err == nil || !early {
		t.Errorf("a request with Gitea's fields is GitHub's: %v", err)
	}
	r = senders["meta"].request()
	r.header.Set("X-GitHub-Event", "push")
	if _, early, err := r.verify(t, start, senders["meta"].verifier(t, "meta")); err == nil || !early {
		t.Errorf("a request with GitHub's fields is Meta's: %v", err)
	}
}
