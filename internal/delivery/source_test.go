package delivery_test

import (
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

const maxLength = 255

// keyHeader is the source of a handler for which no source is configured.
var keyHeader = delivery.Source{Kind: delivery.KindHeader, Header: "Idempotency-Key"}

// keyOf derives the key from what was found, as a handler does.
func keyOf(found delivery.Found) idempotency.Key {
	return idempotency.Identity{
		Namespace: "default",
		Scope:     found.Scope,
		Kind:      found.Kind,
		Prefix:    found.Prefix,
		ID:        found.ID,
		Tuple:     found.Tuple,
	}.Key()
}

func find(t *testing.T, header http.Header, sources ...delivery.Source) delivery.Found {
	t.Helper()
	found, err := delivery.Find(sources, delivery.Request{Header: header}, maxLength)
	if err != nil {
		t.Fatalf("Find: %v", err)
	}
	return found
}

func TestFirstPresentSourceWins(t *testing.T) {
	first := delivery.Source{Kind: delivery.KindHeader, Header: "X-First"}
	second := delivery.Source{Kind: delivery.KindHeader, Header: "X-Second"}
	for name, c := range map[string]struct {
		header  http.Header
		id      string
		missing bool
		invalid string // the header that the error names
	}{
		"none":                     {header: http.Header{}, missing: true},
		"no header at all":         {header: nil, missing: true},
		"a field without lines":    {header: http.Header{"X-First": {}}, missing: true},
		"another field":            {header: http.Header{"X-Third": {"c"}}, missing: true},
		"first":                    {header: http.Header{"X-First": {"a"}}, id: "a"},
		"second":                   {header: http.Header{"X-Second": {"b"}}, id: "b"},
		"both":                     {header: http.Header{"X-First": {"a"}, "X-Second": {"b"}}, id: "a"},
		"first empty":              {header: http.Header{"X-First": {""}, "X-Second": {"b"}}, invalid: "X-First"},
		"first invalid":            {header: http.Header{"X-First": {"\x7f"}, "X-Second": {"b"}}, invalid: "X-First"},
		"second invalid, unneeded": {header: http.Header{"X-First": {"a"}, "X-Second": {"\x7f"}}, id: "a"},
		"second invalid":           {header: http.Header{"X-Second": {"\x7f"}}, invalid: "X-Second"},
	} {
		t.Run(name, func(t *testing.T) {
			found, err := delivery.Find([]delivery.Source{first, second}, delivery.Request{Header: c.header}, maxLength)
			switch {
			case c.missing:
				if !errors.Is(err, delivery.ErrMissing) {
					t.Fatalf("got %+v, %v; want ErrMissing", found, err)
				}
			case c.invalid != "":
				if !isInvalid(err, c.invalid) {
					t.Fatalf("got %+v, %v; want an InvalidError of %s", found, err, c.invalid)
				}
			case err != nil || found.ID != c.id:
				t.Fatalf("got %+v, %v; want the ID %q", found, err, c.id)
			}
		})
	}
}

func TestPrefix(t *testing.T) {
	header := http.Header{"X-Order-Id": {"7"}}
	for name, c := range map[string]struct {
		source delivery.Source
		want   string
	}{
		"the header's name in lower case": {delivery.Source{Header: "X-Order-ID"}, "x-order-id"},
		"the provider's name":             {delivery.Source{Header: "X-Order-ID", Provider: "shop"}, "shop"},
	} {
		t.Run(name, func(t *testing.T) {
			c.source.Kind = delivery.KindHeader
			found := find(t, header, c.source)
			if found.Prefix != c.want || found.Kind != delivery.KindHeader || found.Provider != c.source.Provider {
				t.Fatalf("got %+v; want the prefix %q", found, c.want)
			}
		})
	}
}

func TestHeaderNamesInAnyCase(t *testing.T) {
	for _, spelling := range []string{"idempotency-key", "IDEMPOTENCY-KEY"} {
		if found := find(t, http.Header{"Idempotency-Key": {"a"}}, delivery.Source{Kind: delivery.KindHeader, Header: spelling}); found.ID != "a" || found.Prefix != "idempotency-key" {
			t.Errorf("a source of %q found %+v", spelling, found)
		}
	}
}

func TestProviderScope(t *testing.T) {
	source := delivery.Source{Kind: delivery.KindHeader, Header: "X-Id", Provider: "shop", ScopeHeaders: []string{"X-Topic", "X-Shop"}}
	scopes := map[string][]string{}
	for name, header := range map[string]http.Header{
		"none":                      {},
		"first empty":               {"X-Topic": {""}},
		"first twice empty":         {"X-Topic": {"", ""}},
		"second empty":              {"X-Shop": {""}},
		"first":                     {"X-Topic": {"a"}},
		"second":                    {"X-Shop": {"a"}},
		"both":                      {"X-Topic": {"a"}, "X-Shop": {"b"}},
		"both, exchanged":           {"X-Topic": {"b"}, "X-Shop": {"a"}},
		"first twice":               {"X-Topic": {"a", "b"}},
		"first twice, joined":       {"X-Topic": {"a, b"}},
		"first with second's label": {"X-Topic": {"a", "x-shop", "1", "b"}},
	} {
		header.Set("X-Id", "7")
		scopes[name] = find(t, header, source).Scope
	}
	seen := map[string]string{}
	for name, scope := range scopes {
		text := strings.Join(scope, "\x00")
		if other, ok := seen[text]; ok {
			t.Errorf("%q and %q have the same scope %q", name, other, scope)
		}
		seen[text] = name
	}
	if want := []string{"x-topic", "1", "a", "x-shop", "1", "b"}; !reflect.DeepEqual(scopes["both"], want) {
		t.Errorf("got the scope %q; want %q", scopes["both"], want)
	}
	if got := find(t, http.Header{"Idempotency-Key": {"a"}, "X-Topic": {"a"}}, keyHeader).Scope; len(got) != 0 {
		t.Errorf("a source without a preset has the scope %q", got)
	}
}
