package delivery_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

func inParts(parts ...delivery.Source) delivery.Source {
	return delivery.Source{Kind: delivery.KindParts, Prefix: "orders", Parts: parts}
}

func TestParts(t *testing.T) {
	sources := []delivery.Source{inParts(
		delivery.Source{Kind: delivery.KindHeader, Header: "X-Shop"}, inBody("/id"),
		delivery.Source{Kind: delivery.KindValue, Text: "{q}"}, contentSource,
	)}
	ask := func(shop, q, body string) (delivery.Found, error) {
		request := withBody(body)
		request.Replace = func(string) string { return q }
		if shop != "absent" {
			request.Header = http.Header{"X-Shop": {shop}}
		}
		return delivery.Find(sources, request, maxLength)
	}
	found, err := ask("s1", "x", `{"id":"7"}`)
	if err != nil || found.Kind != "parts" || found.Prefix != "orders" || !strings.HasPrefix(found.ID, "4 parts, first s1, sha256:") {
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
		"no header":   {"absent", "x", `{"id":"7"}`, "part 1, header X-Shop: it is not there"},
		"no member":   {"s1", "x", `{}`, "part 2, json /id: /id is not in the body"},
		"not JSON":    {"s1", "x", `id=7`, "part 2, json /id: the body is not JSON"},
		"empty value": {"s1", "", `{"id":"7"}`, "part 3, value {q}: it is empty"},
		"long member": {"s1", "x", `{"id":"` + strings.Repeat("k", 256) + `"}`, "has 256 bytes"},
		"no body":     {"s1", "x", ``, "the body is empty"},
	} {
		if found, err := ask(c.shop, c.q, c.body); !errors.Is(err, delivery.ErrMissing) || !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%s: got %+v, %v; want ErrMissing with %q", name, found, err, c.reason)
		}
	}
	var invalid *delivery.InvalidError
	if found, err := ask("\x7f", "x", `{"id":"7"}`); !errors.As(err, &invalid) || invalid.Header != "X-Shop" {
		t.Errorf("an invalid part: got %+v, %v; want an InvalidError", found, err)
	}
}

// The ID that operators read is short and valid UTF-8, even if the first part is
// long.
func TestPartsShowTheBeginningOfTheFirst(t *testing.T) {
	found, err := delivery.Find([]delivery.Source{inParts(inBody("/id"))}, withBody(`{"id":"x`+strings.Repeat("ü", 100)+`"}`), maxLength)
	want := "1 parts, first x" + strings.Repeat("ü", 31) + "…, sha256:"
	if err != nil || !strings.HasPrefix(found.ID, want) || len(found.ID) != len(want)+64 {
		t.Fatalf("got %q, %v; want %q and a hash", found.ID, err, want)
	}
}

// two is a list whose elements have two IDs. inner has lists in its elements.
var (
	two   = delivery.List{Array: "/two", Members: []string{"/a", "/b"}}
	inner = delivery.List{Array: "/outer", Lists: []delivery.List{{Array: "/x", Members: []string{"/a"}}, {Array: "/y", Members: []string{"/a", "/b"}}}}
)

func TestBatch(t *testing.T) {
	ask := func(list delivery.List, body string) (delivery.Found, error) {
		return delivery.Find([]delivery.Source{{Kind: delivery.KindBatch, Provider: "shop", Batch: list}}, withBody(body), 1)
	}
	found, err := ask(two, `{"two":[{"a":"1","b":"2"},{"a":"3","b":4,"c":true}]}`)
	if err != nil || found.Kind != "batch" || found.Prefix != "shop" || !strings.HasPrefix(found.ID, "2 ids, first 1, sha256:") {
		t.Fatalf("got %+v, %v", found, err)
	}
	found, err = ask(inner, `{"outer":[{"x":[{"a":"1"},{"a":"2"}]},{"x":[],"y":[{"a":"3","b":"4"}]}]}`)
	if err != nil || !strings.HasPrefix(found.ID, "3 ids, first 1, sha256:") {
		t.Fatalf("got %+v, %v", found, err)
	}
	for body, reason := range map[string]string{
		`{}`:                                    `no array "/two"`,
		`{"two":{}}`:                            `no array "/two"`,
		`{"two":[]}`:                            `no array "/two"`,
		`{"two":null}`:                          `no array "/two"`,
		`{"two":[{"a":"1","b":"2"},{"a":"3"}]}`: `element 1 of "/two": /b is not in the body`,
		`{"two":[{"a":"1","b":""}]}`:            `element 0 of "/two": /b is an empty string`,
		`{"two":[{"a":"1","b":"2"},7]}`:         `element 1 of "/two": /a is not in the body`,
		`{"two":[{"a":"1","b":"2"},{"a":{},"b":1}]`: "not JSON",
		`{"two":[{"a":null,"b":"2"}]}`:              "neither a string nor a number",
	} {
		if found, err := ask(two, body); !errors.Is(err, delivery.ErrMissing) || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: got %+v, %v; want ErrMissing with %q", body, found, err, reason)
		}
	}
	for _, body := range []string{
		`{"outer":[{}]}`, `{"outer":[{"x":[],"y":[]}]}`, `{"outer":[{"x":[{"a":"1"}]},{"z":[{"a":"1"}]}]}`,
		`{"outer":[{"x":[{"a":"1"}],"y":[{"a":"1"}]}]}`, `{"outer":[{"x":[{"a":"1"},{}]}]}`,
	} {
		if found, err := ask(inner, body); !errors.Is(err, delivery.ErrMissing) {
			t.Errorf("%s: got %+v, %v; want ErrMissing: an element without an ID would be lost", body, found, err)
		}
	}
}

// This test makes all bodies of a small grammar. Two bodies have the same key exactly
// if they have the same IDs in the same places.
func TestBatchesNeverMeet(t *testing.T) {
	ids := []string{`"a"`, `"b"`, `"ab"`, `1`, `"1"`}
	var pairs []string
	for _, a := range ids {
		for _, b := range ids {
			pairs = append(pairs, `{"a":`+a+`,"b":`+b+`}`)
		}
	}
	flat := append(lists(pairs[:9], 3), lists(pairs, 2)...)
	xs, ys := lists([]string{`{"a":"a"}`, `{"a":"b"}`}, 2), lists([]string{`{"a":"a","b":"b"}`, `{"a":"b","b":"a"}`}, 1)
	var elements []string
	for _, x := range append(xs, "[]") {
		for _, y := range append(ys, "[]") {
			if x != "[]" || y != "[]" {
				elements = append(elements, `{"x":`+x+`,"y":`+y+`}`)
			}
		}
	}
	neverMeet(t, two, `{"two":%s}`, flat)
	neverMeet(t, inner, `{"outer":%s}`, lists(elements, 2))
}

// lists returns all arrays of these elements, from 1 element to longest.
func lists(elements []string, longest int) []string {
	all, last := []string{}, []string{""}
	for range longest {
		var next []string
		for _, list := range last {
			for _, element := range elements {
				next = append(next, list+","+element)
			}
		}
		for _, list := range next {
			all = append(all, "["+list[1:]+"]")
		}
		last = next
	}
	return all
}

func neverMeet(t *testing.T, list delivery.List, format string, arrays []string) {
	t.Helper()
	source := []delivery.Source{{Kind: delivery.KindBatch, Provider: "shop", Batch: list}}
	bodies := map[string]string{}
	for _, array := range arrays {
		found, err := delivery.Find(source, withBody(fmt.Sprintf(format, array)), maxLength)
		if err != nil {
			t.Fatalf("%s: %v", array, err)
		}
		if other, ok := bodies[found.ID]; ok && other != array {
			t.Fatalf("%s and %s have one key", array, other)
		}
		bodies[found.ID] = array
		spaced := strings.NewReplacer(",", " , ", "{", `{"other":[7],`).Replace(array)
		if again, err := delivery.Find(source, withBody(fmt.Sprintf(format, spaced)), maxLength); err != nil || again.ID != found.ID {
			t.Fatalf("%s has another key than %s (%v)", spaced, array, err)
		}
	}
	if len(bodies) < 400 {
		t.Fatalf("only %d bodies were tried", len(bodies))
	}
}

// The same for parts: a text in one part is never read as part of the next one, and
// sources with different numbers of parts never have the same ID.
func TestPartsNeverMeet(t *testing.T) {
	texts := []string{"a", "b", "ab", "aba", "1", "json", "ajson", "jsonb"} // some are kinds, because a kind is hashed before each ID
	seen := map[string]string{}
	add := func(what string, source delivery.Source, request delivery.Request) {
		found, err := delivery.Find([]delivery.Source{source}, request, maxLength)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if other, ok := seen[keyOf(found).String()]; ok {
			t.Fatalf("%s and %s have one key", what, other)
		}
		seen[keyOf(found).String()] = what
		if again, err := delivery.Find([]delivery.Source{source}, request, maxLength); err != nil || keyOf(again) != keyOf(found) {
			t.Fatalf("%s has two keys (%v)", what, err)
		}
	}
	header := delivery.Source{Kind: delivery.KindHeader, Header: "X-A"}
	value := delivery.Source{Kind: delivery.KindValue, Text: "{a}"}
	for _, a := range texts {
		request := withBody(fmt.Sprintf(`{"a":%q}`, a))
		request.Header = http.Header{"X-A": {a}}
		request.Replace = func(string) string { return a }
		add("header "+a, inParts(header), request)
		add("value "+a, inParts(value), request)
		add("json "+a, inParts(inBody("/a")), request)
		add("the header's own "+a, header, request)
		for _, b := range texts {
			for _, c := range append(texts, "") {
				body := fmt.Sprintf(`{"a":%q,"b":%q,"c":%q}`, a, b, c)
				parts := []delivery.Source{inBody("/a"), inBody("/b")}
				if c != "" {
					parts = append(parts, inBody("/c"))
				}
				add(body, inParts(parts...), withBody(body))
				request := withBody(body)
				request.Header = http.Header{"X-A": {a}}
				parts[0] = header
				add("header and "+body, inParts(parts...), request)
			}
		}
	}
	if len(seen) < 1000 {
		t.Fatalf("only %d were tried", len(seen))
	}
}
