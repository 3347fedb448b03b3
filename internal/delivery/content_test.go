package delivery_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
		"the same":                  {a: `{"a":1}`, b: `{"a":1}`, same: true},
		"white space":               {a: `{"a":1}`, b: "\n{ \"a\" : 1 }\t", same: true},
		"order of members":          {a: `{"a":1,"b":[2]}`, b: `{"b":[2],"a":1}`, same: true},
		"escapes":                   {a: `["\u0061"]`, b: `["a"]`, same: true},
		"the way a number looks":    {a: `[1.0,1e2]`, b: `[1,100]`, same: true},
		"order of elements":         {a: `[1,2]`, b: `[2,1]`},
		"a string or a number":      {a: `["1"]`, b: `[1]`},
		"null or absent":            {a: `{"a":null}`, b: `{}`},
		"snowflakes":                {a: `[9007199254740993]`, b: `[9007199254740992]`},
		"out of range":              {a: `[1e400]`, b: `[1e401]`},
		"not JSON":                  {a: `a=1`, b: `a=2`},
		"not JSON, white space":     {a: `a=1`, b: `a=1 `},
		"doubled names":             {a: `{"a":1,"a":2}`, b: `{"a":2}`},
		"doubled names, space":      {a: `{"a":1,"a":2}`, b: `{"a":1, "a":2}`},
		"too deep":                  {a: strings.Repeat("[", 10_001) + strings.Repeat("]", 10_001), b: strings.Repeat("[", 10_001) + " " + strings.Repeat("]", 10_001)},
		"excluded":                  {a: `{"a":1,"t":1}`, b: `{"t":2,"a":1}`, exclude: []string{"/t"}, same: true},
		"excluded or absent":        {a: `{"a":1,"t":1}`, b: `{"a":1}`, exclude: []string{"/t"}, same: true},
		"excluded deep inside":      {a: `{"a":{"t":1,"x":1}}`, b: `{"a":{"t":2,"x":1}}`, exclude: []string{"/a/t"}, same: true},
		"beside the excluded":       {a: `{"a":1,"t":1}`, b: `{"a":2,"t":1}`, exclude: []string{"/t"}},
		"excluded elsewhere":        {a: `{"a":{"t":1}}`, b: `{"a":{"t":2}}`, exclude: []string{"/t"}},
		"excluded, but not JSON":    {a: `{"t":1`, b: `{"t":2`, exclude: []string{"/t"}},
		"half of a pair, space":     {a: `["\ud800"]`, b: `["\ud800" ]`},
		"other halves of a pair":    {a: `["\ud800"]`, b: `["\ud801"]`},
		"half of a pair, excluded":  {a: `{"t":"\ud800","a":1}`, b: `{"a":1}`, exclude: []string{"/t"}, same: true},
		"a byte order mark":         {a: "\ufeff{\"t\":1}", b: `{}`, exclude: []string{"/t"}, same: true},
		"excluded to nothing":       {a: `{"t":1}`, b: `{}`, exclude: []string{"/t"}, same: true},
		"nothing or an empty array": {a: `{}`, b: `[]`},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := contentID(t, c.a, c.exclude...), contentID(t, c.b, c.exclude...)
			if (a == b) != c.same {
				t.Fatalf("%s has %s and %s has %s; the same: want %v", c.a, a, c.b, b, c.same)
			}
		})
	}
}

// The same bytes are hashed twice: as a canonical form, and as they are. To exclude
// the whole document is an error, and so that body is hashed as it is. No
// configuration can do that.
func TestContentOfBytesIsNotThatOfJSON(t *testing.T) {
	if asJSON, asBytes := contentID(t, `{"a":1}`), contentID(t, `{"a":1}`, ""); asJSON == asBytes {
		t.Fatalf("both are %s", asJSON)
	}
}

func TestEmptyBodyIsNoContent(t *testing.T) {
	for name, request := range map[string]delivery.Request{"empty": withBody(""), "none": {}} {
		_, err := delivery.Find([]delivery.Source{contentSource}, request, maxLength)
		if !errors.Is(err, delivery.ErrMissing) || !strings.Contains(err.Error(), "the body is empty") {
			t.Errorf("%s: got %v; want ErrMissing", name, err)
		}
	}
}

// The test vectors of an author of RFC 8785. An input and its canonical form have the
// same ID, and two different inputs have different IDs.
func TestContentVectors(t *testing.T) {
	folder := os.Getenv("DEDUP_VECTORS")
	if folder == "" {
		t.Skip("DEDUP_VECTORS is not set; it names a folder with jcs/input and jcs/output of cyberphone/json-canonicalization")
	}
	inputs, err := filepath.Glob(filepath.Join(folder, "jcs", "input", "*.json"))
	if err != nil || len(inputs) == 0 {
		t.Fatalf("DEDUP_VECTORS=%s: no jcs/input/*.json there (%v)", folder, err)
	}
	seen := map[string]string{}
	for _, input := range inputs {
		name := filepath.Base(input)
		id := contentID(t, readFile(t, input))
		if other := contentID(t, readFile(t, filepath.Join(folder, "jcs", "output", name))); other != id {
			t.Errorf("%s: the input has %s, its canonical form %s", name, id, other)
		}
		if other, ok := seen[id]; ok {
			t.Errorf("%s and %s are one content", name, other)
		}
		seen[id] = name
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// isCanonicalJSON reports whether a body is hashed in its canonical form, and not as
// it is. A number that no double can hold is no obstacle where it is left out.
func isCanonicalJSON(body []byte, exclude ...string) bool {
	_, err := canonicaljson.Canonicalize(body, exclude...)
	return err == nil
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
		if spaced, _ := find(before + " "); err == nil && delivery.CheckExclude(exclude) == nil && isCanonicalJSON(body, exclude) != (spaced.ID == found.ID) {
			t.Fatalf("%q: %s becomes %s with a space behind it", body, found.ID, spaced.ID)
		}
	})
}

// The time for one byte must not grow with the length of the body, whatever is in
// it.
func BenchmarkFind(b *testing.B) {
	for name, body := range map[string]func(size int) string{
		"deep nesting": func(size int) string {
			depth := min(size/14, 9_990)
			return strings.Repeat(`{"id":`, depth) + `"` + strings.Repeat("x", size-14*depth) + `"` + strings.Repeat(`,"a":0}`, depth)
		},
		"many members": func(size int) string {
			var b strings.Builder
			for i := 0; b.Len() < size; i++ {
				fmt.Fprintf(&b, `"%08x":0,`, uint32(i)*2654435761)
			}
			return "{" + b.String() + `"id":"x"}`
		},
		"long strings": func(size int) string {
			return `[` + strings.Repeat(`"`+strings.Repeat("x", 500)+`",`, size/503) + `""]`
		},
		"a batch": func(size int) string {
			return `[` + strings.Repeat(`{"id":"0123456789"},`, size/20) + `{"id":"x"}]`
		},
		"bytes": func(size int) string { return strings.Repeat("a=1&", size/4) },
	} {
		for source, sources := range map[string][]delivery.Source{
			"content": {contentSource},
			"json":    {inBody("/id")},
			"batch":   {{Kind: delivery.KindBatch, Batch: delivery.List{Members: []string{"/id"}}}},
		} {
			for size := 1 << 10; size <= 1<<20; size <<= 5 {
				b.Run(fmt.Sprintf("%s/%s/%dKiB", source, name, size>>10), func(b *testing.B) {
					request := withBody(body(size))
					b.ReportAllocs()
					for b.Loop() {
						_, _ = delivery.Find(sources, request, maxLength)
					}
					b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(size), "ns/byte")
				})
			}
		}
	}
}
