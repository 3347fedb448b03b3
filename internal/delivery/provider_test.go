package delivery_test

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/canonicaljson"
	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

func TestCatalogueIsConsistent(t *testing.T) {
	name := regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	before, all := "", delivery.Providers()
	for _, p := range all {
		if !name.MatchString(p.Name) || p.Name <= before {
			t.Errorf("provider %q: its name must be lower case, unique, and in its place of the order", p.Name)
		}
		before = p.Name
		if page, err := url.Parse(p.Fact); p.Documented() && (err != nil || page.Host == "") {
			t.Errorf("provider %s: its fact is %q", p.Name, p.Fact)
		}
		if _, err := time.Parse(time.DateOnly, p.Read); p.Read != "" && (err != nil || !p.Documented()) {
			t.Errorf("provider %s: read on %q, of the fact %q", p.Name, p.Read, p.Fact)
		}
		if p.Title == "" || p.Fact == "" || len(p.Sources) == 0 || p.Retention < 0 {
			t.Errorf("provider %s: it lacks a title, a fact or a source: %+v", p.Name, p)
		}
		for _, s := range p.Sources {
			for _, source := range append(s.Parts, s) {
				if err := delivery.CheckSource(source); err != nil {
					t.Errorf("provider %s: %v", p.Name, err)
				}
			}
			if s.Kind == delivery.KindBatch {
				checkList(t, p.Name, s.Batch)
			}
			for _, field := range s.ScopeHeaders {
				if err := delivery.CheckSource(delivery.Source{Kind: delivery.KindHeader, Header: field}); err != nil {
					t.Errorf("provider %s: %v", p.Name, err)
				}
			}
		}
		for _, sign := range slices.Concat(p.Signs.AnyOf, p.Signs.NoneOf) {
			if err := delivery.CheckSource(delivery.Source{Kind: delivery.KindHeader, Header: sign.Header}); err != nil {
				t.Errorf("provider %s: %v", p.Name, err)
			}
		}
		for _, pass := range p.Passes {
			if (pass.Header == "") == (pass.Pointer == "") || canonicaljson.CheckPointer(pass.Pointer) != nil {
				t.Errorf("provider %s: %+v must have a header or a pointer", p.Name, pass)
			}
		}
	}
	if len(all) < 40 {
		t.Errorf("the catalogue has %d names", len(all))
	}
}

// checkList tests that the elements of an array have IDs, and that all pointers are valid.
func checkList(t *testing.T, provider string, list delivery.List) {
	t.Helper()
	if len(list.Members) == 0 && len(list.Lists) == 0 {
		t.Errorf("provider %s: the array %q has no members to make an ID of", provider, list.Array)
	}
	for _, pointer := range slices.Concat([]string{list.Array}, list.Members, list.Optional) {
		if err := canonicaljson.CheckPointer(pointer); err != nil {
			t.Errorf("provider %s: %v", provider, err)
		}
	}
	for _, inner := range list.Lists {
		checkList(t, provider, inner)
	}
}

func TestNearNames(t *testing.T) {
	for name, want := range map[string]string{
		"GitHub": "github", "git-hub": "github", "githib": "github", "github ": "github", "standard-webhooks": "standard_webhooks", "standardwebhooks": "standard_webhooks",
		"standard": "standard_webhooks", "strpe": "stripe", "stripe_connect": "stripe", "event": "eventarc eventgrid", "git": "gitea github gitlab", "cloudevent": "cloudevents",
		"huggingface": "hugging_face", "slak": "slack", "sendgird": "sendgrid", "amazon": "", "": "", "x": "", "su": "", "zzzzzz": "",
	} {
		if got := strings.Join(delivery.NearNames(name), " "); got != want {
			t.Errorf("%q: got %q; want %q", name, got, want)
		}
	}
}
