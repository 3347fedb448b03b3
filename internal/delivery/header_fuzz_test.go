package delivery_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

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
			var invalid *delivery.InvalidError
			if !errors.As(err, &invalid) {
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
