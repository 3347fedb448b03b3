package delivery_test

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

func inParts(parts ...delivery.Source) delivery.Source {
	return delivery.Source{Kind: delivery.KindParts, Provider: "orders", Parts: parts}
}

func TestParts(t *testing.T) {
	sources := []delivery.Source{inParts(
		delivery.Source{Kind: delivery.KindHeader, Header: "X-Shop"}, inBody("/id"),
		delivery.Source{Kind: delivery.KindValue, Text: "{q}"}, contentSource,
	)}
	ask := func(shop, q, body string) (delivery.Found, error) {
		request := withBody(body)
		request.Replace = func(string) (string, error) { return q, nil }
		if shop != "absent" {
			request.Header = http.Header{"X-Shop": {shop}}
		}
		return delivery.Find(sources, request, maxLength)
	}
	found, err := ask("s1", "x", `{"id":"7"}`)
	if err != nil || found.Kind != "parts" || found.Prefix != "orders" || found.ID != "s1" || len(found.Parts) != 3 || found.Parts[0] != "7" || found.Parts[1] != "x" {
		t.Fatalf("got %+v, %v", found, err)
	}
	for name, c := range map[string]struct {
		shop, q, body string
		same          bool
	}{
		"the same":            {"s1", "x", `{ "id": "7" }`, true},
		"quoted header":       {`"s1"`, "x", `{"id":"7"}`, true},
		"another header":      {"s2", "x", `{"id":"7"}`, false},
		"another value":       {"s1", "y", `{"id":"7"}`, false},
		"another member":      {"s1", "x", `{"id":"8"}`, false},
		"a number":            {"s1", "x", `{"id":7}`, false},
		"another content":     {"s1", "x", `{"id":"7","n":1}`, false},
		"moved over the edge": {"s", "1x", `{"id":"7"}`, false},
	} {
		other, err := ask(c.shop, c.q, c.body)
		if err != nil || (keyOf(other) == keyOf(found)) != c.same {
			t.Errorf("%s: got %+v, %v; the same: want %v", name, other, err, c.same)
		}
	}
	for name, c := range map[string]struct{ shop, q, body, reason string }{
		"no header":   {"absent", "x", `{"id":"7"}`, "part 1, header X-Shop: it is absent"},
		"no member":   {"s1", "x", `{}`, "part 2, json /id: /id is not in the body"},
		"not JSON":    {"s1", "x", `id=7`, "part 2, json /id: the body is not JSON"},
		"empty value": {"s1", "", `{"id":"7"}`, "part 3, value {q}: it is empty"},
		"long member": {"s1", "x", `{"id":"` + strings.Repeat("k", 256) + `"}`, "has 256 bytes"},
		"no body":     {"s1", "x", ``, "the body is empty"},
	} {
		if found, err := ask(c.shop, c.q, c.body); errors.Is(err, delivery.ErrUnusable) != (name != "no header") || !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%s: got %+v, %v; want %q", name, found, err, c.reason)
		}
	}
	if found, err := ask("\x7f", "x", `{"id":"7"}`); !isInvalid(err, "X-Shop") {
		t.Errorf("an invalid part: got %+v, %v; want an InvalidError", found, err)
	}
}

// A part that is absent decides before one that is invalid, or whose body is too large,
// wherever it stands: such a request has no key.
func TestAbsentPartInAnyOrder(t *testing.T) {
	shop, other := delivery.Source{Kind: delivery.KindHeader, Header: "X-Shop"}, delivery.Source{Kind: delivery.KindHeader, Header: "X-Other"}
	large := func() ([]byte, error) { return nil, delivery.ErrBodyTooLarge }
	for name, c := range map[string]struct {
		parts  []delivery.Source
		header http.Header
		body   func() ([]byte, error)
		want   func(error) bool
	}{
		"a large body, and no header": {[]delivery.Source{inBody("/id"), shop}, nil, large, isMissing},
		"a large body to hash":        {[]delivery.Source{contentSource, shop}, nil, large, isMissing},
		"an invalid header, no other": {[]delivery.Source{shop, other}, http.Header{"X-Shop": {""}}, nil, isMissing},
		"an invalid header, no member": {[]delivery.Source{shop, inBody("/id")}, http.Header{"X-Shop": {""}},
			func() ([]byte, error) { return []byte(`{}`), nil }, isMissing},
		"a large body, and the header": {[]delivery.Source{inBody("/id"), shop}, http.Header{"X-Shop": {"s"}}, large,
			func(err error) bool { return errors.Is(err, delivery.ErrBodyTooLarge) }},
		"an invalid header, and the other": {[]delivery.Source{shop, other}, http.Header{"X-Shop": {""}, "X-Other": {"o"}}, nil,
			func(err error) bool { return isInvalid(err, "X-Shop") }},
	} {
		for turn := range 2 {
			found, err := delivery.Find([]delivery.Source{inParts(c.parts...)}, delivery.Request{Header: c.header, Body: c.body}, maxLength)
			if !c.want(err) {
				t.Errorf("%s, parts turned round %d times: got %+v, %v", name, turn, found, err)
			}
			slices.Reverse(c.parts)
		}
	}
}

func isMissing(err error) bool { return errors.Is(err, delivery.ErrMissing) }

// The ID is the first part, by which a key is found, and the others are those that are present.
// Different values have different keys.
func TestIDOfParts(t *testing.T) {
	sources := []delivery.Source{inParts(inBody("/uid"), optional(inBody("/namespace")), inBody("/channel"))}
	first := map[string]idempotency.Key{}
	for body, id := range map[string]string{
		`{"uid":"u","channel":"c"}`:                                "u:c",
		`{"uid":"u","channel":"c","namespace":""}`:                 "u:c",
		`{"uid":"u","channel":"c","namespace":null}`:               "u:c",
		`{"uid":"u","channel":"c","namespace":"n"}`:                "u:n:c",
		`{"uid":"u:n","channel":"c"}`:                              "u:n:c",
		`{"uid":"u","channel":"n:c"}`:                              "u:n:c",
		`{"uid":"u","channel":"n","namespace":":"}`:                "u:::n",
		`{"uid":"u:","channel":":n"}`:                              "u:::n",
		`{"uid":7,"channel":"c"}`:                                  "7:c",
		`{"uid":"7","channel":"c"}`:                                "7:c",
		`{"uid":"` + strings.Repeat("ü", 100) + `","channel":"c"}`: strings.Repeat("ü", 100) + ":c",
	} {
		found, err := delivery.Find(sources, withBody(body), maxLength)
		if err != nil || strings.Join(append([]string{found.ID}, found.Parts...), ":") != id {
			t.Errorf("%s: got %+v, %v; want the ID %q", body, found, err, id)
			continue
		}
		known := idempotency.Identity{Namespace: "default", ID: found.ID}.Key().String()[:16]
		if key := keyOf(found).String(); key[:16] != known {
			t.Errorf("%s: the key %s does not begin with %s, as the ID %q says", body, key, known, id)
		}
		first[body] = keyOf(found)
	}
	same := []string{`{"uid":"u","channel":"c"}`, `{"uid":"u","channel":"c","namespace":""}`, `{"uid":"u","channel":"c","namespace":null}`}
	for a, one := range first {
		for b, other := range first {
			if want := a == b || slices.Contains(same, a) && slices.Contains(same, b); (one == other) != want {
				t.Errorf("%s and %s: the same key: %v, want %v", a, b, one == other, want)
			}
		}
	}
}

func optional(s delivery.Source) delivery.Source {
	s.Optional = true
	return s
}

// What each kind of optional part is with each thing that a request may have there:
// a value, absent, or nothing that a key could be made of. In that last case the
// request has no key, as if the part were not optional.
func TestOptionalParts(t *testing.T) {
	long := strings.Repeat("k", maxLength+1)
	must := delivery.Source{Kind: delivery.KindHeader, Header: "X-Must"}
	header := delivery.Source{Kind: delivery.KindHeader, Header: "X-May"}
	value := delivery.Source{Kind: delivery.KindValue, Text: "{a}"}
	const there, gone, unusable, invalid, large = "there", "gone", "unusable", "invalid", "large"
	tooLarge := delivery.Request{Body: func() ([]byte, error) { return nil, delivery.ErrBodyTooLarge }}
	headerSource := func(lines ...string) delivery.Request { return delivery.Request{Header: http.Header{"X-May": lines}} }
	replaced := func(text string) delivery.Request {
		return delivery.Request{Replace: func(string) (string, error) { return text, nil }}
	}
	for _, c := range []struct {
		name    string
		part    delivery.Source
		request delivery.Request
		want    string
	}{
		{"header", header, headerSource("v"), there},
		{"no header", header, headerSource(), gone},
		{"an empty header", header, headerSource(""), invalid},
		{"a string", inBody("/a"), withBody(`{"a":"v"}`), there},
		{"an empty string", inBody("/a"), withBody(`{"a":""}`), gone},
		{"null", inBody("/a"), withBody(`{"a":null}`), gone},
		{"no member", inBody("/a"), withBody(`{}`), gone},
		{"no body", inBody("/a"), withBody(``), gone},
		{"no JSON", inBody("/a"), withBody(`a=v`), unusable},
		{"a name that stands twice", inBody("/a"), withBody(`{"a":"v","a":"w"}`), unusable},
		{"a body too large", inBody("/a"), tooLarge, large},
		{"an object", inBody("/a"), withBody(`{"a":{}}`), unusable},
		{"value", value, replaced("v"), there},
		{"an empty value", value, replaced(""), gone},
		{"a long value", value, replaced(long), unusable},
		{"content", contentSource, withBody(`x`), there},
		{"no content", contentSource, withBody(``), gone},
		{"content too large", contentSource, tooLarge, large},
	} {
		find := func(parts ...delivery.Source) (delivery.Found, error) {
			request := c.request
			request.Header = maps.Clone(request.Header)
			if request.Header == nil {
				request.Header = http.Header{}
			}
			request.Header["X-Must"] = []string{"m"}
			return delivery.Find([]delivery.Source{inParts(parts...)}, request, maxLength)
		}
		found, err := find(must, optional(c.part))
		alone, err2 := find(must)
		if err2 != nil {
			t.Fatal(err2)
		}
		switch c.want {
		case there:
			all, errAll := find(must, c.part)
			if err != nil || errAll != nil || keyOf(found) != keyOf(all) || len(found.Parts) != 1 {
				t.Errorf("%s: got %+v, %v; want the key of %+v, %v: the part is there", c.name, found, err, all, errAll)
			}
		case gone:
			if err != nil || found.ID != "m" || len(found.Parts) > 0 || keyOf(found) == keyOf(alone) {
				t.Errorf("%s: got %+v, %v; want the ID m, and another key than without such a part", c.name, found, err)
			}
		case unusable: // the first part is there
			if !errors.Is(err, delivery.ErrUnusable) || !strings.Contains(err.Error(), "part 2, "+c.part.String()+" optional: ") {
				t.Errorf("%s: got %+v, %v; want ErrUnusable that names the part", c.name, found, err)
			}
		case invalid:
			if !isInvalid(err, "X-May") {
				t.Errorf("%s: got %+v, %v; want an InvalidError", c.name, found, err)
			}
		case large:
			if !errors.Is(err, delivery.ErrBodyTooLarge) {
				t.Errorf("%s: got %+v, %v; want ErrBodyTooLarge", c.name, found, err)
			}
		}
	}
	failed := errors.New("reset by peer")
	broken := delivery.Request{Header: http.Header{"X-Must": {"m"}}, Body: func() ([]byte, error) { return nil, failed }}
	if found, err := delivery.Find([]delivery.Source{inParts(must, optional(inBody("/a")))}, broken, maxLength); !errors.Is(err, failed) {
		t.Errorf("a body that failed: got %+v, %v", found, err)
	}
	if found, err := delivery.Find([]delivery.Source{inParts(optional(header), optional(value))}, delivery.Request{}, maxLength); !errors.Is(err, delivery.ErrMissing) {
		t.Errorf("nothing at all: got %+v, %v; want ErrMissing", found, err)
	}
}

// Each of three parts has one of a few values, or is absent: no two requests that
// differ have one key. The values are such that joined they often are the same text.
func TestOptionalPartsDoNotCollide(t *testing.T) {
	values := []string{"", `"a"`, `"b"`, `"ab"`, `"a:b"`, `":"`, `":a"`, `"1"`, `1`, `"absent"`, `"json"`}
	source := inParts(optional(inBody("/a")), optional(inBody("/b")), optional(inBody("/c")))
	seen, ids := map[idempotency.Key]string{}, map[string]int{}
	for _, a := range values {
		for _, b := range values {
			for _, c := range values {
				body := "{" + strings.Join(slices.DeleteFunc([]string{member("a", a), member("b", b), member("c", c)}, func(m string) bool { return m == "" }), ",") + "}"
				found, err := delivery.Find([]delivery.Source{source}, withBody(body), maxLength)
				if body == "{}" {
					if !errors.Is(err, delivery.ErrMissing) {
						t.Errorf("all absent: got %+v, %v; want ErrMissing", found, err)
					}
					continue
				}
				if err != nil {
					t.Fatalf("%s: %v", body, err)
				}
				if other, ok := seen[keyOf(found)]; ok {
					t.Fatalf("%s and %s have one key", body, other)
				}
				seen[keyOf(found)] = body
				ids[found.ID]++
			}
		}
	}
	// A header field, a placeholder and a member with the same text are different parts.
	request := withBody(`{"a":"a"}`)
	request.Header, request.Replace = http.Header{"X-A": {"a"}}, func(string) (string, error) { return "a", nil }
	for _, part := range []delivery.Source{{Kind: delivery.KindHeader, Header: "X-A"}, {Kind: delivery.KindValue, Text: "{a}"}, inBody("/a")} {
		found, err := delivery.Find([]delivery.Source{inParts(part)}, request, maxLength)
		if other, ok := seen[keyOf(found)]; ok || err != nil {
			t.Errorf("%s has the key of %s (%v)", part, other, err)
		}
		seen[keyOf(found)] = part.String()
	}
	if len(seen) != len(values)*len(values)*len(values)+2 || len(ids) > len(seen)*2/3 {
		t.Fatalf("%d keys of %d IDs: the values are wrong", len(seen), len(ids))
	}
}

func member(name, value string) string {
	if value == "" {
		return ""
	}
	return fmt.Sprintf("%q:%s", name, value)
}
