package canonicaljson_test

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/caddy-dedup/caddy-dedup/internal/canonicaljson"
)

// Whatever a text contains, all memory for it is reserved before it is allocated, and is at most linear
// in the length of the text.
func TestAllocatesWhatItReserves(t *testing.T) {
	const size = 1 << 20
	for name, c := range map[string]struct {
		text    string
		max     int // bytes reserved for each byte of the text
		exclude []string
	}{
		"digits":                {"[" + strings.Repeat("0,", size/2) + "0]", 13, []string{"/*", "/0"}},
		"empty objects":         {"[" + strings.Repeat("{},", size/3) + "0]", 16, []string{"/*/a"}},
		"members":               {wide(size, "%06x"), 4, []string{"/*", "/a"}},
		"members of objects":    {"[" + strings.Repeat(`{"b":0,"a":0},`, size/14) + "0]", 7, []string{"/*/a"}},
		"escaped names":         {wide(size, `\u0061%06x`), 3, []string{"/a"}},
		"names alike":           {alike(size), 2, nil},
		"deep":                  {strings.Repeat(`{"b":`, 10_000) + "0" + strings.Repeat(`,"a":0}`, 10_000), 35, nil},
		"deep arrays":           {strings.Repeat(`[`, 10_000) + "0" + strings.Repeat(`]`, 10_000), 165, nil},
		"a string":              {`"` + strings.Repeat("x", size) + `"`, 2, nil},
		"an escaped string":     {`"` + strings.Repeat(`\u0061`, size/6) + `"`, 4, nil},
		"two escaped names":     {`{"` + strings.Repeat(`\u0061`, size/12) + `":0,"` + strings.Repeat(`\u0061`, size/12) + `b":0}`, 3, nil},
		"escaped strings":       {`[` + strings.Repeat(`"\n",`, size/5) + `0]`, 6, nil},
		"numbers with exponent": {`[` + strings.Repeat(`1e20,`, size/5) + `0]`, 6, nil},
		"a number":              {strings.Repeat("9", size) + ".5e-" + fmt.Sprint(size), 2, nil},
		"a string of commas":    {`["` + strings.Repeat(`,[{:\"`, size/6) + `"]`, 4, nil},
		"no JSON":               {`{"` + strings.Repeat("/", size) + `":x`, 2, nil},
		"a duplicate name":      {wide(size, "%06x")[:size/2] + `":0,"000000":1}`, 4, nil},
	} {
		t.Run(name, func(t *testing.T) {
			text := []byte(c.text)
			var before, after runtime.MemStats
			reserved := 0
			reserve := func(n int) error {
				reserved += n
				runtime.ReadMemStats(&before)
				return nil
			}
			done := make(chan struct{})
			go func() { // on a stack of its own
				defer close(done)
				if doc, err := canonicaljson.Parse(text, reserve); err == nil {
					_ = doc.WriteCanonical(io.Discard, c.exclude...)
					if doc.Root().Kind() == jsontext.KindString {
						_, _ = doc.Root().Text()
					}
				}
				runtime.ReadMemStats(&after)
			}()
			<-done
			const buffers = size / 4 // and what the runtime allocates meanwhile
			allocated := int(after.TotalAlloc-before.TotalAlloc) + max(0, int(after.StackInuse)-int(before.StackInuse))
			if allocated > reserved+buffers {
				t.Errorf("%d bytes were allocated for a text of %d, and %d reserved", allocated, len(text), reserved)
			}
			if reserved > c.max*len(text)+buffers {
				t.Errorf("%d bytes were reserved for a text of %d; want at most %d for each byte", reserved, len(text), c.max)
			}
		})
	}
}

// wide returns an object of at least this size, with many members. format makes their names.
func wide(size int, format string) string {
	var b strings.Builder
	for n := 0; b.Len() < size; n++ {
		fmt.Fprintf(&b, `,"`+format+`":0`, n)
	}
	return "{" + b.String()[1:] + "}"
}

// If reserve returns an error, nothing is allocated, and the error is returned.
func TestReserveReturnsError(t *testing.T) {
	full := errors.New("full")
	text := []byte(`{"a":[1,"` + strings.Repeat("x", 1<<20) + `"]}`)
	if doc, err := canonicaljson.Parse(text, func(int) error { return full }); doc != nil || !errors.Is(err, full) {
		t.Errorf("parse: got %v, %v; want the error of reserve", doc, err)
	}
	doc, err := canonicaljson.Parse(text, nil)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := doc.Root().At("/a")
	requested := 0
	form, err := a.Canonical(func(n int) error { requested = n; return full })
	if form != "" || !errors.Is(err, full) || requested != len(text)-len(`{"a":}`) {
		t.Errorf("canonical: got %.10s, %v, with %d bytes requested", form, err, requested)
	}
}
