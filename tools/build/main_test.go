package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/xcaddy"
	"golang.org/x/mod/modfile"
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
	if want := caddyOfGoMod(t); builder.CaddyVersion != want {
		t.Errorf("caddy_version is %s; go.mod requires %s", builder.CaddyVersion, want)
	}
}

// caddyOfGoMod is the version of Caddy that the tests of the project run with.
func caddyOfGoMod(t *testing.T) string {
	t.Helper()
	requirements, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	file, err := modfile.Parse("go.mod", requirements, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range file.Require {
		if r.Mod.Path == "github.com/caddyserver/caddy/v2" {
			return r.Mod.Version
		}
	}
	t.Fatal("go.mod does not require Caddy")
	return ""
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
		`{"caddy_version": "v2.0.0"}`:         "plugins",
		`{"plugins": [{"module_path": "a"}]}`: "caddy_version",
		`{"caddy_version": 2}`:                "caddy_version",
		`{"caddy_versions": "v2.0.0"}`:        `"caddy_versions"`,
		`caddy_version`:                       "invalid character",
		`{"caddy_version": "v2.0.0", "plugins": [{"module_path": "a"}]} {}`: "behind the description",
		`{"plugins": [{"package_path": "a"}]}`:                              `"package_path"`,
		`{"plugins": "a", "caddy_version": "v"}`:                            "plugins",
	} {
		path := filepath.Join(t.TempDir(), "xcaddy.json")
		write(t, path, content)
		if _, err := read(path); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v; want an error that names the file and %s", content, err, want)
		}
	}
}

func TestFurtherPlugins(t *testing.T) {
	builder := xcaddy.Builder{Plugins: []xcaddy.Dependency{{PackagePath: "own"}}}
	for _, text := range []string{"a", "b@v1.2.3", "c=/plugins/c", "d@v1.0.0=../d", "e/"} {
		if err := add(&builder, "/project", text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	plugins := []xcaddy.Dependency{
		{PackagePath: "own"}, {PackagePath: "a"}, {PackagePath: "b", Version: "v1.2.3"}, {PackagePath: "c", Version: "v0.0.0"},
		{PackagePath: "d", Version: "v1.0.0"}, {PackagePath: "e"},
	}
	if !slices.Equal(builder.Plugins, plugins) {
		t.Errorf("the plugins are %v; want %v", builder.Plugins, plugins)
	}
	if want := []xcaddy.Replace{xcaddy.NewReplace("c", "/plugins/c"), xcaddy.NewReplace("d", "/d")}; !slices.Equal(builder.Replacements, want) {
		t.Errorf("the replacements are %v; want %v", builder.Replacements, want)
	}
	for _, text := range []string{"", "@v1.0.0", "a@", "x=", "=x", "own@v1.0.0"} {
		if err := add(&builder, "/project", text); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", text)) {
			t.Errorf("%s: got %v; want an error that names it", text, err)
		}
	}
}

func TestVersionOfABuild(t *testing.T) {
	const set = "-X github.com/caddy-dedup/caddy-dedup.Version=v0.1.0-rc.1"
	for flags, want := range map[string]string{
		"-ldflags -w":                          "-ldflags '-w " + set + "'",
		"-trimpath -ldflags '-w -s' -tags a,b": "-trimpath -ldflags '-w -s " + set + "' -tags a,b",
		`-ldflags "-X 'a=b c'"`:                `-ldflags '-X '"'"'a=b c'"'"' ` + set + `'`,
	} {
		got, err := stamped(flags, "v0.1.0-rc.1")
		if err != nil || got != want {
			t.Errorf("%s: got %q, %v; want %q", flags, got, err, want)
		}
	}
	for flags, version := range map[string]string{"-ldflags -w": "main", "-ldflags -s": "v0.1.0 -X a=b", "-trimpath": "v0.1.0", "-ldflags": "v0.1.0", "-ldflags '": "v0.1.0"} {
		if got, err := stamped(flags, version); err == nil {
			t.Errorf("%q with the version %q: got %q; want an error", flags, version, got)
		}
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
