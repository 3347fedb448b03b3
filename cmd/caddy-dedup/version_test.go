package main

import (
	"os"
	"os/exec"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
)

// With this in its environment, the test's own binary is caddy-dedup.
const runMain = "DEDUP_TEST_RUN_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(runMain) != "" {
		// In place of -ldflags, which would need a build for each test.
		version = os.Getenv("DEDUP_TEST_VERSION")
		caddy.CustomVersion = os.Getenv("DEDUP_TEST_CUSTOM_VERSION")
		main()
		return
	}
	os.Exit(m.Run())
}

func TestVersionBeforeCaddys(t *testing.T) {
	caddys := &debug.Module{Path: "github.com/caddyserver/caddy/v2", Version: "v2.11.9"}
	own := func(version string) debug.Module {
		return debug.Module{Path: "github.com/caddy-dedup/caddy-dedup", Version: version}
	}
	clean := []debug.BuildSetting{
		{Key: "vcs", Value: "git"},
		{Key: "vcs.revision", Value: "75f25df0c3e1a2b4c6d8e0f1a3b5c7d9e1f3a5b7"},
		{Key: "vcs.modified", Value: "false"},
	}
	changed := []debug.BuildSetting{
		{Key: "vcs.modified", Value: "true"},
		{Key: "vcs.revision", Value: "75f25df0c3e1a2b4c6d8e0f1a3b5c7d9e1f3a5b7"},
	}
	elsewhere := debug.Module{Path: "example.com/tools", Version: "v9.9.9"}
	released := own("v0.1.0")

	for name, c := range map[string]struct {
		given string
		info  *debug.BuildInfo
		want  string
	}{
		"no build information":           {"", nil, "caddy-dedup (devel)"},
		"none, and a version was given":  {"v0.1.0", nil, "caddy-dedup v0.1.0"},
		"go install of a version":        {"", &debug.BuildInfo{Main: own("v0.1.0"), Deps: []*debug.Module{caddys}}, "caddy-dedup v0.1.0 with Caddy"},
		"a folder without a repository":  {"", &debug.BuildInfo{Main: own("(devel)"), Deps: []*debug.Module{caddys}}, "caddy-dedup (devel) with Caddy"},
		"a module without a version":     {"", &debug.BuildInfo{Main: own(""), Deps: []*debug.Module{caddys}}, "caddy-dedup (devel) with Caddy"},
		"such a folder, a version given": {"v0.1.0", &debug.BuildInfo{Main: own("(devel)"), Deps: []*debug.Module{caddys}}, "caddy-dedup v0.1.0 with Caddy"},
		"a clean repository":             {"", &debug.BuildInfo{Main: own("v0.1.0"), Deps: []*debug.Module{caddys}, Settings: clean}, "caddy-dedup v0.1.0 (commit 75f25df0c3e1) with Caddy"},
		"a changed repository":           {"", &debug.BuildInfo{Main: own("v0.1.0+dirty"), Deps: []*debug.Module{caddys}, Settings: changed}, "caddy-dedup v0.1.0+dirty (commit 75f25df0c3e1, modified) with Caddy"},
		"a version given wins over Go's": {"v0.2.0", &debug.BuildInfo{Main: own("v0.1.0"), Deps: []*debug.Module{caddys}, Settings: clean}, "caddy-dedup v0.2.0 (commit 75f25df0c3e1) with Caddy"},
		"a short commit": {"", &debug.BuildInfo{Main: own("v0.1.0"), Deps: []*debug.Module{caddys},
			Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "75f25"}}}, "caddy-dedup v0.1.0 (commit 75f25) with Caddy"},
		"a tool of another module": {"", &debug.BuildInfo{Main: elsewhere, Deps: []*debug.Module{&released, caddys}, Settings: clean}, "caddy-dedup v0.1.0 with Caddy"},
		"replaced in that module": {"", &debug.BuildInfo{Main: elsewhere, Deps: []*debug.Module{
			{Path: released.Path, Version: "v0.1.0", Replace: &debug.Module{Path: "../fork"}}, caddys}}, "caddy-dedup (devel) with Caddy"},
		"modules that nobody recorded": {"", &debug.BuildInfo{Settings: clean}, "caddy-dedup (devel)"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := beforeCaddysVersion(c.given, c.info); got != c.want {
				t.Errorf("got %q; want %q", got, c.want)
			}
		})
	}
}

// What the commands print is put together by Caddy.
func TestVersionCommand(t *testing.T) {
	const caddys = `v2\.\d+\.\d+\S*( h1:\S+)?`
	for name, c := range map[string]struct {
		args []string
		env  []string
		want string
	}{
		"version":       {[]string{"version"}, nil, `^caddy-dedup \S+( \(commit [^)]*\))? with Caddy ` + caddys + `\n$`},
		"--version":     {[]string{"--version"}, nil, `^caddy-dedup \S+( \(commit [^)]*\))? with Caddy ` + caddys + `\n$`},
		"environ":       {[]string{"environ"}, nil, `(?m)^caddy\.Version=caddy-dedup \S+.* with Caddy ` + caddys + `$`},
		"main.version":  {[]string{"version"}, []string{"DEDUP_TEST_VERSION=v0.1.0"}, `^caddy-dedup v0\.1\.0( \(commit [^)]*\))? with Caddy ` + caddys + `\n$`},
		"CustomVersion": {[]string{"version"}, []string{"DEDUP_TEST_CUSTOM_VERSION=our-build"}, `^our-build ` + caddys + `\n$`},
		"both":          {[]string{"version"}, []string{"DEDUP_TEST_CUSTOM_VERSION=our-build", "DEDUP_TEST_VERSION=v0.1.0"}, `^our-build ` + caddys + `\n$`},
	} {
		t.Run(name, func(t *testing.T) {
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			command := exec.CommandContext(t.Context(), self, c.args...)
			command.Env = append(append(os.Environ(), runMain+"=1"), c.env...)
			out, err := command.Output()
			if err != nil {
				t.Fatal(err)
			}
			if !regexp.MustCompile(c.want).Match(out) {
				t.Errorf("got %q; want what %q describes", strings.TrimSpace(string(out)), c.want)
			}
		})
	}
}
