package caddymodule

import (
	"strings"
	"testing"
)

func TestPlaceholdersIn(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "plain": "", "{a}": "a", "x{a}-{b.c}y": "a b.c", `\{a}`: "", `\{a\}{b}`: "b", "}{a}": "a", `{a\}b}`: `a\}b`,
		"{a": "unclosed", "{a}{b": "a unclosed", "{a{b}": "a{b", `\{a`: "", `{a\}`: "unclosed",
	} {
		names, unclosed := placeholdersIn(text)
		if unclosed {
			names = append(names, "unclosed")
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestLocalCopiesAreLimitedByDefault(t *testing.T) {
	off, some := int64(0), int64(4096)
	for configured, want := range map[*int64]int64{nil: 16777216, &off: 0, &some: 4096} {
		if got := (&App{LocalCopies: configured}).localCopies(); got != want {
			t.Errorf("the limit is %d bytes, want %d", got, want)
		}
	}
}
