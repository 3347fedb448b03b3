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
		"cloudevents eventgrid":        nil,
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
		// Signs keep these apart.
		"discord slack dropbox plaid":     nil,
		"sentry zoom asana lemon_squeezy": nil,
		"sevalla slack":                   nil,
		"cloudevents knative nylas":       nil,
		"hugging_face stripe":             nil,
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
