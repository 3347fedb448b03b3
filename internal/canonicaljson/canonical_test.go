package canonicaljson_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/caddy-dedup/caddy-dedup/internal/canonicaljson"
)

// canonicalize returns the canonical form of a text, without what the pointers in exclude name.
func canonicalize(text []byte, exclude ...string) ([]byte, error) {
	doc, err := canonicaljson.Parse(text, nil)
	if err != nil {
		return nil, err
	}
	var form bytes.Buffer
	err = doc.WriteCanonical(&form, exclude...)
	return form.Bytes(), err
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
		`{"\ufb33":1,"\ud83d\ude02":2}`:      "{\"😂\":2,\"\ufb33\":1}", // by UTF-16 code units (RFC 8785, section 3.2.3)
		" null\n":                            `null`,
		`[]`:                                 `[]`,
		`[-0,-0.0,0e5,1e21,1E-7,1e-400]`:     `[0,0,0,1e+21,1e-7,0]`,
		`{"\u0061":"\/","b":"\u007f\u2028"}`: "{\"a\":\"/\",\"b\":\"\x7f\u2028\"}",
	} {
		if got, err := canonicalize([]byte(text)); err != nil || string(got) != want {
			t.Errorf("%s: got %s, %v; want %s", text, got, err, want)
		}
	}
	for _, invalid := range []string{
		``, ` `, `a`, `{`, `{}{}`, `[1,]`, `{"a":1,"a":2}`, `{"a":1,"\u0061":2}`, `"` + "\xff" + `"`, `"\ud800"`, `01`, `NaN`, `{'a':1}`,
		`1e400`, `[-1e309]`, `1.0e999999999999`,
	} {
		if got, err := canonicalize([]byte(invalid)); err == nil {
			t.Errorf("%q: got %s, want an error", invalid, got)
		}
	}
}

// With a recursive parser, or with one whose time is quadratic in the depth, this test would not end in
// time.
func TestDeepNestingIsAnError(t *testing.T) {
	nested := func(depth int) []byte {
		return []byte(strings.Repeat("[", depth) + strings.Repeat("]", depth))
	}
	if _, err := canonicalize(nested(10_000)); err != nil {
		t.Errorf("10,000 deep: %v", err)
	}
	for name, text := range map[string][]byte{
		"10,001 deep":         nested(10_001),
		"1 MiB of arrays":     nested(1 << 19),
		"1 MiB of openings":   []byte(strings.Repeat("[", 1<<20)),
		"1 MiB of objects":    []byte(strings.Repeat(`{"":`, 1<<18)),
		"1 MiB, other member": []byte(`{"a":1,"b":` + strings.Repeat(`[{"":`, 1<<18)),
	} {
		if _, err := canonicalize(text); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// The test vectors are those of an author of RFC 8785. For integers beyond 2^53, where this package
// deliberately differs from the RFC, TestCanonicalJSON has the expected results.
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
			if got, err := canonicalize(text); err != nil || string(got) != string(want) {
				t.Errorf("got  %s, %v\nwant %s", got, err, want)
			}
		})
	}
}

func TestCanonicalJSONWithoutExcludedMembers(t *testing.T) {
	const text = `{"c":[{"x":1,"y":2},{"x":3}],"a/b":1,"m~n":2,"":3,"d":{"e":{"f":4},"e2":5}}`
	for _, c := range []struct {
		exclude []string
		want    string
	}{
		{nil, `{"":3,"a/b":1,"c":[{"x":1,"y":2},{"x":3}],"d":{"e":{"f":4},"e2":5},"m~n":2}`},
		{[]string{"/none", "/c/2", "/c/-", "/c/00", "/c/+0", "/d/e/f/g", "/a~1b/0", "no pointer"},
			`{"":3,"a/b":1,"c":[{"x":1,"y":2},{"x":3}],"d":{"e":{"f":4},"e2":5},"m~n":2}`},
		{[]string{"/a~1b", "/m~0n", "/"}, `{"c":[{"x":1,"y":2},{"x":3}],"d":{"e":{"f":4},"e2":5}}`},
		{[]string{"/c/0/x", "/d/e"}, `{"":3,"a/b":1,"c":[{"y":2},{"x":3}],"d":{"e2":5},"m~n":2}`},
		{[]string{"/c/0", "/c/0/x"}, `{"":3,"a/b":1,"c":[{"x":3}],"d":{"e":{"f":4},"e2":5},"m~n":2}`},
		{[]string{"/c/1", "/c/0", "/d/e/f", "/d/e2"}, `{"":3,"a/b":1,"c":[],"d":{"e":{}},"m~n":2}`},
		{[]string{"/c/*"}, `{"":3,"a/b":1,"c":[],"d":{"e":{"f":4},"e2":5},"m~n":2}`},
		{[]string{"/c/*/x", "/d/*"}, `{"":3,"a/b":1,"c":[{"y":2},{}],"d":{},"m~n":2}`},
		{[]string{"/*/e"}, `{"":3,"a/b":1,"c":[{"x":1,"y":2},{"x":3}],"d":{"e2":5},"m~n":2}`},
		{[]string{"/*/*/x", "/m~0n/*", "/none/*"}, `{"":3,"a/b":1,"c":[{"y":2},{}],"d":{"e":{"f":4},"e2":5},"m~n":2}`},
		{[]string{"/c/*/*/*", "/d/e/*", "/c*"}, `{"":3,"a/b":1,"c":[{"x":1,"y":2},{"x":3}],"d":{"e":{},"e2":5},"m~n":2}`},
		{[]string{"/*"}, `{}`},
	} {
		if got, err := canonicalize([]byte(text), c.exclude...); err != nil || string(got) != c.want {
			t.Errorf("without %q: got %s, %v; want %s", c.exclude, got, err, c.want)
		}
	}
	doc, err := canonicaljson.Parse([]byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	part, _ := doc.Root().At("/d")
	for exclude, want := range map[string]string{"/d/e/f": `{"e":{},"e2":5}`, "/e": `{"e":{"f":4},"e2":5}`, "/*/e": `{"e2":5}`, "/d": ``} {
		var got strings.Builder
		if err := part.WriteCanonical(&got, exclude); err != nil || got.String() != want {
			t.Errorf("/d without %q: got %s, %v; want %s", exclude, got.String(), err, want)
		}
	}
	if got, err := canonicalize([]byte(text), ""); err == nil {
		t.Errorf("without the whole document: got %s", got)
	}
}

// The canonical form must be that of the library, with one exception: for a number that is too large
// for a double, the library writes the largest double, and this package returns an error.
func FuzzCanonicalJSON(f *testing.F) {
	for _, seed := range []string{
		`{"b":[1,2.50,1E1],"a":"\u0041"}`, `{"\u20ac":1,"\r":2,"\ufb33":3,"\ud83d\ude00":4,"\u0080":5,"\u00f6":6}`,
		`{"\ue000":1,"\ud800\udc00":2,"\uffff":3,"\udbff\udfff":4,"a\ue000":5,"a\ud800\udc00":6,"a":7}`,
		`[{"a":{"c":1,"b":{}}},[],[[]],"\"\\\b",true,null,-0.0,5e-324]`, `{"a":1}{`, `{"a":1,"a":1}`, "\"\xff\"", ` 1 `, ``,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		before := string(text)
		got, err := canonicalize(text)
		if string(text) != before {
			t.Fatalf("the text became %q", text)
		}
		want := jsontext.Value(bytes.Clone(text))
		libraryErr := want.Canonicalize(jsontext.CanonicalizeRawInts(false))
		if err != nil {
			if libraryErr == nil && !strings.Contains(err.Error(), "out of the range of a double") {
				t.Fatalf("%q: %v; but the library has %s", text, err, want)
			}
			return
		}
		if libraryErr != nil {
			t.Fatalf("%q: got %s; but the library returns %v", text, got, libraryErr)
		}
		if string(got) != string(want) {
			t.Fatalf("%q: got %s; the library has %s", text, got, want)
		}
		if again, err := canonicalize(got); err != nil || string(again) != string(got) {
			t.Fatalf("%q: the canonical form %s becomes %s, %v", text, got, again, err)
		}
	})
}

// The time for each byte must not grow with the length of the text, whatever the text contains.
func BenchmarkCanonicalJSON(b *testing.B) {
	for name, text := range map[string]func(size int) string{
		"nested unsorted objects": func(size int) string {
			depth := min(size/14, 10_000)
			return strings.Repeat(`{"b":`, depth) + `"` + strings.Repeat("x", size-14*depth) + `"` + strings.Repeat(`,"a":0}`, depth)
		},
		"nested arrays": func(size int) string {
			depth := min(size/4, 9_999)
			one := strings.Repeat("[", depth) + strings.Repeat("]", depth)
			return "[" + strings.Repeat(one+",", size/(2*depth+1)) + "0]"
		},
		"many members": func(size int) string {
			var b strings.Builder
			for i := 0; b.Len() < size; i++ {
				fmt.Fprintf(&b, `,"%08x":0`, uint32(i)*2654435761)
			}
			return "{" + b.String()[1:] + "}"
		},
		"many numbers":       func(size int) string { return "[" + strings.Repeat("1.5,", size/4) + "0]" },
		"one long string":    func(size int) string { return `"` + strings.Repeat("x", size) + `"` },
		"one escaped string": func(size int) string { return `"` + strings.Repeat(`\u0041`, size/6) + `"` },
		"one long number":    func(size int) string { return strings.Repeat("9", size) + ".5e-" + fmt.Sprint(size) },
		"too deep":           func(size int) string { return strings.Repeat("[", size) },
		"names alike":        func(size int) string { return alike(size) },
		"cut off at its end": func(size int) string { return "[" + strings.Repeat(`{"a":""},`, size/9) },
		"openings only":      func(size int) string { return strings.Repeat(`{"":`, size/4) },
	} {
		for size := 1 << 10; size <= 1<<20; size <<= 5 {
			b.Run(fmt.Sprintf("%s/%dKiB", name, size>>10), func(b *testing.B) {
				body := []byte(text(size))
				b.SetBytes(int64(len(body)))
				for b.Loop() {
					_, _ = canonicalize(body)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(body)), "ns/byte")
			})
		}
	}
}

// alike returns an object whose names differ only in their last bytes, in reverse order.
func alike(size int) string {
	var b strings.Builder
	for n := 0; b.Len() < size; n++ {
		fmt.Fprintf(&b, `,"%s%06d":0`, strings.Repeat("k", 200), 999_999-n)
	}
	return "{" + b.String()[1:] + "}"
}

// Of two members with the same name, the last one counts, where that is asked for.
func TestParseLast(t *testing.T) {
	for text, want := range map[string]string{
		`{"a":1,"b":2,"a":3}`:                 `{"a":3,"b":2}`,
		`{"a":{"x":1},"\u0061":[2,{"y":3}]}`:  `{"a":[2,{"y":3}]}`,
		`{"a":1,"a":2,"a":{"b":1,"b":2}}`:     `{"a":{"b":2}}`,
		`[{"a":1,"a":{}},{"b":1,"b":null}]`:   `[{"a":{}},{"b":null}]`,
		`{"c":1,"b":{"z":0},"a":[],"b":true}`: `{"a":[],"b":true,"c":1}`,
	} {
		doc, err := canonicaljson.ParseLast([]byte(text), nil)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got, err := doc.Root().Canonical(func(int) error { return nil }); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", text, got, err, want)
		}
		if _, err := canonicaljson.Parse([]byte(text), nil); err == nil {
			t.Errorf("Parse takes %s", text)
		}
	}
	doc, _ := canonicaljson.ParseLast([]byte(`{"a":{"b":1},"a":{"b":2,"b":3}}`), nil)
	if v, ok := doc.Root().At("/a/b"); !ok || v.Kind() != '0' {
		t.Errorf("/a/b: %v", ok)
	} else if text, _ := v.Text(); text != "3" {
		t.Errorf("/a/b is %s, want 3", text)
	}
}
