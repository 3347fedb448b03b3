package canonicaljson_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/caddy-dedup/caddy-dedup/internal/canonicaljson"
)

// membersOf returns what Members finds, as `name=value` each.
func membersOf(text string) (found []string, err error) {
	err = canonicaljson.Members([]byte(text), func(name []byte, begin, end int) {
		found = append(found, string(name)+"="+text[begin:end])
	})
	return found, err
}

func TestMembers(t *testing.T) {
	for text, want := range map[string][]string{
		`{}`:                                 nil,
		" { \"a\" : 1 , \"a\" : [ ] }\n":     {`"a"=1`, `"a"=[ ]`},
		`{"\u0061":{"b":[{"c":null},{}]}}`:   {`"\u0061"={"b":[{"c":null},{}]}`},
		`{"a":"}\"","b":[[],{}],"c":true}`:   {`"a"="}\""`, `"b"=[[],{}]`, `"c"=true`},
		"{\"a\":\"\xff\",\"b\":\"\\ud800\"}": {"\"a\"=\"\xff\"", `"b"="\ud800"`},
	} {
		if got, err := membersOf(text); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: got %q, %v; want %q", text, got, err, want)
		}
	}
	for text, want := range map[string][]string{ // what is found before the error
		``:                          nil,
		`[]`:                        nil,
		`{`:                         nil,
		`{"a`:                       nil,
		`{"a":`:                     {`"a"=`},
		`{"a":1`:                    {`"a"=1`},
		`{"a":1,}`:                  {`"a"=1`},
		`{"a":1]`:                   {`"a"=1`},
		`{"a":1}{}`:                 {`"a"=1`},
		`{"a":1,"b":{"c":[1,2`:      {`"a"=1`, `"b"={"c":[1,2`},
		`{"a":{"b":[1}},"c":2}`:     {`"a"={"b":[1}},"c":2}`},
		`{"a":01}`:                  {`"a"=0`},
		`{"a":[1 2]}`:               {`"a"=[1 2]}`},
		`{"a":{"b"}}`:               {`"a"={"b"}}`},
		`{"a":` + nested(9_999):     {`"a"=` + nested(9_999)},
		`{"a":` + nested(10_000):    {`"a"=` + nested(10_000)},
		"{\"a\":\"\n\",\"b\":true}": {"\"a\"=\"\n\",\"b\":true}"},
	} {
		if got, err := membersOf(text); err == nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%.40s: got %.80q, %v; want %.80q and an error", text, got, err, want)
		}
	}
	if _, err := membersOf(`{"a":` + nested(9_999) + `}`); err != nil {
		t.Errorf("10,000 deep: %v", err)
	}
	if _, err := membersOf(`{"a":` + nested(10_000) + `}`); err == nil {
		t.Error("10,001 deep is no error")
	}
}

func nested(levels int) string { return strings.Repeat("[", levels) + strings.Repeat("]", levels) }

func TestMembersAllocatesNothing(t *testing.T) {
	text := []byte(`{"a":[{"b":"c"},1.5e3,true],"d":"\u0065"}`)
	if n := testing.AllocsPerRun(100, func() {
		if err := canonicaljson.Members(text, func([]byte, int, int) {}); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("it allocates %v times", n)
	}
}

func TestIsString(t *testing.T) {
	for _, value := range []string{`"tools/call"`, `"tools\/call"`, `"\u0074ools/call"`} {
		if !canonicaljson.IsString([]byte(value), "tools/call") {
			t.Errorf("%s is not tools/call", value)
		}
	}
	for _, value := range []string{``, `"`, `""`, `null`, `tools/call`, `"tools/calls"`, `"tools/cal`, `"tools/callX`, `"tools/cal\"`, `["tools/call"]`} {
		if canonicaljson.IsString([]byte(value), "tools/call") {
			t.Errorf("%s is tools/call", value)
		}
	}
}

// The library is another reader of the same texts.
func FuzzMembers(f *testing.F) {
	for _, text := range []string{`{"a":1,"a":[{"b":"\n"},{}],"c":-1.5e3}`, "{\"\xff\":\"\\ud800\"} ", `{"a":[1}`, `{"a":01}`, `{"a":{"b":{}},"c":[[]]}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := membersOf(string(text))
		want, wantErr := byLibrary(text)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%q: %v; the library says %v", text, err, wantErr)
		}
		if err == nil && fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
			t.Errorf("%q: got %q, the library %q", text, got, want)
		}
	})
}

func byLibrary(text []byte) (found []string, err error) {
	decoder := jsontext.NewDecoder(bytes.NewReader(text), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if token, err := decoder.ReadToken(); err != nil || token.Kind() != '{' {
		return nil, errors.New("no object")
	}
	for decoder.PeekKind() == '"' {
		name, err := decoder.ReadValue()
		if err != nil {
			return nil, err
		}
		member := string(name) + "="
		value, err := decoder.ReadValue()
		if err != nil {
			return nil, err
		}
		found = append(found, member+string(value))
	}
	if _, err := decoder.ReadToken(); err != nil {
		return nil, err
	}
	if _, err := decoder.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one value")
	}
	return found, nil
}
