package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadsTheProjectsOwnFile(t *testing.T) {
	builder, err := read("../../xcaddy.json")
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	const module = "github.com/caddy-dedup/caddy-dedup"
	if len(builder.Plugins) != 1 || builder.Plugins[0].PackagePath != module {
		t.Errorf("the plugins are %v; want %s alone", builder.Plugins, module)
	}
	if len(builder.Replacements) != 1 || builder.Replacements[0].Old.String() != module || builder.Replacements[0].New.String() != root {
		t.Errorf("the replacements are %v; want %s by %s", builder.Replacements, module, root)
	}
	// Building with another Caddy than the one the tests ran with proves nothing.
	requirements, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if want := "github.com/caddyserver/caddy/v2 " + builder.CaddyVersion; !strings.Contains(string(requirements), want) {
		t.Errorf("go.mod does not require %s", want)
	}
}

func TestReadResolvesRelativeReplacements(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "xcaddy.json")
	write(t, path, `{"caddy_version": "v2.0.0", "plugins": [{"module_path": "a"}], "replacements": [
		{"old": "a", "new": "."}, {"old": "b", "new": "./b"}, {"old": "c", "new": "../c"},
		{"old": "d", "new": "/d"}, {"old": "e", "new": "example.com/e v1.0.0"}]}`)
	builder, err := read(path)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"a": folder, "b": filepath.Join(folder, "b"), "c": filepath.Join(filepath.Dir(folder), "c"),
		"d": "/d", "e": "example.com/e v1.0.0",
	}
	if len(builder.Replacements) != len(want) {
		t.Fatalf("got %v", builder.Replacements)
	}
	for _, r := range builder.Replacements {
		if r.New.String() != want[r.Old.String()] {
			t.Errorf("%s is replaced by %s; want %s", r.Old, r.New, want[r.Old.String()])
		}
	}
}

func TestReadNamesWhatIsWrong(t *testing.T) {
	for content, want := range map[string]string{
		`{"caddy_version": "v2.0.0"}`:            "plugins",
		`{"plugins": [{"module_path": "a"}]}`:    "caddy_version",
		`{"caddy_version": 2}`:                   "caddy_version",
		`{"caddy_versions": "v2.0.0"}`:           `"caddy_versions"`,
		`caddy_version`:                          "invalid character",
		`{"plugins": [{"package_path": "a"}]}`:   `"package_path"`,
		`{"plugins": "a", "caddy_version": "v"}`: "plugins",
	} {
		path := filepath.Join(t.TempDir(), "xcaddy.json")
		write(t, path, content)
		if _, err := read(path); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v; want an error that names the file and %s", content, err, want)
		}
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
