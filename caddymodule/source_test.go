package caddymodule

import (
	"fmt"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

// Whatever the order in which providers are named, those that are known by a
// header field are tried first: their deliveries may have a member of the body
// that is another provider's ID.
func TestProvidersKnownByAFieldComeFirst(t *testing.T) {
	for _, first := range delivery.Providers() {
		for _, second := range delivery.Providers() {
			names := []string{first.Name, second.Name}
			if checkProviders(names) != nil {
				continue
			}
			s := Settings{Providers: names, Keys: []KeySource{{Header: "X-Own"}}}
			sources := s.deliverySources()
			before := 0
			for _, source := range sources[:len(sources)-1] {
				if source.Provider == "" {
					t.Fatalf("%v: the user's line is not last", names)
				}
				if now := certainty(source); now < before {
					t.Errorf("%v: %s of %s comes behind a less certain source", names, source, source.Provider)
				} else {
					before = now
				}
			}
		}
	}
}

func TestKeySourcesThatAreMistakes(t *testing.T) {
	for _, mistake := range []KeySource{
		{},
		{Header: "A", JSON: "/b"},
		{Header: "Authorization"},
		{Header: "cookie"},
		{Header: "Host"},
		{Header: "Dedup-Attempt"},
		{Value: "{http.request.header.X-API-Key}"},
		{Value: "{http.request.cookie.session}"},
		{Value: "{http.request.body}"},
		{JSON: "id"},
		{Parts: []KeySource{{Header: "A"}}},
		{Prefix: "p", Parts: []KeySource{{Header: "Authorization"}}},
	} {
		if err := mistake.check(); err == nil {
			t.Errorf("%+v is accepted", mistake)
		}
	}
	for _, s := range []Settings{
		{Keys: []KeySource{{Header: "A"}, {Header: "a", Prefix: "p"}}},
		{Keys: []KeySource{{Prefix: "p", Parts: []KeySource{{Header: "A"}}}, {Prefix: "q", Parts: []KeySource{{Header: "A"}}}}},
		{Force: "x-a", Keys: []KeySource{{Prefix: "p", Parts: []KeySource{{Header: "X-A"}}}}},
		{Force: "X-A", Keys: []KeySource{{Value: "{http.request.header.x-a}"}}},
		{Force: "Authorization"},
		{Force: "Content-Type"},
		{Scope: []string{"{http.request.body}"}},
		{Scope: []string{""}},
		{ReplayedHeader: "Content-Length"},
	} {
		s.setDefaults()
		if err := s.check(); err == nil {
			t.Errorf("%s is accepted", fmt.Sprintf("%+v", s))
		}
	}
}
