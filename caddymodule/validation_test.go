package caddymodule

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/identify"
)

func TestPlaceholdersIn(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "plain": "", "{a}": "a", "x{a}-{b.c}y": "a b.c", `\{a}`: "", `\{a\}{b}`: "b", "}{a}": "a", `{a\}b}`: `a\}b`,
		"{a": "unclosed", "{a}{b": "a unclosed", "{a{b}": "a{b", `\{a`: "", `{a\}`: "unclosed",
	} {
		names, unclosed := identify.PlaceholdersIn(text)
		if unclosed {
			names = append(names, "unclosed")
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
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
	want, got := absent.identification(), empty.identification()
	if len(got.Scope) > 0 || !slices.Equal(got.Methods, want.Methods) || !reflect.DeepEqual(got.Policies, want.Policies) || !reflect.DeepEqual(got.Sources, want.Sources) || empty.check() != nil {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
