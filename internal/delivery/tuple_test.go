package delivery_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

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
	if err != nil || found.Kind != "batch" || found.Prefix != "shop" || found.ID != "1" || found.Tuple == "" {
		t.Fatalf("got %+v, %v", found, err)
	}
	found, err = ask(inner, `{"outer":[{"x":[{"a":"1"},{"a":"2"}]},{"x":[],"y":[{"a":"3","b":"4"}]}]}`)
	if err != nil || found.ID != "1" {
		t.Fatalf("got %+v, %v", found, err)
	}
	if found, err := ask(two, `{"two":[{"a":"12","b":"2"}]}`); !errors.Is(err, delivery.ErrUnusable) || !strings.Contains(err.Error(), "has 2 bytes") {
		t.Errorf("a first ID over the limit: got %+v, %v; want ErrUnusable", found, err)
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
func TestBatchesDoNotCollide(t *testing.T) {
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
		if other, ok := bodies[found.Tuple]; ok && other != array {
			t.Fatalf("%s and %s have one key", array, other)
		}
		bodies[found.Tuple] = array
		spaced := strings.NewReplacer(",", " , ", "{", `{"other":[7],`).Replace(array)
		if again, err := delivery.Find(source, withBody(fmt.Sprintf(format, spaced)), maxLength); err != nil || again.Tuple != found.Tuple {
			t.Fatalf("%s has another key than %s (%v)", spaced, array, err)
		}
	}
	if len(bodies) < 400 {
		t.Fatalf("only %d bodies were tried", len(bodies))
	}
}

// An optional member is part of the ID where it is there, and its absence is too.
func TestOptionalMembersOfABatch(t *testing.T) {
	source := delivery.Source{Kind: delivery.KindBatch, Provider: "x", Batch: delivery.List{
		Array: "/all", Members: []string{"/id"}, Optional: []string{"/a", "/b"},
	}}
	same := [][]string{ // each line is one key
		{`[{"id":1}]`, `[{"id":1,"a":null,"b":""}]`, `[{"id":1,"a":{},"b":[]}]`, `[{"id":1,"c":"x"}]`},
		{`[{"id":1,"a":"x"}]`, `[{"a":"x","id":1,"b":null}]`},
		{`[{"id":1,"b":"x"}]`},
		{`[{"id":1,"a":"x","b":"x"}]`},
		{`[{"id":1,"a":1}]`},
		{`[{"id":1,"a":"1"}]`},
		{`[{"id":1},{"id":1,"a":"x"}]`},
		{`[{"id":1,"a":"x"},{"id":1}]`},
		{`[{"id":1,"a":"x","b":"1"}]`},
	}
	keys := map[string]int{}
	for n, bodies := range same {
		for _, body := range bodies {
			found, err := delivery.Find([]delivery.Source{source}, withBody(`{"all":`+body+`}`), maxLength)
			if err != nil {
				t.Fatalf("%s: %v", body, err)
			}
			if other, ok := keys[found.Tuple]; ok && other != n {
				t.Errorf("%s has the key of %s", body, same[other][0])
			} else if !ok && body != bodies[0] {
				t.Errorf("%s does not have the key of %s", body, bodies[0])
			}
			keys[found.Tuple] = n
		}
	}
}
