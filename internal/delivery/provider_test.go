package delivery_test

import (
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

func TestCatalogueIsConsistent(t *testing.T) {
	name := regexp.MustCompile(`^[a-z][a-z0-9-]*$`)
	before := ""
	for _, p := range delivery.Providers() {
		if !name.MatchString(p.Name) || p.Name <= before {
			t.Errorf("provider %q: its name must be lower case, unique, and in its place of the order", p.Name)
		}
		before = p.Name
		if page, err := url.Parse(p.Reference); err != nil || page.Scheme != "https" || page.Host == "" {
			t.Errorf("provider %s: reference %q is no page", p.Name, p.Reference)
		}
		if p.Title == "" || len(p.Sources) == 0 {
			t.Errorf("provider %s: it has no title or no source", p.Name)
		}
		for _, s := range p.Sources {
			if s.Kind != delivery.KindHeader || s.Header == "" || s.Provider != p.Name || s.Prefix != "" {
				t.Errorf("provider %s: source %+v is incomplete, or has a prefix", p.Name, s)
			}
			for _, field := range append([]string{s.Header}, s.ScopeHeaders...) {
				if strings.Trim(field, " ") == "" || !strings.EqualFold(http.CanonicalHeaderKey(field), field) {
					t.Errorf("provider %s: %q is no field name", p.Name, field)
				}
			}
		}
		if named, ok := delivery.ProviderNamed(p.Name); !ok || !reflect.DeepEqual(named, p) {
			t.Errorf("ProviderNamed(%q) is %+v, %v", p.Name, named, ok)
		}
	}
	if before == "" {
		t.Error("the catalogue is empty")
	}
}

func TestUnknownProvider(t *testing.T) {
	for _, name := range []string{"", "GitHub", "git", "github "} {
		if p, ok := delivery.ProviderNamed(name); ok {
			t.Errorf("ProviderNamed(%q) is %+v", name, p)
		}
	}
}

// Whoever changes what the catalogue gave does not change the catalogue.
func TestCatalogueIsCopied(t *testing.T) {
	changed, _ := delivery.ProviderNamed("github")
	changed.Sources[0].Header = "X-Other"
	changed.Sources[0].ScopeHeaders[0] = "X-Other"
	if again, _ := delivery.ProviderNamed("github"); again.Sources[0].Header == "X-Other" || again.Sources[0].ScopeHeaders[0] == "X-Other" {
		t.Fatalf("the catalogue became %+v", again)
	}
}

func TestGitHub(t *testing.T) {
	github, _ := delivery.ProviderNamed("github")
	const guid = "72d3162e-cc78-11e3-81ab-4c9367dc0958"
	delivered := func(hook ...string) delivery.Found {
		return find(t, http.Header{"X-Github-Delivery": {guid}, "X-Github-Hook-Id": hook}, github.Sources...)
	}
	found := delivered("292430182")
	want := delivery.Found{
		Provider: "github", Kind: "header", Prefix: "github", ID: guid,
		Scope: []string{"x-github-hook-id", "1", "292430182"},
	}
	if !reflect.DeepEqual(found, want) {
		t.Fatalf("got  %+v\nwant %+v", found, want)
	}
	if keyOf(found) == keyOf(delivered("292430183")) {
		t.Error("one event for two hooks is one key")
	}
	if keyOf(delivered()) == keyOf(delivered("")) {
		t.Error("an absent hook ID and an empty one are one key")
	}
	own := find(t, http.Header{"X-Github-Delivery": {guid}}, delivery.Source{Kind: "header", Header: "X-GitHub-Delivery"})
	if keyOf(own) == keyOf(delivered()) {
		t.Error("the provider's ID and a source of the user's own are one key")
	}
}
