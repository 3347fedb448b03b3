package delivery_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/canonicaljson"
	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

func inBody(pointer string) delivery.Source {
	return delivery.Source{Kind: delivery.KindJSON, Pointer: pointer}
}

// withBody returns a request with this body.
func withBody(body string) delivery.Request {
	return delivery.Request{Body: func() ([]byte, error) { return []byte(body), nil }}
}

func TestJSONKeys(t *testing.T) {
	const text, number = "json", "json number"
	for name, c := range map[string]struct {
		body, pointer string
		kind, id      string
	}{
		"string":             {`{"id":"evt_1"}`, "/id", text, "evt_1"},
		"string of digits":   {`{"id":"7"}`, "/id", text, "7"},
		"escaped string":     {`{"id":"\u00fc\n\ud83d\ude00"}`, "/id", text, "ü\n😀"},
		"space":              {`{"id":" "}`, "/id", text, " "},
		"number":             {`{"id":7}`, "/id", number, "7"},
		"big integer":        {`{"id":9007199254740993}`, "/id", number, "9007199254740993"},
		"bigger integer":     {`{"id":123456789012345678901234567890}`, "/id", number, "123456789012345678901234567890"},
		"fraction":           {`{"id":1.50}`, "/id", number, "1.5"},
		"nested":             {`{"a":{"b":[{},{"id":"x"}]}}`, "/a/b/1/id", text, "x"},
		"the whole document": {`"x"`, "", text, "x"},
		"number, whole":      {` 5 `, "", number, "5"},
		"the longest":        {`{"id":"` + strings.Repeat("ü", 127) + `x"}`, "/id", text, strings.Repeat("ü", 127) + "x"},
	} {
		t.Run(name, func(t *testing.T) {
			found, err := delivery.Find([]delivery.Source{inBody(c.pointer)}, withBody(c.body), maxLength)
			if err != nil || found.Kind != c.kind || found.ID != c.id || found.Prefix != "json" {
				t.Fatalf("got %+v, %v; want kind %q and ID %q", found, err, c.kind, c.id)
			}
		})
	}
}

func TestJSONKeyErrors(t *testing.T) {
	missing, unusable := delivery.ErrMissing, delivery.ErrUnusable
	for name, c := range map[string]struct {
		body, reason string
		err          error
	}{
		"empty body":        {``, "the body is empty", missing},
		"not JSON":          {`id=7`, "not JSON at byte 0", missing},
		"cut off":           {`{"id":"a"`, "not JSON at byte 9", missing},
		"more behind it":    {`{"id":"a"}{}`, "more than one JSON value", missing},
		"doubled name":      {`{"id":"a","id":"a"}`, "not JSON at byte", missing},
		"bad UTF-8":         {"{\"id\":\"a\xff\"}", "not JSON at byte", missing},
		"half a surrogate":  {`{"id":"\ud800"}`, "/id: a string has an escape that is half of a surrogate pair", unusable},
		"too deep":          {`{"id":"a","x":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `}`, "not JSON with at most 10000 levels", missing},
		"a long number":     {`{"id":1` + strings.Repeat("1", 5_000) + `e-5}`, "a number that is too long", unusable},
		"absent":            {`{"ID":"a"}`, "/id is not in the body", missing},
		"not an object":     {`["id"]`, "/id is not in the body", missing},
		"null":              {`{"id":null}`, "neither a string nor a number", missing},
		"true":              {`{"id":true}`, "neither a string nor a number", unusable},
		"false":             {`{"id":false}`, "neither a string nor a number", unusable},
		"object":            {`{"id":{}}`, "neither a string nor a number", unusable},
		"array":             {`{"id":["a"]}`, "neither a string nor a number", unusable},
		"empty string":      {`{"id":""}`, "an empty string", missing},
		"too long":          {`{"id":"` + strings.Repeat("k", maxLength+1) + `"}`, "has 256 bytes", unusable},
		"too long a number": {`{"id":` + strings.Repeat("7", maxLength+1) + `}`, "has 256 bytes", unusable},
		"endless exponent":  {`{"id":1e99999999999}`, "exponent", unusable},
		"a large exponent":  {`{"id":1e-2000}`, "exponent", unusable},
	} {
		t.Run(name, func(t *testing.T) {
			found, err := delivery.Find([]delivery.Source{inBody("/id")}, withBody(c.body), maxLength)
			if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.reason) || !strings.Contains(err.Error(), "json /id") {
				t.Fatalf("got %+v, %v; want %v with %q", found, err, c.err, c.reason)
			}
			request := withBody(c.body)
			request.Header = http.Header{"X-Id": {"h"}}
			found, err = delivery.Find([]delivery.Source{inBody("/id"), {Kind: delivery.KindHeader, Header: "X-Id"}}, request, maxLength)
			if err != nil || found.ID != "h" {
				t.Fatalf("the next source gives %+v, %v", found, err)
			}
		})
	}
}

// All texts of a group are the same number, and different groups are different
// numbers.
func TestNumbersAreExact(t *testing.T) {
	ids := map[string]string{}
	for _, group := range [][]string{
		{"1", "1.0", "1e0", "1E+0", "10e-1", "0.1e1", "1.000e-0", "100e-2"},
		{"0", "-0", "0.0", "-0.00e5", "0e99"},
		{"-1", "-1.0", "-10e-1"},
		{"10", "1e1", "1.0E1"},
		{"0.1", "1e-1", "0.10", "10e-2"},
		{"0.01", "1e-2"}, {"12.5", "125e-1", "1.25e1"}, {"-12.5"}, {"1.25"}, {"0.00125", "125e-5"},
		{"9007199254740992", "9007199254740992.0"}, {"9007199254740993", "9007199254740993.0", "9.007199254740993e15"},
		{"0.1000000000000000055511151231257827"}, {"0.1000000000000000055511151231257828"},
		{"1e200", "1" + strings.Repeat("0", 200)}, {"1e201", "10e200"}, {"-1e200"}, {"1e-200", "0.1e-199"}, {"1e-201"}, {"1.5e200", "15e199"},
	} {
		first := ""
		for _, number := range group {
			found, err := delivery.Find([]delivery.Source{inBody("/id")}, withBody(`{"id":`+number+`}`), maxLength)
			if err != nil {
				t.Fatalf("%s: %v", number, err)
			}
			if first == "" {
				first = found.ID
				if other, ok := ids[first]; ok {
					t.Errorf("%s and %s are both %q", number, other, first)
				}
				ids[first] = number
			}
			if found.ID != first {
				t.Errorf("%s is %q; but %s is %q", number, found.ID, group[0], first)
			}
		}
	}
}

func TestBodyIsReadAtMostOnceAndOnlyIfNeeded(t *testing.T) {
	read := 0
	request := delivery.Request{
		Header: http.Header{"X-Id": {"h"}},
		Body: func() ([]byte, error) {
			read++
			return []byte(`{"b":"x"}`), nil
		},
	}
	header := delivery.Source{Kind: delivery.KindHeader, Header: "X-Id"}
	if found, err := delivery.Find([]delivery.Source{header, inBody("/b")}, request, maxLength); err != nil || found.ID != "h" || read != 0 {
		t.Fatalf("got %+v, %v, and the body was read %d times", found, err, read)
	}
	sources := []delivery.Source{inBody("/a"), inBody("/c/d"), {Kind: delivery.KindBatch, Batch: delivery.List{Members: []string{"/a"}}}, inBody("/b"), header}
	if found, err := delivery.Find(sources, request, maxLength); err != nil || found.ID != "x" || read != 1 {
		t.Fatalf("got %+v, %v, and the body was read %d times", found, err, read)
	}
	slack, _ := delivery.ProviderNamed("slack")
	request, read = request.Remember(), 0
	delivery.PassThrough([]delivery.Provider{slack, slack}, nil, request)
	if found, err := delivery.Find(sources, request, maxLength); err != nil || found.ID != "x" || read != 1 {
		t.Fatalf("got %+v, %v, and the body was read %d times", found, err, read)
	}
}

func TestBodyErrors(t *testing.T) {
	broken := errors.New("connection lost")
	header := delivery.Source{Kind: delivery.KindHeader, Header: "X-Id"}
	for _, bodyErr := range []error{delivery.ErrBodyTooLarge, broken, fmt.Errorf("reading: %w", delivery.ErrBodyTooLarge)} {
		for _, source := range []delivery.Source{
			inBody("/id"), {Kind: delivery.KindContent}, {Kind: delivery.KindBatch},
			{Kind: delivery.KindParts, Parts: []delivery.Source{header, {Kind: delivery.KindContent}}},
		} {
			request := delivery.Request{Header: http.Header{"X-Id": {"h"}}, Body: func() ([]byte, error) { return nil, bodyErr }}
			if !source.NeedsBody() {
				t.Errorf("%v needs no body", source)
			}
			if found, err := delivery.Find([]delivery.Source{source}, request, maxLength); err == nil || !errors.Is(bodyErr, err) || errors.Is(err, delivery.ErrMissing) {
				t.Errorf("%v: got %+v, %v; want %v", source, found, err, bodyErr)
			}
			// If the body is too large, a source that needs no body is still tried. If
			// the body could not be read, nothing more is tried.
			found, err := delivery.Find([]delivery.Source{source, header}, request, maxLength)
			if tooLarge := errors.Is(bodyErr, delivery.ErrBodyTooLarge); tooLarge && found.ID != "h" || tooLarge != (err == nil) {
				t.Errorf("%v before a header: got %+v, %v after %v", source, found, err, bodyErr)
			}
			if found, err := delivery.Find([]delivery.Source{header, source}, request, maxLength); err != nil || found.ID != "h" {
				t.Errorf("%v unneeded: got %+v, %v", source, found, err)
			}
		}
	}
	parts := delivery.Source{Kind: delivery.KindParts, Parts: []delivery.Source{header, {Kind: delivery.KindContent}}}
	_, err := delivery.Find([]delivery.Source{parts}, delivery.Request{Body: func() ([]byte, error) { return nil, delivery.ErrBodyTooLarge }}, maxLength)
	if !errors.Is(err, delivery.ErrMissing) {
		t.Errorf("with the first part absent: got %v; want ErrMissing", err)
	}
}

func TestValueKeys(t *testing.T) {
	value := []delivery.Source{{Kind: delivery.KindValue, Text: "{a}-{b}"}}
	for name, c := range map[string]struct {
		replaced, id, reason string
	}{
		"text":        {"x-y", "x-y", ""},
		"any UTF-8":   {"ü\x00\n", "ü\x00\n", ""},
		"empty":       {"", "", "it is empty"},
		"not UTF-8":   {"a\xff", "", "not UTF-8"},
		"the longest": {strings.Repeat("k", maxLength), strings.Repeat("k", maxLength), ""},
		"too long":    {strings.Repeat("k", maxLength+1), "", "has 256 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			asked := ""
			request := delivery.Request{Replace: func(text string) (string, error) { asked = text; return c.replaced, nil }}
			found, err := delivery.Find(value, request, maxLength)
			if asked != "{a}-{b}" {
				t.Errorf("asked to replace %q", asked)
			}
			if c.reason != "" {
				if errors.Is(err, delivery.ErrMissing) != (c.replaced == "") || errors.Is(err, delivery.ErrUnusable) != (c.replaced != "") ||
					!strings.Contains(err.Error(), c.reason) {
					t.Fatalf("got %+v, %v; want %q", found, err, c.reason)
				}
			} else if err != nil || found.ID != c.id || found.Kind != "value" || found.Prefix != "value" {
				t.Fatalf("got %+v, %v; want the ID %q", found, err, c.id)
			}
		})
	}
	if _, err := delivery.Find(value, delivery.Request{}, maxLength); !errors.Is(err, delivery.ErrMissing) {
		t.Errorf("with nothing to replace placeholders: got %v; want ErrMissing", err)
	}
}

// The text of a member, and why it is no part of a key or a scope.
func TestMembers(t *testing.T) {
	for body, c := range map[string]struct{ pointer, text, reason string }{
		`{"a":"x\u00fc\n\""}`:       {"/a", "xü\n\"", ""},
		`{"a":""}`:                  {"/a", "", ""},
		`{"a":1.0}`:                 {"/a", "1.0", ""},
		`{"a":true}`:                {"/a", "true", ""},
		`{"a":null}`:                {"/a", "", ""},
		`{"b":1}`:                   {"/a", "", ""},
		``:                          {"/a", "", ""},
		"\ufeff{\"a\":\"x\"}":       {"/a", "x", ""},
		`{"a":{"c": 1.0, "b": []}}`: {"/a", `{"b":[],"c":1}`, "/a: it is an object or an array"},
		`{"a":[1e999]}`:             {"/a", "", "/a: number 1e999 is out of the range"},
		`{"a":"\ud83d"}`:            {"/a", "", "/a: a string has an escape that is half"},
		`{"a":1,"a":1}`:             {"/a", "", "not JSON at byte"},
		"{\"a\":\"\xff\"}":          {"/a", "", "not JSON at byte"},
		`a=x`:                       {"/a", "", "not JSON at byte"},
	} {
		text, err := withBody(body).Remember().Member(c.pointer)
		if text != c.text || (err == nil) != (c.reason == "") || err != nil && !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%s at %q: got %q, %v; want %q, %q", body, c.pointer, text, err, c.text, c.reason)
		}
	}
}

// Whatever the body is, the key is found or missing, and a second look at the same
// body says the same.
func FuzzJSONKey(f *testing.F) {
	for _, seed := range []string{
		`{"id":"a"}`, `{"id":1.0}`, `{"id":-0e5}`, `{"id":123e-7}`, `{"id":null}`, `{"data":[{"id":"x"}]}`, `{"id":"a","id":"b"}`, `[`, ``, "\"\xff\"",
		`{"id":1e64}`, `{"id":0.0000001}`, `{"id":"\ud83d\ude00"}`, strings.Repeat("[", 100),
	} {
		f.Add([]byte(seed), "/id")
	}
	f.Add([]byte(`{"data":[{"id":"x"}]}`), "/data/0/id")
	f.Add([]byte(`{"a/b":{"~":1}}`), "/a~1b/~0")
	f.Add([]byte(`7`), "")
	f.Fuzz(func(t *testing.T, body []byte, pointer string) {
		before := string(body)
		find := func(body string) (delivery.Found, error) {
			return delivery.Find([]delivery.Source{inBody(pointer)}, withBody(body), maxLength)
		}
		found, err := find(before)
		text, noMember := withBody(before).Remember().Member(pointer)
		if err == nil && (noMember != nil || text == "" || found.Kind == "json" && text != found.ID) {
			t.Fatalf("%q at %q: the key is %+v, and the member %q, %v", body, pointer, found, text, noMember)
		}
		if err != nil {
			if !errors.Is(err, delivery.ErrMissing) && !errors.Is(err, delivery.ErrUnusable) {
				t.Fatalf("%q at %q: %v", body, pointer, err)
			}
			return
		}
		if found.ID == "" || len(found.ID) > maxLength || canonicaljson.CheckPointer(pointer) != nil {
			t.Fatalf("%q at %q: found %+v", body, pointer, found)
		}
		if found.Kind == "json number" { // the ID is a number in JSON too, and its ID is the same
			again, err := delivery.Find([]delivery.Source{inBody("")}, withBody(found.ID), maxLength)
			if err != nil || again.ID != found.ID || again.Kind != found.Kind {
				t.Fatalf("%q at %q: %q becomes %+v, %v", body, pointer, found.ID, again, err)
			}
		}
		if again, err := find(" " + before + "\n"); err != nil || again.ID != found.ID || again.Kind != found.Kind {
			t.Fatalf("%q at %q: %+v becomes %+v, %v", body, pointer, found, again, err)
		}
	})
}
