package canonicaljson_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/canonicaljson"
)

// The examples of RFC 6901, section 5.
const pointerExample = `{
	"foo": ["bar", "baz"],
	"": 0,
	"a/b": 1,
	"c%d": 2,
	"e^f": 3,
	"g|h": 4,
	"i\\j": 5,
	"k\"l": 6,
	" ": 7,
	"m~n": 8
}`

func textOf(t *testing.T, v canonicaljson.Value) string {
	t.Helper()
	text, err := v.Text()
	if err != nil {
		t.Error(err)
	}
	return text
}

func TestRFC6901Pointers(t *testing.T) {
	doc, err := canonicaljson.Parse([]byte(pointerExample), nil)
	if err != nil {
		t.Fatal(err)
	}
	for pointer, want := range map[string]string{
		"/foo/0": "bar", "/foo/1": "baz", "/": "0", "/a~1b": "1", "/c%d": "2", "/e^f": "3",
		"/g|h": "4", `/i\j`: "5", `/k"l`: "6", "/ ": "7", "/m~0n": "8",
	} {
		if v, ok := doc.Root().At(pointer); !ok || textOf(t, v) != want {
			t.Errorf("%q: got %q, %v; want %q", pointer, textOf(t, v), ok, want)
		}
	}
	for pointer, kind := range map[string]byte{"": '{', "/foo": '['} {
		if v, ok := doc.Root().At(pointer); !ok || byte(v.Kind()) != kind || textOf(t, v) != "" {
			t.Errorf("%q: got %v %q, %v; want a %c", pointer, v.Kind(), textOf(t, v), ok, kind)
		}
	}
	for _, pointer := range []string{
		"/Foo", "/foo/2", "/foo/-", "/foo/00", "/foo/01", "/foo/+1", "/foo/-1", "/foo/1.0", "/foo/", "/foo/99999999999999999999",
		"/foo/0/x", "/a/b", "/m~n", "/m~01n", "//", "foo", "#/foo", "/~", "/foo/~2", "/\xff",
	} {
		if v, ok := doc.Root().At(pointer); ok {
			t.Errorf("%q names %q", pointer, textOf(t, v))
		}
	}
}

// ~01 stands for the name ~1. If ~0 were unescaped first, the result would be unescaped again, to a
// slash (RFC 6901, section 4).
func TestPointerUnescapesInOrder(t *testing.T) {
	doc, err := canonicaljson.Parse([]byte(`{"~1":"tilde","/":"slash","~01":"both","\u0061":"escaped"}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	for pointer, want := range map[string]string{"/~01": "tilde", "/~1": "slash", "/~001": "both", "/a": "escaped"} {
		if v, ok := doc.Root().At(pointer); !ok || textOf(t, v) != want {
			t.Errorf("%q: got %q, %v; want %q", pointer, textOf(t, v), ok, want)
		}
	}
}

func TestCheckPointer(t *testing.T) {
	for _, valid := range []string{"", "/", "/a", "/a/0/b", "/~0~1", "/ü", "/-", "//"} {
		if err := canonicaljson.CheckPointer(valid); err != nil {
			t.Errorf("%q: %v", valid, err)
		}
	}
	for invalid, hint := range map[string]string{
		"id": "start with a slash", "$.id": "start with a slash", "#/id": "start with a slash",
		"/a~": "~ in a name as ~0", "/a~2b": "~ in a name as ~0", "/\xff": "UTF-8",
	} {
		err := canonicaljson.CheckPointer(invalid)
		if err == nil || !strings.Contains(err.Error(), hint) || !strings.Contains(err.Error(), fmt.Sprintf("%q", invalid)) {
			t.Errorf("%q: got %v; want an error that names it, with %q", invalid, err, hint)
		}
	}
}

func TestElementsAndText(t *testing.T) {
	doc, err := canonicaljson.Parse([]byte(` [ "\u00e4\n" , 1.50 , {"a":[1,[2]]} , [ ] , true , null , {} ] `), nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for v := range doc.Root().Elements() {
		got = append(got, fmt.Sprintf("%c%s", byte(v.Kind()), textOf(t, v)))
		for range v.Elements() {
			t.Errorf("%v has elements", v.Kind())
		}
	}
	if want := `["\"ä\n" "01.50" "{" "[" "ttrue" "nnull" "{"]`; fmt.Sprintf("%q", got) != want {
		t.Errorf("got  %q\nwant %s", got, want)
	}
	inner, _ := doc.Root().At("/2/a/1/0")
	if got := textOf(t, inner); got != "2" {
		t.Errorf("got %q", got)
	}
}

// A string with half of a surrogate pair cannot be read, because two different halves must not become
// the same text. The rest of the text can be read.
func TestHalfOfASurrogatePair(t *testing.T) {
	for _, half := range []string{`\ud83d`, `cut \uD83D`, `\ude00`, `\ude00\ud83d`, `\ud83d\u0041`, `\ud83d\n`, `\ud83d\ud83d\ude00`} {
		doc, err := canonicaljson.Parse([]byte(`{"`+half+`":{"id":1},"id":"evt","t":"`+half+`","last":"ok"}`), nil)
		if err != nil {
			t.Errorf("%s: %v", half, err)
			continue
		}
		for pointer, want := range map[string]string{"/id": "evt", "/last": "ok"} {
			if v, ok := doc.Root().At(pointer); !ok || textOf(t, v) != want {
				t.Errorf("%s: %s is not %q", half, pointer, want)
			}
		}
		v, ok := doc.Root().At("/t")
		if text, err := v.Text(); !ok || !errors.Is(err, canonicaljson.ErrHalfPair) || text != "" {
			t.Errorf("%s: got %q, %v; want ErrHalfPair", half, text, err)
		}
		if v, ok := doc.Root().At("/\ufffd"); ok {
			t.Errorf("%s: a name is found as %q", half, textOf(t, v))
		}
		if err := doc.WriteCanonical(io.Discard); !errors.Is(err, canonicaljson.ErrHalfPair) {
			t.Errorf("%s: the canonical form: %v, want ErrHalfPair", half, err)
		}
		form, err := canonicalize([]byte(`{"t":"`+half+`","a":"\u0041"}`), "/t")
		if err != nil || string(form) != `{"a":"A"}` {
			t.Errorf("%s: excluded: got %s, %v", half, form, err)
		}
	}
}

// A byte order mark at the beginning, which some Windows programs write, is not part of the text.
func TestByteOrderMark(t *testing.T) {
	const mark = "\ufeff"
	if form, err := canonicalize([]byte(mark+` {"t":1,"a":"`+mark+`"}`), "/t"); err != nil || string(form) != `{"a":"`+mark+`"}` {
		t.Errorf("got %q, %v", form, err)
	}
	for _, invalid := range []string{mark, mark + mark + "{}", " " + mark + "{}", "{}" + mark, "{" + mark + "}"} {
		if _, err := canonicaljson.Parse([]byte(invalid), nil); err == nil {
			t.Errorf("%q is JSON", invalid)
		}
	}
}

func TestParseErrorsQuoteNothing(t *testing.T) {
	const secret = "secret"
	for _, invalid := range []string{
		`{"secret":1,"secret":2}`, `{"secret":`, `{"secret":1]`, `["secret" "secret"]`, `{"secret":{"secret":tru}}`, `secret`,
		`{"a":1}{"secret":1}`, `["secret"],`, "[\"secret\xff\"]", `{"secret\ud800":1,"secret\ud801":2}`, `{secret:1}`, `]`, `}`, `{"a":1,}`, `[,]`, `{"a"}`, `{"a":}`, `{1:2}`, ``,
	} {
		_, err := canonicaljson.Parse([]byte(invalid), nil)
		if err == nil {
			t.Errorf("%q is JSON", invalid)
		} else if strings.Contains(err.Error(), secret) || len(err.Error()) > 200 {
			t.Errorf("%q: the error quotes the text: %v", invalid, err)
		}
	}
}

func TestIsZero(t *testing.T) {
	for text, want := range map[string]bool{
		"null": true, "false": true, "true": false,
		"0": true, "-0": true, "0.00": true, "-0.0e7": true, "0E+1": true, "1": false, "-1": false, "0.05": false, "0.1e-9": false, "10": false, "1e-999": false,
		`""`: true, `" "`: false, `"0"`: false, `"\ud83d"`: false,
		"[]": true, "[ ]": true, "[0]": false, "[[]]": false, "{}": true, "{ }": true, `{"a":null}`: false,
	} {
		for _, within := range []string{"%s", `{"a": %s}`, `[%s, 1]`} {
			doc, err := canonicaljson.Parse(fmt.Appendf(nil, within, text), nil)
			if err != nil {
				t.Fatal(err)
			}
			v := doc.Root()
			if within != "%s" {
				for _, pointer := range []string{"/a", "/0"} {
					if inner, ok := doc.Root().At(pointer); ok {
						v = inner
					}
				}
			}
			if got := v.IsZero(); got != want {
				t.Errorf("%s within %s: %v, want %v", text, within, got, want)
			}
		}
	}
}
