package delivery_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

// findKey finds the ID of a request with these lines of Idempotency-Key.
func findKey(maxLength int, lines ...string) (delivery.Found, error) {
	request := delivery.Request{Header: http.Header{"Idempotency-Key": lines}}
	return delivery.Find([]delivery.Source{keyHeader}, request, maxLength)
}

// isInvalid reports whether an error says that a header field has no valid ID.
func isInvalid(err error, header string) bool {
	_, is := errors.AsType[delivery.InvalidError](err)
	return is && strings.HasPrefix(err.Error(), "header "+header+": ")
}

func TestValidKeys(t *testing.T) {
	long := strings.Repeat("k", maxLength)
	for name, c := range map[string]struct {
		lines []string
		want  string
	}{
		"bare":                           {[]string{"abc"}, "abc"},
		"quoted":                         {[]string{`"abc"`}, "abc"},
		"quoted with several parameters": {[]string{`"abc"; a; b="c;d";e=?0`}, "abc"},
		"bare with a semicolon":          {[]string{"abc;v=1"}, "abc;v=1"},
		"bare with a comma":              {[]string{"a, b"}, "a, b"},
		"bare with a quote inside":       {[]string{`a"b`}, `a"b`},
		"bare with a backslash":          {[]string{`a\b`}, `a\b`},
		"escaped quote":                  {[]string{`"a\"b"`}, `a"b`},
		"a quoted quote":                 {[]string{`"\""`}, `"`},
		"looks like an integer":          {[]string{"12345"}, "12345"},
		"white space around quotes":      {[]string{" \t\"abc\"\t "}, "abc"},
		"white space within quotes":      {[]string{`" abc "`}, " abc "},
		"white space within":             {[]string{"a b"}, "a b"},
		"first and last allowed byte":    {[]string{"\"\x20\x7e\""}, "\x20\x7e"},
		"two lines, the same":            {[]string{"abc", "abc"}, "abc"},
		"two lines, one of them quoted":  {[]string{"abc", `"abc"`}, "abc"},
		"two lines, other parameters":    {[]string{`"abc";a=1`, `"abc";a=2`}, "abc"},
		"the longest":                    {[]string{long}, long},
		"the longest, quoted":            {[]string{`"` + long + `"`}, long},
		"the longest, all escapes":       {[]string{`"` + strings.Repeat(`\"`, maxLength) + `"`}, strings.Repeat(`"`, maxLength)},
		"long parameters do not count":   {[]string{`"abc";p="` + long + `"`}, "abc"},
	} {
		t.Run(name, func(t *testing.T) {
			found, err := findKey(maxLength, c.lines...)
			if err != nil || found.ID != c.want {
				t.Fatalf("%q: got %q, %v; want %q", c.lines, found.ID, err, c.want)
			}
		})
	}
}

func TestInvalidKeys(t *testing.T) {
	const (
		empty   = "is empty"
		quote   = "structured field string"
		differs = "differs from that of another line"
	)
	long := strings.Repeat("k", maxLength+1)
	for name, c := range map[string]struct {
		lines  []string
		reason string
	}{
		"empty":                             {[]string{""}, empty},
		"empty quotes":                      {[]string{`""`}, empty},
		"one byte too long":                 {[]string{long}, "has 256 bytes"},
		"one byte too long, quoted":         {[]string{`"` + long + `"`}, "has 256 bytes"},
		"newline":                           {[]string{"a\nb"}, "byte 0x0A at offset 1"},
		"DEL":                               {[]string{"\x7f"}, "byte 0x7F at offset 0"},
		"last byte below":                   {[]string{"\x1f"}, "byte 0x1F at offset 0"},
		"UTF-8":                             {[]string{"schlüssel"}, "byte 0xC3 at offset 4"},
		"UTF-8 in quotes":                   {[]string{`"schlüssel"`}, quote},
		"tab in quotes":                     {[]string{"\"a\tb\""}, quote},
		"a quote alone":                     {[]string{`"`}, quote},
		"no closing quote":                  {[]string{`"abc`}, quote},
		"the closing quote is escaped":      {[]string{`"abc\"`}, quote},
		"unknown escape":                    {[]string{`"a\bc"`}, quote},
		"text after the string":             {[]string{`"abc"def`}, quote},
		"a list of strings":                 {[]string{`"k", "k"`}, quote},
		"a bad parameter":                   {[]string{`"abc";A=1`}, quote},
		"a parameter without a value":       {[]string{`"abc";a=`}, quote},
		"a string split over two lines":     {[]string{`"foo`, `bar"`}, quote},
		"two lines that differ":             {[]string{"abc", "abd"}, differs},
		"two lines that differ in case":     {[]string{"abc", "ABC"}, differs},
		"three lines, the last one differs": {[]string{"abc", `"abc"`, "abd"}, differs},
		"two lines, the second one empty":   {[]string{"abc", ""}, empty},
		"two lines, the first one empty":    {[]string{"", "abc"}, empty},
	} {
		t.Run(name, func(t *testing.T) {
			found, err := findKey(maxLength, c.lines...)
			if !isInvalid(err, "Idempotency-Key") || !strings.Contains(err.Error(), c.reason) {
				t.Errorf("%q: got %+v, %v; want an InvalidError with %q", c.lines, found, err, c.reason)
			}
			if found.ID != "" {
				t.Errorf("%q: found the ID %q beside the error", c.lines, found.ID)
			}
		})
	}
}

func TestInvalidErrorText(t *testing.T) {
	_, err := findKey(8, "a\tb")
	want := `header Idempotency-Key: value "a\tb" has the byte 0x09 at offset 1; it must be 1 to 8 characters of printable ASCII, bare or as a string in double quotes`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	_, err = findKey(maxLength, strings.Repeat("é", 100_000))
	if err == nil || len(err.Error()) > 600 {
		t.Errorf("the message of a long value has %d bytes", len(err.Error()))
	}
	for _, c := range []byte(err.Error()) {
		if c < 0x20 || c > 0x7e {
			t.Fatalf("the message has the byte 0x%02X: %q", c, err)
		}
	}
}

// What is looked for in every request costs nothing where it is not there, and a key
// that is there costs nothing but to be read.
func TestHeaderKeysAllocateNothing(t *testing.T) {
	sources := []delivery.Source{{Kind: delivery.KindHeader, Header: "X-Request-Key"}, keyHeader}
	for i := range sources {
		sources[i] = sources[i].WithPrefix()
	}
	with := delivery.Request{Header: http.Header{"Idempotency-Key": {"8e03978e-40d5-43e8-bc93-6894a57f9324"}}}
	without := delivery.Request{Header: http.Header{"Accept": {"*/*"}}}
	if n := testing.AllocsPerRun(100, func() {
		if found, err := delivery.Find(sources, with, maxLength); err != nil || found.Prefix != "idempotency-key" {
			t.Errorf("found %+v, %v", found, err)
		}
		if _, err := delivery.Find(sources, without, maxLength); !errors.Is(err, delivery.ErrMissing) {
			t.Error(err)
		}
	}); n > 2 { // each remembers its body, should it be asked for
		t.Errorf("%v allocations", n)
	}
}

func FuzzFind(f *testing.F) {
	for _, seed := range []struct {
		first, second string
		maxLength     int
	}{
		{"abc", "", 255},
		{`"abc"`, "abc", 255},
		{`"abc";a=1;b="\"";c=:YWJj:;d=@1;e=%"f%c3%bc"`, `"abc"`, 255},
		{`"foo`, `bar"`, 255},
		{`"a\\b\"c"`, `a\b"c`, 7},
		{" \t", `""`, 255},
		{"\"\x7f\"", "schlüssel", 255},
		{"k", "l", 1},
		{"kk", "", 1},
		{"abc", "abc", 0},
		{"abc", "abc", -1},
	} {
		f.Add(seed.first, seed.second, seed.maxLength)
	}
	f.Fuzz(func(t *testing.T, first, second string, maxLength int) {
		found, err := findKey(maxLength, first, second)
		if err != nil {
			if !isInvalid(err, "Idempotency-Key") {
				t.Fatalf("a header that is present gave %v", err)
			}
			if found.ID != "" {
				t.Fatalf("found the ID %q beside the error %v", found.ID, err)
			}
			return
		}
		if len(found.ID) < 1 || len(found.ID) > maxLength {
			t.Fatalf("the ID %q has %d bytes; the maximum is %d", found.ID, len(found.ID), maxLength)
		}
		for i := range len(found.ID) {
			if found.ID[i] < 0x20 || found.ID[i] > 0x7e {
				t.Fatalf("the ID %q has the byte 0x%02X", found.ID, found.ID[i])
			}
		}
		for _, line := range []string{first, second} {
			if alone, err := findKey(maxLength, line); err != nil || alone.ID != found.ID {
				t.Fatalf("both lines make %q, but %q alone makes %q, %v", found.ID, line, alone.ID, err)
			}
		}
		if again, err := findKey(maxLength, quoted(found.ID)); err != nil || again.ID != found.ID {
			t.Fatalf("%q in quotes makes %q, %v", found.ID, again.ID, err)
		}
		// An ID that begins with a quote, or has white space at its ends, cannot be
		// sent bare.
		if strings.Trim(found.ID, " ") == found.ID && found.ID[0] != '"' {
			if again, err := findKey(maxLength, found.ID); err != nil || again.ID != found.ID {
				t.Fatalf("bare %q makes %q, %v", found.ID, again.ID, err)
			}
		}
	})
}

// quoted writes an ID as a structured field string (RFC 9651, section 4.1.6).
func quoted(id string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(id) + `"`
}
