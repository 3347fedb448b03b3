package idempotency_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

const (
	none   = idempotency.FingerprintNone
	byBody = idempotency.FingerprintBody
	byJSON = idempotency.FingerprintJSON
)

func TestFingerprintCoversPathQueryAndBody(t *testing.T) {
	type request struct{ path, query, body string }
	for name, c := range map[string]struct {
		a, b request
		body bool // the same by the body's bytes
		json bool // the same by its canonical form
	}{
		"the same":                 {request{"/a", "b=1", "c"}, request{"/a", "b=1", "c"}, true, true},
		"another path":             {request{"/a", "", "c"}, request{"/b", "", "c"}, false, false},
		"another query":            {request{"/a", "b=1", "c"}, request{"/a", "b=2", "c"}, false, false},
		"another order of queries": {request{"/a", "b=1&c=1", ""}, request{"/a", "c=1&b=1", ""}, false, false},
		"another body":             {request{"/a", "", "c"}, request{"/a", "", "d"}, false, false},
		"no body":                  {request{"/a", "", ""}, request{"/a", "", "{}"}, false, false},
		"path or query":            {request{"/a", "b", ""}, request{"/ab", "", ""}, false, false},
		"query or body":            {request{"/a", "b", ""}, request{"/a", "", "b"}, false, false},
		"white space in JSON":      {request{"/a", "", `{"b":1}`}, request{"/a", "", "{ \"b\" : 1 }\n"}, false, true},
		"order of members":         {request{"/a", "", `{"b":1,"c":2}`}, request{"/a", "", `{"c":2,"b":1}`}, false, true},
		"order of elements":        {request{"/a", "", `[1,2]`}, request{"/a", "", `[2,1]`}, false, false},
		"escapes in JSON":          {request{"/a", "", `["\u0061\/"]`}, request{"/a", "", `["a/"]`}, false, true},
		"a fraction of nothing":    {request{"/a", "", `[1.50]`}, request{"/a", "", `[1.5]`}, false, true},
		"a number or its text":     {request{"/a", "", `[1]`}, request{"/a", "", `["1"]`}, false, false},
		"null or no member":        {request{"/a", "", `{"b":null}`}, request{"/a", "", `{}`}, false, false},
		"not JSON, white space":    {request{"/a", "", "a b"}, request{"/a", "", "a  b"}, false, false},
		"cut JSON, white space":    {request{"/a", "", `{"b":1`}, request{"/a", "", `{ "b":1`}, false, false},
		"doubled members":          {request{"/a", "", `{"b":1,"b":2}`}, request{"/a", "", `{"b":2}`}, false, false},
		"beyond exact doubles": {request{"/a", "", `{"id":9007199254740993}`},
			request{"/a", "", `{"id":9007199254740992}`}, false, false},
		"snowflakes": {request{"/a", "", `{"id":175928847299117063}`}, request{"/a", "", `{"id":175928847299117062}`}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			for kind, want := range map[idempotency.FingerprintKind]bool{byBody: c.body, byJSON: c.json, none: true} {
				a := idempotency.Fingerprint(kind, c.a.path, c.a.query, []byte(c.a.body))
				b := idempotency.Fingerprint(kind, c.b.path, c.b.query, []byte(c.b.body))
				if (a == b) != want {
					t.Errorf("%s: %+v has %s and %+v has %s; the same: want %v", kind, c.a, a, c.b, b, want)
				}
			}
		})
	}
}

func TestFingerprintNamesItsKind(t *testing.T) {
	for _, kind := range []idempotency.FingerprintKind{none, ""} {
		if got := idempotency.Fingerprint(kind, "/a", "", []byte("b")); got != "" {
			t.Errorf("kind %q has the fingerprint %q", kind, got)
		}
	}
	for _, kind := range []idempotency.FingerprintKind{byBody, byJSON} {
		got := idempotency.Fingerprint(kind, "/a", "", []byte(`{}`))
		label, hash, _ := strings.Cut(got, ":")
		if label != string(kind) || len(hash) != 64 {
			t.Errorf("kind %q has the fingerprint %q", kind, got)
		}
	}
}

func TestFingerprintLeavesTheBodyAsItIs(t *testing.T) {
	const text = `{ "b": 1.0, "a": 2 }`
	body := []byte(text)
	idempotency.Fingerprint(byJSON, "/a", "", body)
	if string(body) != text {
		t.Fatalf("the body became %s", body)
	}
}

func TestCanonicalJSON(t *testing.T) {
	for text, want := range map[string]string{
		`{"b":[1, 2.50 ,1E1], "a":"\u0041"}`: `{"a":"A","b":[1,2.5,10]}`,
		`9007199254740993`:                   `9007199254740993`,
		`-9007199254740993`:                  `-9007199254740993`,
		`123456789012345678901234567890`:     `123456789012345678901234567890`,
		`9007199254740993.0`:                 `9007199254740992`,
		`"\ud83d\ude02"`:                     `"😂"`,
		`{"\u20ac":1,"\r":2,"1":3}`:          "{\"\\r\":2,\"1\":3,\"€\":1}",
		" null\n":                            `null`,
		`[]`:                                 `[]`,
	} {
		if got, err := idempotency.CanonicalJSON([]byte(text)); err != nil || string(got) != want {
			t.Errorf("%s: got %s, %v; want %s", text, got, err, want)
		}
	}
	for _, wrong := range []string{
		``, ` `, `a`, `{`, `{}{}`, `[1,]`, `{"a":1,"a":2}`, `{"a":1,"\u0061":2}`, `"` + "\xff" + `"`, `"\ud800"`, `01`, `NaN`, `{'a':1}`,
	} {
		if got, err := idempotency.CanonicalJSON([]byte(wrong)); err == nil {
			t.Errorf("%q is the JSON text %s", wrong, got)
		}
	}
}

// A parser that recurses, or that is quadratic in the depth, does not come back
// from this within the test's time.
func TestDeepNestingIsAnError(t *testing.T) {
	nested := func(depth int) []byte {
		return []byte(strings.Repeat("[", depth) + strings.Repeat("]", depth))
	}
	if _, err := idempotency.CanonicalJSON(nested(10_000)); err != nil {
		t.Errorf("10,000 deep: %v", err)
	}
	for name, text := range map[string][]byte{
		"10,001 deep":         nested(10_001),
		"1 MiB of arrays":     nested(1 << 19),
		"1 MiB of openings":   []byte(strings.Repeat("[", 1<<20)),
		"1 MiB of objects":    []byte(strings.Repeat(`{"":`, 1<<18)),
		"1 MiB, other member": []byte(`{"a":1,"b":` + strings.Repeat(`[{"":`, 1<<18)),
	} {
		if _, err := idempotency.CanonicalJSON(text); err == nil {
			t.Errorf("%s is no error", name)
		}
		if idempotency.Fingerprint(byJSON, "/", "", text) == "" {
			t.Errorf("%s has no fingerprint", name)
		}
	}
}

// The vectors of RFC 8785's author: each input has exactly its output. Our one
// deviation is checked above: integers beyond 2^53 keep their digits.
func TestCanonicalJSONVectors(t *testing.T) {
	folder := os.Getenv("DEDUP_VECTORS")
	if folder == "" {
		t.Skip("DEDUP_VECTORS is not set; it names a folder with jcs/input and jcs/output of cyberphone/json-canonicalization")
	}
	inputs, err := filepath.Glob(filepath.Join(folder, "jcs", "input", "*.json"))
	if err != nil || len(inputs) == 0 {
		t.Fatalf("DEDUP_VECTORS=%s: no jcs/input/*.json there (%v)", folder, err)
	}
	for _, input := range inputs {
		t.Run(filepath.Base(input), func(t *testing.T) {
			text, err := os.ReadFile(input)
			if err != nil {
				t.Fatal(err)
			}
			want, err := os.ReadFile(filepath.Join(folder, "jcs", "output", filepath.Base(input)))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := idempotency.CanonicalJSON(text); err != nil || string(got) != string(want) {
				t.Errorf("got  %s, %v\nwant %s", got, err, want)
			}
		})
	}
}
