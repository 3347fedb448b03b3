package caddymodule

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/exchange"
)

func TestPlaceholdersIn(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "plain": "", "{a}": "a", "x{a}-{b.c}y": "a b.c", `\{a}`: "", `\{a\}{b}`: "b", "}{a}": "a", `{a\}b}`: `a\}b`,
		"{a": "unclosed", "{a}{b": "a unclosed", "{a{b}": "a{b", `\{a`: "", `{a\}`: "unclosed",
	} {
		names, unclosed := exchange.PlaceholdersIn(text)
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

// An empty list in JSON is the default. An empty scope of its own would let all callers share their keys.
func TestEmptyListsAreDefaults(t *testing.T) {
	var absent, empty Settings
	if err := json.Unmarshal([]byte(`{"scope": [], "methods": [], "release_on": [], "keys": [], "keep_header": []}`), &empty); err != nil {
		t.Fatal(err)
	}
	absent.setDefaults()
	empty.setDefaults()
	want, got := absent.config(), empty.config()
	if len(got.Scope) > 0 || !slices.Equal(got.Methods, want.Methods) || !reflect.DeepEqual(got.Policies, want.Policies) || !reflect.DeepEqual(got.Sources, want.Sources) || empty.check() != nil {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// A too long duration is not reported as malformed: its author would look for a typing mistake.
func TestDurationsThatAreTooLong(t *testing.T) {
	for line, want := range map[string]string{
		"retention 36501d":                 "retention: 876024h0m0s is too long; use at most 36500d",
		"retention 106752d":                "retention: 106752d is too long; use at most 36500d",
		"lease 99999999999999999999s":      "lease: 99999999999999999999s is too long",
		"wait 1d9999999h":                  `wait: "1d9999999h" is not accepted`,
		"retention_from header X 1000000d": "retention_from: max: 1000000d is too long",
		"retention 1..5d":                  `retention: "1..5d" is not a duration`,
		"retention -106752d":               `retention: "-106752d" is not a duration`,
		"timeout 5":                        `timeout: "5" is not a duration`,
	} {
		if err := handlerOf(line); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "Testfile:2") {
			t.Errorf("%s: %v; want %q", line, err, want)
		}
	}
}
