package delivery_test

import (
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

func TestSameMember(t *testing.T) {
	for names, hints := range map[string][]string{
		"":                             nil,
		"stripe":                       nil,
		"github gitlab shopify":        nil,
		"github stripe slack":          nil,
		"svix clerk resend":            nil,
		"sendgrid eventgrid":           nil,
		"woocommerce github":           nil,
		"github pubsub postmark":       nil,
		"stripe circleci":              {"stripe", "circleci", "/id"},
		"github box slack vercel":      {"box", "vercel", "/id"},
		"slack square":                 {"slack", "square", "/event_id"},
		"paddle github typeform":       {"paddle", "typeform", "/event_id"},
		"meta whatsapp":                {"meta", "whatsapp", "/entry/*/changes/*/value/messages/*/id"},
		"postmark asana":               {"postmark", "asana", "the whole body"},
		"lemon_squeezy github":         {"lemon_squeezy", "github", "last"},
		"github lemon_squeezy dropbox": {"lemon_squeezy", "dropbox", "the whole body"},
		"lemon_squeezy postmark":       {"lemon_squeezy", "postmark", "the whole body"},
		"chargebee asaas":              {"chargebee", "asaas", "/id"},
		"nylas stripe":                 {"nylas", "stripe", "/id"},
		// A whole body with members that must be there is not every body.
		"adyen github":        nil,
		"adyen stripe":        nil,
		"adyen dropbox":       nil,
		"adyen lemon_squeezy": nil,
		"adyen postmark":      nil,
		"postmark adyen":      {"postmark", "adyen", "last"},
		// Signs keep these apart.
		"discord slack dropbox plaid":     nil,
		"sentry zoom asana lemon_squeezy": nil,
		"sevalla slack":                   nil,
		"cloudevents nylas":               nil,
		"eventgrid slack sentry":          nil,
		// The same signs do not.
		"cloudevents eventarc":      {"cloudevents", "eventarc", "/id"},
		"cloudevents eventgrid":     {"cloudevents", "eventgrid", "/id"},
		"cloudevents knative nylas": {"cloudevents", "knative", "/id"},
		"eventarc github knative":   {"eventarc", "knative", "/id"},
		"eventarc eventgrid":        {"eventarc", "eventgrid", "/id"},
		"eventgrid github knative":  {"eventgrid", "knative", "/id"},
		"hugging_face stripe":       nil,
	} {
		var providers []delivery.Provider
		for name := range strings.FieldsSeq(names) {
			p, ok := delivery.ProviderNamed(name)
			if !ok {
				t.Fatalf("%q is no provider", name)
			}
			providers = append(providers, p)
		}
		err := delivery.SameMember(providers)
		if (err != nil) != (hints != nil) {
			t.Errorf("%q: got %v", names, err)
			continue
		}
		for _, hint := range hints {
			if !strings.Contains(err.Error(), hint) {
				t.Errorf("%q: got %q; want %q in it", names, err, hint)
			}
		}
	}
}

// Of two providers with the same signs the second is never reached, in whatever order
// and case these stand; with others it is.
func TestSignsKeepApart(t *testing.T) {
	signed := func(s delivery.Source, names ...string) delivery.Source {
		for _, name := range names {
			s.Signs.AnyOf = append(s.Signs.AnyOf, delivery.Sign{Header: name})
		}
		return s
	}
	without := func(s delivery.Source, name string) delivery.Source {
		s.Signs.NoneOf = []delivery.Sign{{Header: name}}
		return s
	}
	id, other, content := inBody("/id"), inBody("/other"), delivery.Source{Kind: delivery.KindContent}
	field := delivery.Source{Kind: delivery.KindHeader, Header: "X-A"}
	for name, c := range map[string]struct {
		first, second delivery.Source
		apart         bool
	}{
		"the same sign":               {signed(id, "X-A"), signed(id, "x-a"), false},
		"in another order":            {signed(id, "X-A", "X-B"), signed(id, "X-B", "X-A"), false},
		"another sign":                {signed(id, "X-A"), signed(id, "X-B"), true},
		"one sign more":               {signed(id, "X-A"), signed(id, "X-A", "X-B"), true},
		"a sign and none":             {signed(id, "X-A"), id, true},
		"a sign of others":            {signed(id, "X-A"), without(signed(id, "X-A"), "X-B"), true},
		"another member":              {signed(id, "X-A"), signed(other, "X-A"), true},
		"the whole body first":        {signed(content, "X-A"), signed(id, "X-A"), false},
		"the whole body first, apart": {signed(content, "X-A"), signed(id, "X-B"), true},
		"the whole body last":         {signed(id, "X-A"), signed(content, "X-A"), true},
		"the whole body twice":        {signed(content, "X-A"), signed(content, "X-A"), false},
		"one field beside the member": {inParts(field, id), inParts(id, field), false},
		"another field beside it":     {inParts(field, id), inParts(id, delivery.Source{Kind: delivery.KindHeader, Header: "X-B"}), true},
	} {
		err := delivery.SameMember([]delivery.Provider{
			{Name: "first", Sources: []delivery.Source{c.first}}, {Name: "second", Sources: []delivery.Source{c.second}},
		})
		if (err == nil) != c.apart {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// A field that deliveries may lack does not keep the deliveries of another provider
// away.
func TestOptionalFieldKeepsNobodyApart(t *testing.T) {
	field := delivery.Source{Kind: delivery.KindHeader, Header: "X-Shop"}
	other := delivery.Provider{Name: "other", Sources: []delivery.Source{inBody("/id")}}
	for _, c := range []struct {
		field delivery.Source
		apart bool
	}{{field, true}, {optional(field), false}} {
		shop := delivery.Provider{Name: "shop", Sources: []delivery.Source{inParts(c.field, inBody("/id"))}}
		if err := delivery.SameMember([]delivery.Provider{shop, other}); (err == nil) != c.apart {
			t.Errorf("%s: got %v", c.field, err)
		}
	}
}
