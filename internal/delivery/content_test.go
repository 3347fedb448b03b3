package delivery_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/canonicaljson"
	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

var contentSource = delivery.Source{Kind: delivery.KindContent}

// contentID returns the ID of a body without the excluded members.
func contentID(t *testing.T, body string, exclude ...string) string {
	t.Helper()
	request := withBody(body)
	request.Exclude = exclude
	found, err := delivery.Find([]delivery.Source{contentSource}, request, 1) // the limit is not for IDs of this kind
	if err != nil || found.Kind != "content" || found.Prefix != "content" {
		t.Fatalf("%q: got %+v, %v", body, found, err)
	}
	return found.ID
}

func TestContent(t *testing.T) {
	for name, c := range map[string]struct {
		a, b    string
		exclude []string
		same    bool
	}{
		"the same":                 {a: `{"a":1}`, b: `{"a":1}`, same: true},
		"white space":              {a: `{"a":1}`, b: "\n{ \"a\" : 1 }\t", same: true},
		"not JSON":                 {a: `a=1`, b: `a=2`},
		"not JSON, white space":    {a: `a=1`, b: `a=1 `},
		"doubled names":            {a: `{"a":1,"a":2}`, b: `{"a":2}`},
		"excluded":                 {a: `{"a":1,"t":1}`, b: `{"t":2,"a":1}`, exclude: []string{"/t"}, same: true},
		"excluded, but not JSON":   {a: `{"t":1`, b: `{"t":2`, exclude: []string{"/t"}},
		"other halves of a pair":   {a: `["\ud800"]`, b: `["\ud801"]`},
		"half of a pair, excluded": {a: `{"t":"\ud800","a":1}`, b: `{"a":1}`, exclude: []string{"/t"}, same: true},
		"a byte order mark":        {a: "\ufeff{\"t\":1}", b: `{}`, exclude: []string{"/t"}, same: true},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := contentID(t, c.a, c.exclude...), contentID(t, c.b, c.exclude...)
			if (a == b) != c.same {
				t.Fatalf("%s has %s and %s has %s; the same: want %v", c.a, a, c.b, b, c.same)
			}
		})
	}
}

// Every body except the empty one has an ID. White space around JSON does not change
// the ID.
func FuzzContent(f *testing.F) {
	for _, seed := range []string{
		`{"b":[1,2.50,1E1],"a":"\u0041"}`, `{"a":1,"a":2}`, "a=1", "", "\xff", `"\ud800"`, `[1e400]`, strings.Repeat("[", 10_001), `{"t":1,"a":{"t":[]}}`, "null", `-0`,
	} {
		f.Add([]byte(seed), "/t")
	}
	f.Add([]byte(`{"a":[{"t":1},2]}`), "/a/0")
	f.Add([]byte(`[1e700]`), "/0")
	f.Add([]byte(`{"t":1e700,"a":1e700}`), "/t")
	f.Fuzz(func(t *testing.T, body []byte, exclude string) {
		find := func(body string) (delivery.Found, error) {
			request := withBody(body)
			request.Exclude = []string{exclude}
			return delivery.Find([]delivery.Source{contentSource}, request, maxLength)
		}
		before := string(body)
		found, err := find(before)
		if (len(body) == 0) != errors.Is(err, delivery.ErrMissing) || (len(body) > 0) != (err == nil) {
			t.Fatalf("%q: got %+v, %v", body, found, err)
		}
		if string(body) != before {
			t.Fatalf("%q became %q", before, body)
		}
		if again, _ := find(before); again.ID != found.ID {
			t.Fatalf("%q: %s becomes %s", body, found.ID, again.ID)
		}
		doc, notJSON := canonicaljson.Parse(body, nil)
		if notJSON == nil {
			notJSON = doc.WriteCanonical(io.Discard, exclude)
		}
		if spaced, _ := find(before + " "); err == nil && delivery.CheckExclude(exclude) == nil && (spaced.ID == found.ID) != (notJSON == nil) {
			t.Fatalf("%q: %s becomes %s with a space behind it", body, found.ID, spaced.ID)
		}
	})
}
